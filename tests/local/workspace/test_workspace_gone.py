"""A workspace that was removed while its session lived: running cells run on, and a kernel that cannot start says why."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidWorkDir, KernelStartFailed
from kernelexec.provisioning.launch.kernelspec import explain_start_failure
from kernelexec.workspace import Workspace
from tests.support.pace import until_equal
from tests.support.remains import processes_of

GONE = "^The workspace {} is gone: make that directory again to go on.$"
WAYS = {"its own": None, "one that was chosen": "chosen"}


@pytest.mark.parametrize("chosen", WAYS.values(), ids=WAYS)
def test_a_new_kernel_has_no_place_to_start_and_says_so(chosen: str | None, tmp_path: Path) -> None:
    config = {"notebook": False}
    with Executor(isolation="local", workspace=tmp_path / "w", config=config) as executor:
        if chosen:
            (tmp_path / chosen).mkdir()
        session = executor.session("s", work_dir=tmp_path / chosen if chosen else None)
        session.execute("x = 1")
        shutil.rmtree(session.workspace)
        assert session.execute("x").text == "1"
        died = session.execute("import os; os._exit(1)")
        assert (died.state, died.lost_names) == ("lost", ("x",))
        for _ in range(2):
            with pytest.raises(KernelStartFailed, match=GONE.format(session.workspace)) as caught:
                session.execute("x")
            assert not caught.value.may_have_run
        with pytest.raises(KernelStartFailed, match=GONE.format(session.workspace)):
            session.restart()
        assert not session.workspace.exists()
        session.workspace.mkdir()
        again = session.execute("import os; os.getcwd()")
        assert again.text == f"'{session.workspace}'"
        assert "Lost: x." in again.notes[0]


def test_a_session_without_a_kernel_yet_says_it_too(tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path, config={"notebook": False}) as executor:
        session = executor.session("s")
        shutil.rmtree(session.workspace)
        with pytest.raises(KernelStartFailed, match=GONE.format(session.workspace)):
            session.restart()
        with pytest.raises(KernelStartFailed, match=GONE.format(session.workspace)):
            session.execute("1")
        with pytest.raises(InvalidWorkDir, match=GONE.format(session.workspace)):
            session.execute_command("pwd", work_dir=".")


def test_a_file_in_its_place_is_not_called_gone(tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path, config={"notebook": False}) as executor:
        session = executor.session("s")
        session.workspace.rmdir()
        session.workspace.touch()
        with pytest.raises(KernelStartFailed, match=f"No kernel can start in the workspace {session.workspace}: Not a dir"):
            session.restart()


@pytest.mark.parametrize("work_dir", ["", ".", "inner", "nothing"])
def test_a_command_has_no_place_to_start(work_dir: str, tmp_path: Path) -> None:
    location = Workspace.create_for_session(tmp_path, "s")
    location.path.rmdir()
    with pytest.raises(InvalidWorkDir, match=GONE.format(location.path)):
        location.directory(work_dir)


def test_a_directory_under_a_current_one_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidWorkDir, match=r"^w/a cannot be made: No such file or directory\.$"):
        Workspace.create_for_session(Path("w"), "a")


PYTHON = "/p/python"
SAID: dict[str, tuple[OSError, str]] = {
    "the directory is missing": (FileNotFoundError(2, "No such file", "/w"), "The workspace /w is gone"),
    "the directory is closed": (PermissionError(13, "Permission denied", "/w"), "in the workspace /w: Permission denied."),
    "the interpreter is missing": (FileNotFoundError(2, "No such file", PYTHON), f"{PYTHON} cannot be started: No such file."),
    "the interpreter is no program": (OSError(8, "Exec format error", PYTHON), "cannot be started: Exec format error."),
    "neither was named": (OSError(12, "Cannot allocate memory"), "The kernel cannot be started: [Errno 12] Cannot allocate"),
    "something else was named": (FileNotFoundError(2, "No such file", "/x"), "The kernel cannot be started: [Errno 2]"),
}


@pytest.mark.parametrize(("exc", "expected"), SAID.values(), ids=SAID)
def test_only_what_the_system_named_is_blamed(exc: OSError, expected: str) -> None:
    message = explain_start_failure(exc, PYTHON, "/w")
    assert expected in message
    assert (PYTHON in message) is ("interpreter" in message)


def test_an_interpreter_whose_own_interpreter_is_missing_is_not_called_missing(tmp_path: Path) -> None:
    program, link = tmp_path / "program", tmp_path / "link"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    link.symlink_to("/no/such/python")
    before = {*processes_of(os.getpid())}
    for python, expected in (
        (program, "the file exists, but its interpreter"),
        (link, "/no/such/python, which it is a link to"),
    ):
        config = {"python": str(python)}
        with Executor(isolation="local", workspace=tmp_path, config=config) as executor:
            with pytest.raises(KernelStartFailed, match=f"^{python} cannot be started: .*{expected}"):
                executor.session("s")
            until_equal(lambda: {*processes_of(os.getpid())} - before, set())
