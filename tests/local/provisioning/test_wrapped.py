"""Kernels that are started behind a prefix: the program in between, the interpreter that it finds, and the confinement."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, KernelStartFailed, Session
from kernelexec.config import load
from tests.local.provisioning.test_confinement import LAYERS
from tests.support.engine import needs_bubblewrap
from tests.support.night import at_night
from tests.support.takeovers import gone, wait_until
from tests.support.virtual_environments import made_venv

#: A program that stays in between and passes no signal on, as ``conda run`` does.
STAYING = """sh -c 'FOO=1 "$@"; exit $?' sh"""
PREFIXES = {"becomes it": "env FOO=1", "stays": STAYING}


def executor(directory: Path, prefix: str, isolation: Any = "local", **more: Any) -> Executor:
    programs = {"prefix": prefix, "prefix_kernel": True}
    return Executor(
        isolation, workspace=directory, config={"python": sys.executable, "programs": programs, "checkpoints": "named", **more}
    )


BUBBLEWRAP = pytest.param("bubblewrap", marks=needs_bubblewrap)


@pytest.fixture
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    isolation = "bubblewrap" if request.param == "bubblewrap" else "local"
    with executor(tmp_path, PREFIXES.get(request.param, STAYING), isolation) as created:
        yield created.session("own")


@pytest.mark.parametrize("session", [*PREFIXES, BUBBLEWRAP], indirect=True)
def test_cells_and_commands_run_behind_it_and_are_confined(session: Session, tmp_path: Path) -> None:
    result = session.execute("x = 1; import os; os.environ['FOO']")
    assert result.text == "'1'"
    assert set(result.confinement) == LAYERS
    assert session.execute_command("echo $FOO").stdout == "1\n"
    assert "Error" in session.execute(f"open({str(tmp_path / 'made')!r}, 'w')").text
    assert session.execute("x").text == "1"


@pytest.mark.parametrize("session", [*at_night(*PREFIXES), BUBBLEWRAP], indirect=True)
def test_a_timeout_keeps_the_state_and_a_restart_works(session: Session) -> None:
    session.execute("x = 1")
    late = session.execute("import time; time.sleep(600)", timeout=0.5)
    assert (late.interrupted, late.exit_code, late.state, late.kernel_epoch) == ("timeout", 124, "kept", 1)
    assert session.execute("x").text == "1"
    session.restart()
    assert session.execute("'x' in globals()").text == "False"


@pytest.mark.parametrize("session", [*at_night("becomes it"), "stays", BUBBLEWRAP], indirect=True)
def test_how_it_ended_is_reported_and_nothing_is_left(session: Session) -> None:
    pids = [int(session.execute_command("sleep 600 >/dev/null 2>&1 & echo $!").stdout)]
    pids += [int(session.execute(f"import os; os.get{name}pid()").text) for name in ("", "p")]
    ended = session.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (ended.exit_code, ended.state, ended.cause) == (128 + signal.SIGKILL, "lost", "killed")
    if session.execute("x = 2").isolation != "bubblewrap":  # its ids are its own
        wait_until(lambda: all(map(gone, {*pids} - {os.getpid()})))


def test_the_interpreter_is_the_one_that_the_prefix_finds(tmp_path: Path) -> None:
    venv = made_venv(tmp_path / "environment")
    directory = next(venv.glob("lib/python*/site-packages"))
    (directory / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    programs = {"prefix": f"env PATH={venv / 'bin'}:{os.environ['PATH']}", "prefix_kernel": True}
    with Executor("local", workspace=tmp_path / "w", config={"programs": programs}) as created:
        assert created.session("own").environment().prefix == str(venv)


def test_an_interpreter_in_the_workspace_is_confined_before_it_starts(tmp_path: Path) -> None:
    with executor(tmp_path / "w", "./mine") as created:
        program = tmp_path / "w" / "own" / "mine"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho run > {tmp_path / "escaped"}\necho run > ran\nexec "$@"\n')
        program.chmod(0o755)
        assert created.session("own").execute("1 + 1").text == "2"
    assert (program.parent / "ran").exists()
    assert not (tmp_path / "escaped").exists()


def test_a_prefix_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with (
        executor(tmp_path, "no-such-program run") as created,
        pytest.raises(KernelStartFailed, match="no-such-program cannot be"),
    ):
        created.session("own").execute("1")


def test_an_interpreter_without_ipykernel_is_reported_with_the_prefix(tmp_path: Path) -> None:
    venv = made_venv(tmp_path / "environment")
    programs = {"prefix": f"env PATH={venv / 'bin'}:/usr/bin:/bin", "prefix_kernel": True}
    with (
        Executor("local", workspace=tmp_path / "w", config={"programs": programs}) as created,
        pytest.raises(KernelStartFailed, match=r"python behind `env PATH=.*` has no ipykernel"),
    ):
        created.session("own").execute("1")


@pytest.mark.parametrize(
    ("isolation", "config", "reason"),
    [
        ("local", {"programs": {"prefix_kernel": True}}, "programs.prefix must be set too"),
        ("container", {"programs": {"prefix": "uv run", "prefix_kernel": True}}, "container.python"),
        ("local", {"programs": {"prefix": "uv run", "prefix_kernel": True}, "pool": {"size": 1}}, "pool.size must be 0"),
    ],
)
def test_where_it_cannot_be_it_is_refused(isolation: Any, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        load(isolation, config=config)
