"""What a kernel leaves out to start sooner is nothing that users see: their configuration counts, in files and in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor, Session

CONFIGURED = """
c.InteractiveShell.ast_node_interactivity = "all"
c.PlainTextFormatter.float_precision = "%.2f"
c.IPKernelApp.exec_lines = ["greeting = 'hello'"]
"""
OWN = """
from traitlets import Int
from traitlets.config import Config, Configurable
class Part(Configurable):
    size = Int(1).tag(config=True)
class Whole(Configurable):
    size = Int(1).tag(config=True)
class Found(Part):
    def _find_my_config(self, cfg):
        return {"size": 7}
given = Config({"Whole": {"size": 2, "Part": {"size": 3}}})
whole = Whole(config=given)
part, other = Part(parent=whole), Part(config=given)
other.update_config(Config({"Part": {"size": 5}}))
print(whole.size, part.size, Part(config=given).size, other.size, Found(config=given).size)
"""


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "started"])
def test_configuration_files_count(tmp_path: Path, fork: bool) -> None:  # noqa: FBT001 - a parameter
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(CONFIGURED)
    (profile / "startup").mkdir()
    (profile / "startup" / "first.py").write_text("begun = 6")
    environment = {"set": {"IPYTHONDIR": str(tmp_path / "ipython")}}
    config = {"environment": environment, "fork_server": fork}
    with Executor(isolation="local", workspace=tmp_path / "workspace", config=config) as executor:
        result = executor.session().execute("greeting\nbegun\n1 / 3")
    assert result.text.split() == ["'hello'", "6", "0.33"]


def test_configuration_in_code_counts(session: Session) -> None:
    assert session.execute(OWN).stdout == "2 3 1 5 7\n"
    shown = "%config PlainTextFormatter.float_precision = '%.1f'\n2 / 3"
    assert session.execute(shown).text == "0.7\n"


def test_all_that_a_module_has_is_found(session: Session) -> None:
    assert session.execute("import sys, ipykernel.ipkernel as k\nk.sys.version == sys.version").text == "True\n"
    assert session.execute("import logging\nlogging.getLogger('App').getEffectiveLevel()").text == "30\n"
