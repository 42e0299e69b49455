"""Where a session's directory may lie: three errors, each by its own message, wherever links lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, InvalidWorkDir
from kernelexec.config import load
from tests.conftest import Command
from tests.support.command_line import LOCAL, refused
from tests.support.night import named_cases


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path.resolve()
    for name in ("allowed/in/deep", "also", "allowedly", "outside"):
        (base / name).mkdir(parents=True)
    (base / "allowed" / "file").touch()
    links = {"allowed/out": "../outside", "allowed/etc": "/etc", "to_allowed": "allowed", "allowed/loop": "loop"}
    for name, target in links.items():
        (base / name).symlink_to(target)
    return base


NOT_WITHIN = "is not within the allowed paths: {base}/allowed, {base}/also."
CHOICES: dict[str, tuple[str, str | None]] = {
    "an allowed path": ("{base}/allowed", None),
    "another one": ("{base}/also", None),
    "in one": ("{base}/allowed/in/deep", None),
    "by a link": ("{base}/to_allowed/in", None),
    "up and down": ("{base}/outside/../allowed/in", None),
    "the system's": ("/etc", NOT_WITHIN),
    "above": ("{base}", NOT_WITHIN),
    "beside": ("{base}/outside", NOT_WITHIN),
    "a name that begins alike": ("{base}/allowedly", NOT_WITHIN),
    "up": ("{base}/allowed/..", NOT_WITHIN),
    "up and beside": ("{base}/allowed/../outside", NOT_WITHIN),
    "a link that leads out": ("{base}/allowed/out", NOT_WITHIN),
    "a link to the system": ("{base}/allowed/etc", NOT_WITHIN),
    "missing, outside": ("{base}/nothing", NOT_WITHIN),
    "missing": ("{base}/allowed/nothing", "work_dir '{base}/allowed/nothing' does not exist: create it first."),
    "a loop": ("{base}/allowed/loop", "does not exist: create it first."),
    "a file": ("{base}/allowed/file", "work_dir '{base}/allowed/file' is not a directory."),
}


LIKE_OTHERS = {"another one", "in one", "the system's", "up", "up and down", "a link to the system", "missing, outside"}


@pytest.mark.parametrize(("work_dir", "text"), named_cases(CHOICES, CHOICES.keys() - LIKE_OTHERS))
def test_a_session_works_only_within_them(base: Path, work_dir: str, text: str | None) -> None:
    config = {"allowed_paths": [base / "to_allowed", base / "also"], "notebook": False}
    named = work_dir.format(base=base)
    with Executor("local", workspace=base / "workspaces", config=config) as executor:
        if text is None:
            assert executor.session("a", work_dir=named).workspace == Path(named).resolve()
            return
        with pytest.raises(InvalidWorkDir) as caught:
            executor.session("a", work_dir=named)
        assert text.format(base=base) in str(caught.value)
        assert executor.sessions() == ()
        assert executor.session("b").workspace == base / "workspaces" / "b"


def test_without_any_all_are(base: Path) -> None:
    with Executor("local", workspace=base / "workspaces") as executor:
        assert executor.session("a", work_dir=base / "outside").workspace == base / "outside"


def test_the_configured_directory_is_not_made_where_it_is_not_allowed(base: Path) -> None:
    config: dict[str, Any] = {"allowed_paths": [base / "allowed"], "work_dir": base / "outside" / "made"}
    refusal = pytest.raises(InvalidWorkDir, match="is not within the allowed paths")
    with Executor("local", workspace=base / "workspaces", config=config) as executor, refusal:
        executor.session("a")
    assert not (base / "outside" / "made").exists()
    config["work_dir"] = base / "allowed" / "made"
    with Executor("local", workspace=base / "workspaces", config=config) as executor:
        assert executor.session("a").workspace == base / "allowed" / "made"


def test_they_count_from_the_current_directory_or_the_home(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    monkeypatch.setenv("HOME", str(base / "also"))
    with Executor("local", workspace=base / "workspaces", config={"allowed_paths": ["allowed", "~"]}) as executor:
        assert executor.session("a", work_dir="allowed/in").workspace == base / "allowed" / "in"
        assert executor.session("b", work_dir=base / "also").workspace == base / "also"


@pytest.mark.parametrize("settings", [[""], "a", [5], ["a\0"], [None]])
def test_invalid_allowed_paths_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^Configuration: allowed_paths"):
        load("local", config={"allowed_paths": settings})


def test_a_command_starts_within_the_workspace_only(base: Path) -> None:
    with Executor("local", workspace=base / "workspaces", config={"allowed_paths": [base / "allowed"]}) as executor:
        session = executor.session("a", work_dir=base / "allowed")
        assert session.execute_command("pwd", work_dir="in/deep").stdout == f"{base}/allowed/in/deep\n"
        for work_dir, text in {"out": "is outside of", "nothing": "does not exist", "file": "is not a directory"}.items():
            with pytest.raises(InvalidWorkDir, match=text):
                session.execute_command("pwd", work_dir=work_dir)


def test_the_command_line_has_them(base: Path, in_process: Command) -> None:
    (base / "allowed" / "script.py").write_text("import os; os.getcwd()")
    allowed = ("--allowed-paths", "allowed", "--allowed-paths", "also")
    done = in_process(base, "exec", "import os; os.getcwd()", *LOCAL, *allowed, "--work-dir", "also")
    assert done.stdout == f"'{base}/also'\n"
    assert in_process(base, "run", "allowed/script.py", *LOCAL, *allowed).stdout == f"'{base}/allowed'\n"
    for args in (("exec", "1"), ("exec", "1", "--work-dir", "allowed/out"), ("run", "-", "--work-dir", "outside")):
        line = refused(in_process(base, *args, *LOCAL, *allowed, stdin=b"1"))
        assert f"is not within the allowed paths: {base}/allowed, {base}/also." in line
    for command in ("exec", "run", "repl", "mcp"):
        assert "--allowed-paths" in in_process(base, command, "--help", COLUMNS="200").stdout
