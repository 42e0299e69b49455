"""A container for every cell: nothing lasts but the workspace, and nothing is left."""

from __future__ import annotations

from pathlib import Path

from kernelexec import Executor
from tests.support.engine import IMAGE, needs_engine

pytestmark = needs_engine


def test_no_variable_lasts_and_the_workspace_does(tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE, "mode": "ephemeral"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        first = session.execute("import os\nx = 1\nopen('kept', 'w').write('yes')\nprint(os.uname().nodename)")
        assert (first.status, first.state, first.cause, first.lost_names) == ("ok", "lost", "culled", ("os", "x"))
        second = session.execute("import os\nprint(os.uname().nodename)\n'x' in globals(), open('kept').read()")
        assert second.text.splitlines()[1] == "(False, 'yes')"
        assert second.stdout != first.stdout
        assert (second.kernel_epoch, second.notes) == (first.kernel_epoch + 1, first.notes)


def test_a_cell_that_dies_is_reported_as_everywhere(tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE, "mode": "ephemeral"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        result = session.execute("import os; os._exit(3)")
        assert (result.status, result.exit_code, result.state, result.cause) == ("error", 3, "lost", "exited")
        second = session.execute("1 + 1")
        assert second.text == "2", second
