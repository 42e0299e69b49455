"""The directory of a kernel that is deleted, replaced or closed: cells and commands go on in the workspace, and say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidConfig, KernelStartFailed, Session
from kernelexec.workspace.directory import explain_unusable_workspace
from tests.support.paths import delete_directory

ALSO_CONFINED = ("test_a_replaced_workspace_is_reported_and_a_new_kernel_works_in_it",)
DELETE = "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')"
UNUSABLE = "import os, tempfile\nos.environ |= {'TMPDIR': '/nonexistent', 'HOME': '/nonexistent'}\ntempfile.tempdir = None"


@pytest.mark.parametrize(
    ("is_command", "source"),
    [(False, "import os; print(os.getcwd())"), (True, "pwd"), (False, "!pwd"), (False, "%%bash\npwd")],
    ids=["cell", "command", "line magic", "cell magic"],
)
def test_a_deleted_directory_is_left_for_the_workspace(session: Session, source: str, *, is_command: bool) -> None:
    workspace = session.execute("import os; print(os.getcwd())").stdout.strip()
    assert session.execute(DELETE).text == ""
    result = session.execute_command(source) if is_command else session.execute(source)
    assert (result.status, result.state) == ("ok", "kept")
    assert result.text.strip() == workspace
    assert f"The current directory was deleted: cells and commands go on in {workspace!r}." in result.notes
    assert session.execute("open('made', 'w').close()").files == ("made",)
    assert session.execute("1").text == "1"


def test_internal_requests_leave_the_report_to_the_next_cell(session: Session) -> None:
    session.execute(DELETE)
    session.snapshot()
    session.variables()
    assert "The current directory was deleted" in " ".join(session.execute("1").notes)


def test_a_replaced_workspace_is_reported_and_a_new_kernel_works_in_it(session: Session) -> None:
    session.execute("x = 1")
    delete_directory(session.workspace)
    session.workspace.mkdir()
    result = session.execute("x")
    assert result.text == "1"
    assert "restart the session" in " ".join(result.notes)
    assert "restart the session" not in " ".join(session.execute("x").notes)
    session.restart()
    assert session.execute("open('made', 'w').close()").files == ("made",)


def test_a_workspace_that_is_gone_is_reported_once_by_cells_and_by_each_new_kernel(session: Session) -> None:
    session.execute("x = 1")
    delete_directory(session.workspace)
    result = session.execute("x")
    assert result.text == "1"
    assert "cannot be used" in " ".join(result.notes)
    assert "cannot be used" not in " ".join(session.execute("x").notes)
    for _ in range(2):
        with pytest.raises(KernelStartFailed, match="is gone: make that directory again to go on"):
            session.restart()
    session.workspace.mkdir()
    assert session.execute("import os; os.path.exists('.')").text == "True"


def test_an_unusable_temporary_directory_and_home_fail_no_cell(session: Session) -> None:
    assert session.execute(UNUSABLE).text == ""
    assert session.execute("1").text == "1"
    assert session.execute_command("echo hi").text == "hi\n"
    assert session.execute("%%bash\necho hi").text == "hi\n"
    assert session.execute("def f(): raise ValueError\nf()").error is not None


def test_an_executor_without_a_current_directory_needs_an_absolute_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidConfig, match="the current directory is gone: name an absolute path"):
        Executor("local")
    with Executor("local", workspace=tmp_path / "w") as executor:
        assert executor.session("s").execute("import os; os.getcwd()").text == f"'{tmp_path}/w/s'"


def test_a_workspace_that_the_kernels_user_cannot_enter_is_named(tmp_path: Path) -> None:
    assert explain_unusable_workspace(tmp_path, os.getuid()) is None
    assert explain_unusable_workspace(tmp_path, None) is None
    (tmp_path / "file").touch()
    message = f"No kernel can start in the workspace {tmp_path}/file: Not a directory."
    assert explain_unusable_workspace(tmp_path / "file", None) == message
    tmp_path.chmod(0o600)
    message = f"No kernel can start in the workspace {tmp_path}: Permission denied."
    assert explain_unusable_workspace(tmp_path, os.getuid()) == message
    tmp_path.chmod(0o700)
