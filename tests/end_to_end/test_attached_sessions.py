"""A session that two programs use: its state is one, its cells run in turn, each program knows of the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kernelexec
from kernelexec import Executor, Session
from kernelexec.control.attached_session import AsyncAttachedSession
from kernelexec.control.selection import find_session
from kernelexec.errors import Closed, InvalidRequest, InvalidTimeout, OwnerEnded, UnknownSession
from kernelexec.results import ExecutionResult, Stream
from tests.conftest import EVERY_KIND, KINDS
from tests.support.command_line import kernelexec as command_line

OTHER = """
import json, sys
import kernelexec

with kernelexec.attach(sys.argv[1]) as session:
    print("attached", flush=True)
    for line in sys.stdin:
        result = session.execute(json.loads(line))
        print(json.dumps([result.text, list(result.notes), result.execution_count]), flush=True)
"""
BOUND = 60


@pytest.fixture(params=EVERY_KIND)
def owner(request: pytest.FixtureRequest, tmp_path: Path, own_runtime: Path) -> Iterator[Executor]:
    del own_runtime
    with Executor(request.param, workspace=tmp_path / "spaces", config=KINDS[request.param]) as executor:
        yield executor


@pytest.fixture
def session(tmp_path: Path, own_runtime: Path) -> Iterator[Session]:
    del own_runtime
    with Executor("local", workspace=tmp_path / "spaces") as executor:
        yield executor.session("a")


@pytest.fixture
def own_runtime(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Path:
    """A directory for private directories of its own, so that no other session is open there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    return short_path


