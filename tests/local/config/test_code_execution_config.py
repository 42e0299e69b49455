"""``code_execution_config``: the dictionaries of agent frameworks, taken literally, and False for no execution at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.errors import InvalidWorkDir

WHERE = "import os; print(os.getcwd())"


def test_sessions_work_in_the_directory_that_is_named_which_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    value = {"work_dir": "deep/coding", "use_docker": False, "timeout": 30}
    with Executor(code_execution_config=value, workspace=tmp_path / "w") as executor:
        assert executor.session("a").execute(WHERE).stdout == f"{tmp_path}/deep/coding\n"
        assert executor.session("b", work_dir="own").execute(WHERE).stdout == f"{tmp_path}/own\n"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    value = {"work_dir": tmp_path / "file", "use_docker": False}
    with (
        Executor(code_execution_config=value, workspace=tmp_path / "w") as executor,
        pytest.raises(InvalidWorkDir, match="file cannot be made: File exists"),
    ):
        executor.session()
