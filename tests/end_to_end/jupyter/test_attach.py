"""Sessions seen from other processes: listed, their variables shown, and attached to by a Jupyter console in a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from tests.conftest import EVERY_KIND, KINDS, Command
from tests.support.command_line import kernelexec, refused
from tests.support.pace import BOUND
from tests.support.terminal import Terminal

#: Nothing runs in containers in the gate: that clients reach kernels there is shown by those of Jupyter's managers.
ALSO_CONFINED = ()


@pytest.fixture(params=EVERY_KIND)
def alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Any:
    """An executor with a place for private directories of its own."""
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(short_path))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    with Executor(request.param, workspace=tmp_path / "spaces", config=KINDS[request.param]) as executor:
        yield executor


def listed(command: Command, cwd: Path, directory: Path) -> list[dict[str, Any]]:
    """What is listed of the sessions in one place for private directories."""
    done = command(cwd, "sessions", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [row for row in json.loads(done.stdout) if str(row["connection_file"]).startswith(f"{directory}/")]


def test_living_sessions_are_listed_with_their_kernels(
    alone: Executor, tmp_path: Path, short_path: Path, in_process: Command
) -> None:
    assert listed(in_process, tmp_path, short_path) == []
    item = alone.session("one")
    two = alone.session("two")
    two.restart()
    rows = listed(in_process, tmp_path, short_path)
    assert [(row["name"], row["workspace"], row["kernel_epoch"]) for row in rows] == [
        ("one", str(item.workspace), 1),
        ("two", str(two.workspace), 2),
    ]
    assert [row["connection_file"] for row in rows] == [str(item.connection_file), str(two.connection_file)]
    two.close()
    plain = kernelexec(tmp_path, "sessions").stdout
    assert [line.split("\t")[0] for line in plain.splitlines() if str(short_path) in line] == ["one"]


def test_the_variables_of_a_session_are_shown_idle_and_busy(alone: Executor, tmp_path: Path, in_process: Command) -> None:
    session = alone.session("looked-at")
    session.execute("x = [1, 2]\ny = 'a\\x1b[31m[red]b'")
    text = "a\x1b[31m[red]b"
    sizes = [f"{sys.getsizeof(value)} B" for value in ([1, 2], text)]
    expected = [["x", "list", "2", sizes[0], "[1, 2]"], ["y", "str", "12", sizes[1], repr(text)]]
    done = in_process(tmp_path, "variables", "looked-at")
    assert (done.returncode, [line.split("\t") for line in done.stdout.splitlines()]) == (0, expected)
    running = session.execute("import time; time.sleep(600)", wait=0.01, timeout=600)
    actual = json.loads(kernelexec(tmp_path, "variables", "looked-at", "--json").stdout)
    assert {"x", "y"} <= {variable["name"] for variable in actual["variables"]}
    ended = session.interrupt(running.execution_id)
    assert ended is not None
    assert ended.state == "kept"
    assert session.execute("x").text == "[1, 2]"


def test_a_session_that_is_not_there_or_not_the_only_one_is_refused(
    alone: Executor, tmp_path: Path, short_path: Path, in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kernelexec.executor.control.control_client.runtime_bases", lambda: iter([short_path])
    )  # not of other programs
    assert "You have no open session" in refused(in_process(tmp_path, "variables"))
    alone.session("analysis").execute("x = 1")
    assert "did you mean 'analysis'?" in refused(in_process(tmp_path, "variables", "anlysis"))
    assert in_process(tmp_path, "variables").stdout.startswith("x\tint")
    with Executor(workspace=tmp_path / "others", config=alone.config) as other:
        other.session("analysis")
        alone.session("second")
        assert "2 sessions are named 'analysis'" in refused(in_process(tmp_path, "variables", "analysis"))
        assert "3 sessions are open" in refused(in_process(tmp_path, "variables"))


def test_a_kernel_that_is_gone_is_reported(alone: Executor, tmp_path: Path, in_process: Command) -> None:
    session = alone.session("dead")
    session.execute("import os; os._exit(1)")
    assert "has no running kernel" in refused(in_process(tmp_path, "variables", "dead"))


def test_session_notes_changed_by_a_kernel_harm_no_other_process(
    alone: Executor, tmp_path: Path, short_path: Path, in_process: Command
) -> None:
    session = alone.session("honest")
    assert session.connection_file is not None
    note = session.connection_file.parent.parent / "session.json"
    for text in ("[" * 10_000, '{"name": "../x", "workspace": ""}', '{"name": 3, "workspace": []}', "\0"):
        note.write_text(text)
        assert listed(in_process, tmp_path, short_path) == []
    note.unlink()
    note.symlink_to("/etc/passwd")
    assert listed(in_process, tmp_path, short_path) == []


def test_a_dead_owners_sessions_are_not_listed(short_path: Path, tmp_path: Path, in_process: Command) -> None:
    code = "from kernelexec import Executor\nwith Executor('local', config={'preload': ()}) as e:\n"
    code += "    e.session('orphan'); print('up', flush=True); input()"
    words = [sys.executable, "-c", code]
    env = {"KERNELEXEC_RUNTIME_DIR": str(short_path), "TMPDIR": str(short_path), "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert "orphan" in in_process(tmp_path, "sessions", KERNELEXEC_RUNTIME_DIR=str(short_path)).stdout
        owner.kill()
    assert "orphan" not in in_process(tmp_path, "sessions", KERNELEXEC_RUNTIME_DIR=str(short_path)).stdout


def test_a_jupyter_console_attaches_to_a_live_session(session: Session, tmp_path: Path) -> None:
    pytest.importorskip("jupyter_console", reason="jupyter_console is not installed: pip install --group test")
    session.execute("x = 40")
    words = [sys.executable, "-m", "jupyter_console", "--existing", str(session.connection_file), "--simple-prompt"]
    with Terminal(words, cwd=tmp_path) as console:
        console.expect(r"In \[\d+\]:")
        console.send("y = x + 2\n")
        console.expect(r"In \[\d+\]:")
        console.send("y\n")
        console.expect(r"42")
        console.expect(r"In \[\d+\]:")
        console.send("\x04")
        deadline = time.monotonic() + BOUND
        while console.status() is None and time.monotonic() < deadline:
            console.send("y\n")
            console.idle()
    assert session.execute("y").text == "42"