class OtherProgram:
    """A program that is attached to a session, and runs cells in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, code: str) -> None:
        assert self.process.stdin is not None
        print(json.dumps(code), file=self.process.stdin, flush=True)

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def run(self, code: str) -> Any:
        self.send(code)
        return self.receive()


@contextmanager
def other_program(name: str, expected: int = 0) -> Iterator[OtherProgram]:
    words = [sys.executable, "-c", OTHER, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "attached\n"
            yield OtherProgram(process)
            process.stdin.close()
            assert process.wait(BOUND) == expected
        finally:
            process.kill()


def test_two_programs_share_the_state_in_turns_and_each_knows_of_the_other(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("log = ['owner']")
    with other_program("a") as other:
        assert other.run("log.append('other')\nlen(log)") == ["2\n", [], 2]
        result = session.execute("log")
        assert result.value == ["owner", "other"]
        client = f"process {other.process.pid} (-c)"
        attached, count = result.notes[-2:]
        assert attached == f"{client} has attached to this session: its cells run in turn with yours."
        assert count == f"1 cell of {client} ran here since your last one."
        assert [note for note in session.execute("1").notes if client in note] == []
        other.send("import time\nfor n in range(5): log.append(n); time.sleep(0.1)")
        wait_until(lambda: session.busy)
        waited = session.execute("log[-1]")
        assert waited.value == 4, "the owner's cell waits for the other's"
        assert other.receive()[0] == ""
        assert f"1 cell of {client} ran here since your last one." in waited.notes
    assert session.execute("len(log)").value == 7


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_calls_reach_the_owners_session(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("x = 1")
    outputs: list[Any] = []
    with kernelexec.attach("a") as attached:
        assert (attached.name, attached.workspace, attached.process) == ("a", session.workspace, os.getpid())
        result = attached.execute("print('out')\nx", on_output=outputs.append)
        assert (result.value, [type(output).__name__ for output in outputs]) == (1, ["Stream", "ExecuteResult"])
        assert attached.execute("1/0").error.ename == "ZeroDivisionError"  # type: ignore[union-attr]
        assert attached.execute("input()", stdin=None).status == "error"
        command = attached.execute_command("echo $A; echo e >&2; exit 3", env={"A": "b"})
        assert (command.stdout, command.stderr, command.exit_code) == ("b\n", "e\n", 3)
        *parts, last = attached.stream("print(1)\nprint(2)")
        assert "".join(part.text for part in parts if isinstance(part, Stream)) == "1\n2\n"
        assert isinstance(last, ExecutionResult)
        assert "x" in attached.variables().names
        assert attached.variables(names=["x"]).variables[0].text == "1"
        assert attached.interrupt() is None
        with pytest.raises(InvalidTimeout):
            attached.execute("1", timeout=-1)
        assert repr(attached).startswith(f"<AttachedSession a {session._target.isolation} · process {os.getpid()} · ")
    with pytest.raises(Closed):
        attached.execute("1")
    assert session.execute("x").ok


def test_a_running_cell_is_interrupted_by_each_side(session: Session) -> None:
    with kernelexec.attach("a") as attached:
        session.execute("import time; time.sleep(600)", wait=0.1)
        execution_id = attached.interrupt()
        assert execution_id is not None
        assert session.wait_for(execution_id).result.interrupted == "request"  # type: ignore[union-attr]
        results: list[ExecutionResult] = []
        thread = threading.Thread(target=lambda: results.append(attached.execute("time.sleep(600)")))
        thread.start()
        wait_until(lambda: session.busy)
        session.interrupt()
        thread.join(BOUND)
        assert results[0].interrupted == "request"
        assert results[0].state == "kept"


def test_a_program_that_goes_away_leaves_no_cell_running(session: Session) -> None:
    with other_program("a", -signal.SIGKILL) as other:
        other.send("import time; time.sleep(600)")
        wait_until(lambda: session.busy)
        (execution_id,) = session.executions()
        other.process.kill()
        progress = session.wait_for(execution_id, wait=BOUND)
        assert progress.result is not None
        assert (progress.result.interrupted, progress.result.state) == ("request", "kept")


def test_the_end_of_the_owner_is_an_error_with_its_reason(tmp_path: Path, own_runtime: Path) -> None:
    del own_runtime
    code = (
        "import sys\nfrom kernelexec import Executor\nwith Executor('local', workspace=sys.argv[1]) as e:\n    e.session('a')\n"
    )
    words = [sys.executable, "-c", f"{code}    print('ready', flush=True)\n    input()", str(tmp_path / "spaces")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with kernelexec.attach("a", process=process.pid) as attached:
            assert attached.execute("x = 1").ok
            killing = threading.Timer(0.5, process.kill)
            killing.start()
            with pytest.raises(OwnerEnded, match=f"Process {process.pid} ended during the call") as caught:
                attached.execute("import time; time.sleep(600)")
            assert caught.value.may_have_run
            process.wait(BOUND)
            with pytest.raises(OwnerEnded, match=f"Process {process.pid} has ended"):
                attached.execute("x")
    with pytest.raises(UnknownSession, match="You have no open session"):
        kernelexec.attach("a")


def test_a_session_that_its_owner_closes_ends_for_both(session: Session) -> None:
    with kernelexec.attach("a") as attached:
        session.close()
        with pytest.raises(UnknownSession, match="No session 'a' is open"):
            attached.execute("1")


def test_a_client_can_end_the_session_for_both(session: Session) -> None:
    with kernelexec.attach() as attached:
        attached.end_session()
    with pytest.raises(Closed):
        session.execute("1")


def test_a_session_is_chosen_by_its_name_and_process(session: Session) -> None:
    for name in (None, "a", f"a@{os.getpid()}"):
        with kernelexec.attach(name) as attached:
            assert attached.name == session.name
    with pytest.raises(UnknownSession, match=r"No open session 'b'.*must be one of a@"):
        kernelexec.attach("b")
    with pytest.raises(UnknownSession):
        kernelexec.attach("a", process=1)


def test_a_second_program_gets_a_note_about_the_session_that_lives_elsewhere(session: Session) -> None:
    session.execute("x = 1")
    workspace = session.workspace.parent
    code = (
        "import sys\nfrom kernelexec import Executor\nwith Executor('local', workspace=sys.argv[1]) as e:\n"
        "    result = e.session('a').execute('x')\n    print(result.state, result.notes[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(workspace)], capture_output=True, text=True, check=True, timeout=BOUND
    )
    name = f"a@{os.getpid()}"
    assert done.stdout.startswith(
        f"new A new kernel: process {os.getpid()} has a session of this name and workspace open, with its own state; "
        f'`kernelexec.attach("{name}")` and `kernelexec attach {name}` reach that one.'
    )
    assert session.execute("x").value == 1
    with Executor("local", workspace=workspace) as twin, twin.session("a") as other:
        assert other.execute("1").state == "new"
        with pytest.raises(InvalidRequest, match="2 sessions are named 'a'"):
            kernelexec.attach("a")
    with Executor("local", workspace=workspace) as elsewhere, elsewhere.session("b") as other:
        assert other.execute("1").state == "kept"


def test_the_command_line_sees_and_stops_sessions_of_programs(session: Session, tmp_path: Path) -> None:
    session.execute("1")
    assert json.loads(command_line(tmp_path, "ps", "--json").stdout)[0]["state"] == "idle"
    done = command_line(tmp_path, "stop", "--process", str(os.getpid()))
    assert (done.returncode, "is no server of kernelexec" in done.stderr) == (125, True)
    assert command_line(tmp_path, "stop", "a").returncode == 0
    with pytest.raises(Closed):
        session.execute("1")


def test_an_asynchronous_program_attaches(session: Session) -> None:
    async def use() -> Any:
        async with AsyncAttachedSession(find_session("a")) as attached:
            first = await attached.execute("x = 1\nx")
            items = [item async for item in attached.stream("print(x)")]
            cell = asyncio.create_task(attached.execute("import time; time.sleep(600)"))
            await asyncio.to_thread(wait_until, lambda: session.busy)
            cell.cancel()
            await asyncio.to_thread(wait_until, lambda: not session.busy)
            return first.value, len(items), (await attached.execute("x")).state

    assert asyncio.run(use()) == (1, 2, "kept")


@pytest.mark.parametrize("do", ["execute", "look", "attach", "nothing"])
def test_a_client_that_leaves_at_any_moment_ends_nothing_else(session: Session, do: str) -> None:
    live = find_session("a")
    key = (live.root / "control.key").read_text(encoding="ascii")
    code = "while True: print('z' * 100_000, flush=True)"
    arguments = {"session": "a", "code": code} if do == "execute" else {"session": "a"} if do == "attach" else {}
    line = json.dumps({"key": key, "do": do, **arguments}).encode() + b"\n"
    for number in range(12):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(live.root / "control"))
            client.sendall(line)
            time.sleep(number * 0.01)
        if do == "execute":
            wait_until(lambda: not session.busy)
    assert session.execute("'still here'").value == "still here"


def test_an_interrupted_program_ends_and_its_cell_with_it(session: Session) -> None:
    code = (
        "import kernelexec\nwith kernelexec.attach('a') as session:\n    print('attached', flush=True)\n"
        "    session.execute('import time; time.sleep(600)')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        wait_until(lambda: session.busy)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND)
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not session.busy)
    assert session.execute("1").state == "kept"


@pytest.mark.parametrize("arguments", [{"code": b"1"}, {"code": "1", "stdin": object()}])
def test_what_cannot_be_sent_is_refused(session: Session, arguments: Any) -> None:
    with kernelexec.attach("a") as attached, pytest.raises(InvalidRequest, match="cannot be sent to another process"):
        attached.execute(**arguments)
    with pytest.raises(InvalidRequest, match="5 is no name of a session"):
        kernelexec.attach(5)  # type: ignore[arg-type]  # a wrong one
    assert not session.busy
