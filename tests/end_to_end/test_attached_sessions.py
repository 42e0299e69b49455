"""A session that two programs use: its state is one, its cells run in turn, each program knows of the other."""

from __future__ import annotations

import asyncio
import json
import os
import re
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

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import kernelexec
from kernelexec import AsyncSession, CheckpointRefused, Executor, KernelexecError, Session
from kernelexec.errors import CapacityReached, Closed, InvalidRequest, InvalidTimeout, OwnerEnded, UnknownSession
from kernelexec.executor.control.attached_session import AsyncAttachedSession
from kernelexec.executor.control.control_client import ControlClient, find_session
from kernelexec.executor.control.control_socket import KEYLESS_MAX
from kernelexec.provisioning.runtime.discovery import LiveSession
from kernelexec.results import DisplayData, ExecutionResult, Stream
from kernelexec.text import clean
from tests.conftest import EVERY_KIND, KINDS, Command
from tests.support.command_line import kernelexec as command_line
from tests.support.night import at_night
from tests.support.pace import BOUND, RunningCell, until

OTHER = """
import json, sys
import kernelexec

with kernelexec.attach(sys.argv[1]) as session:
    print("attached", flush=True)
    for line in sys.stdin:
        result = session.execute(json.loads(line))
        print(json.dumps([result.text, list(result.notes), result.execution_count]), flush=True)
"""
#: Holds as many connections as it can without the key, and replaces those that are closed, without end.
HOSTILE = """
import select, socket, sys

held, poll = {}, select.poll()
print("begun", flush=True)
while True:
    try:
        for _ in range(50):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            client.connect(sys.argv[1])
            if len(held) % 3:
                client.send(b"0" * (len(held) % 300))
            held[client.fileno()] = client
            poll.register(client, select.POLLHUP)
    except OSError:
        pass
    for number, _ in poll.poll(10):
        poll.unregister(number)
        held.pop(number).close()
"""

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_all_calls_reach_the_owners_session",)


@pytest.fixture(params=EVERY_KIND)
def owner(request: pytest.FixtureRequest, tmp_path: Path, own_runtime: Path) -> Iterator[Executor]:
    del own_runtime
    with Executor(
        request.param, workspace=tmp_path / "spaces", config={**KINDS[request.param], "checkpoints": "named"}
    ) as executor:
        yield executor


@pytest.fixture
def session(tmp_path: Path, own_runtime: Path) -> Iterator[Session]:
    del own_runtime
    with Executor("local", workspace=tmp_path / "spaces", config={"checkpoints": "named"}) as executor:
        yield executor.session("a")


@pytest.fixture
def own_runtime(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Path:
    """A directory for private directories of its own, and the only one that this process searches for sessions.

    Others search ``/tmp`` too, where any program may have sessions: there a session is named with its process.
    """
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(short_path))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    monkeypatch.setattr("kernelexec.executor.control.control_client.runtime_bases", lambda: iter([short_path]))
    return short_path


#: A session ``a`` of this process, as other programs name it.
OWN = f"a@{os.getpid()}"


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


def test_a_request_that_fails_by_our_own_mistake_is_in_the_owners_log(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_session: AsyncSession, **_options: object) -> None:
        raise AttributeError("our own mistake")

    del session
    with kernelexec.attach(OWN) as attached:
        monkeypatch.setattr(AsyncSession, "variables", fail)
        with pytest.raises(KernelexecError, match="Its log has the reason"):
            attached.variables()
    assert "our own mistake" in caplog.text


def test_an_answer_without_the_session_leaves_no_connection_open(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = list[BufferedByteReceiveStream]()

    async def receive(_client: ControlClient, stream: BufferedByteReceiveStream, _do: str) -> dict[str, Any]:
        streams.append(stream)
        return {}

    async def attach() -> None:
        async with AsyncAttachedSession(find_session(OWN)):
            pass

    del session
    monkeypatch.setattr(ControlClient, "receive", receive)
    with pytest.raises(KeyError):
        asyncio.run(attach())
    with pytest.raises(anyio.ClosedResourceError):
        asyncio.run(streams[0].receive())


def test_another_program_makes_checkpoints_and_goes_back_and_the_owner_learns_of_it(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("x = 1")
    with kernelexec.attach("a") as attached:
        checkpoint = attached.checkpoint("first")
        session.execute("x = 2; y = 3")
        assert [each.name for each in attached.checkpoints()] == ["first"]
        restored = attached.restore(checkpoint)
        assert (restored.names, restored.gone) == (("x",), ("y",))
        result = session.execute("x")
        assert result.value == 1
        assert any("has gone back to an earlier state of this session" in note for note in result.notes)
        assert attached.undo().cells == 1
        assert attached.restore(str(checkpoint.number)).names == ("x",)
        with pytest.raises(InvalidRequest, match="no checkpoint 'nope'"):
            attached.restore("nope")
        session.restart()
        session.execute("x = 4")
        newer = session.checkpoint()
        assert newer.number == checkpoint.number
        with pytest.raises(InvalidRequest, match="of an earlier kernel"):
            attached.restore(checkpoint)
        checkpoint.drop()
        assert [each.number for each in session.checkpoints()] == [newer.number]
        attached.checkpoints()[0].drop()
        assert session.checkpoints() == ()
        with pytest.raises(InvalidRequest, match=r"checkpoint\(\) makes one"):
            attached.undo()


def test_refusals_of_copies_are_the_owners_for_another_program(owner: Executor) -> None:
    session = owner.session("a")
    with kernelexec.attach("a") as attached:
        with pytest.raises(InvalidRequest, match="one branch at a call"):
            attached.branch(n=2)  # type: ignore[call-arg]  # the owner's argument
        with pytest.raises(InvalidRequest, match=r"no argument 'filse' \(did you mean 'files'"):
            attached.branch(filse="shared")  # type: ignore[call-arg]  # as one mistypes it
        assert owner.sessions() == ("a",)
        session.execute("import asyncio; waiting = asyncio.ensure_future(asyncio.sleep(60))\nwaiting.set_name('sleeper')")
        with pytest.raises(CheckpointRefused) as refused:
            attached.checkpoint()
        assert refused.value.obstacles == {"tasks": ("sleeper",)}


def test_files_go_back_for_another_program_and_for_the_command_line(
    owner: Executor, tmp_path: Path, in_process: Command
) -> None:
    session = owner.session("a")
    session.execute("open('data', 'w').write('1')")
    with kernelexec.attach("a") as attached:
        checkpoint = attached.checkpoint("raw", files=True)
        session.execute("open('data', 'w').write('22')")
        assert attached.restore(checkpoint, files=True).files == ("data",)
        session.execute("open('data', 'w').write('333')")
        assert attached.undo(files=True).files == ("data",)
    (session.workspace / "new").touch()
    undone = in_process(tmp_path, "undo", "a", "--to", "raw", "--files")
    assert "1 file was removed: new." in undone.stderr
    assert not (session.workspace / "new").exists()
    assert session.execute("open('data').read()").value == "1"


def test_the_command_line_lists_checkpoints_and_goes_back(session: Session, tmp_path: Path, in_process: Command) -> None:
    session.execute("x = 1")
    session.checkpoint("first")
    session.execute("x = 2")
    listed = in_process(tmp_path, "checkpoints", "a", "--json")
    assert [(row["name"], row["cell"]) for row in json.loads(listed.stdout)] == [("first", 2)]
    assert "first" in in_process(tmp_path, "checkpoints").stdout
    undone = in_process(tmp_path, "undo", "a")
    assert "1 cell undone · 1 variable: x" in undone.stderr
    assert session["x"] == 1
    session.execute("x = 3")
    assert "1 variable: x" in in_process(tmp_path, "undo", "a", "--to", "first").stderr
    assert session["x"] == 1
    refused = in_process(tmp_path, "undo", "a", "--cells", "5")
    assert "no checkpoint of the state before the last 5 cells" in refused.stderr
    assert refused.returncode == 125


def test_two_programs_share_the_state_in_turns_and_each_knows_of_the_other(owner: Executor) -> None:
    session = owner.session("a")
    session.execute("log = ['owner']")
    with other_program(OWN) as other:
        assert other.run("log.append('other')\nlen(log)") == ["2", [], 2]
        result = session.execute("log")
        assert result.value == ["owner", "other"]
        client = f"process {other.process.pid} (-c)"
        attached, count = result.notes[-2:]
        assert attached == f"{client} has attached to this session: its cells run in turn with yours."
        assert count == f"1 cell of {client} ran here since your last one."
        assert [note for note in session.execute("1").notes if client in note] == []
        waits = "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        other.send(f"{waits}for n in range(5): log.append(n)")
        until((session.workspace / "begun").exists)
        waiting = session.execute("log[-1]", wait=0.1)
        (session.workspace / "go").touch()
        waited = session.wait_for(waiting.execution_id).result
        assert waited is not None
        assert waited.value == 4, "the owner's cell waits for the other's"
        assert other.receive()[0] == ""
        assert f"1 cell of {client} ran here since your last one." in waited.notes
    assert session.execute("len(log)").value == 7


@pytest.mark.parametrize(("checkpoints", "state"), [("off", "lost"), ("each", "restored")])
def test_the_owner_learns_of_state_that_was_lost_in_a_clients_cell(
    checkpoints: str, state: str, tmp_path: Path, own_runtime: Path
) -> None:
    del own_runtime
    with Executor("local", workspace=tmp_path / "spaces", config={"checkpoints": checkpoints}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        with kernelexec.attach("a") as attached:
            ended = attached.execute("import os; os._exit(3)")
            actual = [(each.state, each.cause) for each in (ended, attached.execute("1"), attached.execute("1"))]
        assert actual == [(state, "exited"), ("kept", None), ("kept", None)]
        result = session.execute("1")
        assert (result.state, result.cause, result.lost_names) == (state, "exited", ended.lost_names)
        assert any("ended (exited)" in note for note in result.notes)
        assert session.execute("2").state == "kept"


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
        code = "import time; print('begun', flush=True); time.sleep(600)"
        cell = RunningCell(session, code, timeout=600)
        execution_id = attached.interrupt()
        assert execution_id is not None
        assert session.wait_for(execution_id).result.interrupted == "request"  # type: ignore[union-attr]
        assert cell.result().execution_id == execution_id
        cell = RunningCell(attached, code, timeout=600)
        session.interrupt()
        result = cell.result()
        assert (result.interrupted, result.state) == ("request", "kept")


def test_a_program_that_goes_away_leaves_no_cell_running(session: Session) -> None:
    with other_program(OWN, -signal.SIGKILL) as other:
        other.send("import time; open('begun', 'w').close(); time.sleep(600)")
        until((session.workspace / "begun").exists)
        (execution_id,) = session.executions()
        other.process.kill()
        progress = session.wait_for(execution_id, wait=BOUND)
        assert progress.result is not None
        assert (progress.result.interrupted, progress.result.state) == ("request", "kept")


def test_the_end_of_the_owner_is_an_error_with_its_reason(tmp_path: Path, own_runtime: Path) -> None:
    del own_runtime
    code = (
        "import sys\nfrom kernelexec import Executor\n"
        "with Executor('local', workspace=sys.argv[1], config={'preload': ()}) as e:\n    e.session('a')\n"
    )
    words = [sys.executable, "-c", f"{code}    print('ready', flush=True)\n    input()", str(tmp_path / "spaces")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with kernelexec.attach("a", process=process.pid) as attached:
            assert attached.execute("x = 1").ok
            code = "import time; print('begun', flush=True); time.sleep(600)"
            with pytest.raises(OwnerEnded, match=f"Process {process.pid} ended during the call") as caught:
                attached.execute(code, on_output=lambda _: process.kill())
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


@pytest.mark.parametrize("times", [1, *at_night(3)])
def test_a_session_whose_owner_ends_with_it_is_stopped_all_the_same(
    tmp_path: Path, own_runtime: Path, in_process: Command, times: int
) -> None:
    del own_runtime
    code = (
        "import sys, time\nfrom kernelexec import Closed, Executor\n"
        "with Executor('local', workspace=sys.argv[1], config={'preload': ()}) as e:\n"
        "    s = e.session('a')\n    print('ready', flush=True)\n    try:\n        while True:\n            s.execute('1')\n"
        "    except Closed:\n        pass\n"
    )
    for number in range(times):
        words = [sys.executable, "-c", code, str(tmp_path / str(number))]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            done = in_process(tmp_path, "stop", f"a@{process.pid}")
            assert (done.returncode, done.stderr) == (0, "kernelexec: session a: it has ended\n")
            assert process.wait(BOUND) == 0


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
        "import sys\nfrom kernelexec import Executor\n"
        "with Executor('local', workspace=sys.argv[1], config={'preload': ()}) as e:\n"
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
        created = other.execute("twin = 1")
        assert created.state == "new"
        with pytest.raises(InvalidRequest, match="2 sessions are named 'a'") as several:
            kernelexec.attach("a")
        addresses = re.findall(rf"{name}\.[a-z0-9_]{{8}}", str(several.value))
        assert len(set(addresses)) == 2
        (first,) = re.findall(r"attach (a@[\w.]+)", created.notes[0])
        assert first in addresses
        for address in addresses:
            with kernelexec.attach(address) as attached:
                assert attached.execute("'twin' in globals()").value == (address != first)
        with pytest.raises(InvalidRequest, match="2 sessions are named"):
            kernelexec.attach(name)
    with Executor("local", workspace=workspace) as elsewhere, elsewhere.session("b") as other:
        assert other.execute("1").state == "kept"


def test_the_command_line_sees_and_stops_sessions_of_programs(session: Session, tmp_path: Path, in_process: Command) -> None:
    session.execute("1")
    rows = json.loads(in_process(tmp_path, "ps", "--json").stdout)
    assert [(row["name"], row["state"]) for row in rows if row["pid"] == os.getpid()] == [("a", "idle")]
    done = in_process(tmp_path, "stop", "--process", str(os.getpid()))
    assert (done.returncode, "is no server of kernelexec" in done.stderr) == (125, True)
    assert command_line(tmp_path, "stop", OWN).returncode == 0
    with pytest.raises(Closed):
        session.execute("1")


def test_an_asynchronous_program_attaches(session: Session) -> None:
    async def use() -> Any:
        async with AsyncAttachedSession(find_session("a")) as attached:
            first = await attached.execute("x = 1\nx")
            items = [item async for item in attached.stream("print(x)")]
            cell = asyncio.create_task(attached.execute("import time; time.sleep(600)"))
            await asyncio.to_thread(until, lambda: session.busy)
            cell.cancel()
            await asyncio.to_thread(until, lambda: not session.busy)
            return first.value, len(items), (await attached.execute("x")).state

    assert asyncio.run(use()) == (1, 2, "kept")


def test_answers_are_encoded_in_a_thread_and_come_in_order(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def clean_and_note(value: object) -> Any:
        threads.append(threading.current_thread().name)
        return clean(value)

    monkeypatch.setattr("kernelexec.executor.control.control_socket.clean", clean_and_note)
    code = "for number in range(20): display({'application/json': [[number]] * 1000}, raw=True)"
    with kernelexec.attach("a") as attached:
        outputs = attached.execute(code).outputs
    numbers = [output.data["application/json"][0][0] for output in outputs if isinstance(output, DisplayData)]
    assert numbers == list(range(20))
    assert len(threads) > 20
    assert all(name.startswith("AnyIO worker thread") for name in threads)


@pytest.mark.parametrize("do", ["execute", "attach", *at_night("look", "nothing")])
def test_a_client_that_leaves_at_any_moment_ends_nothing_else(session: Session, do: str) -> None:
    live = find_session("a")
    key = (live.root / "control.key").read_text(encoding="ascii")
    code = "while True: print('z' * 100_000, flush=True)"
    arguments = {"session": "a", "code": code} if do == "execute" else {"session": "a"} if do == "attach" else {}
    line = f"{key}\n{json.dumps({'do': do, **arguments})}\n".encode()
    for number in range(12):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(live.root / "control"))
            client.sendall(line)
            time.sleep(number * 0.01)  # whatever the owner does at that moment
        if do == "execute":
            until(lambda: not session.busy)
    assert session.execute("'still here'").value == "still here"


@contextmanager
def hostile_program(live: LiveSession) -> Iterator[None]:
    words = [sys.executable, "-c", HOSTILE, str(live.root / "control")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


def test_clients_get_through_while_another_process_takes_all_connections(session: Session) -> None:
    def count_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process, the owner

    session.execute("x = 0")
    counts, before = [], count_descriptors()
    with hostile_program(find_session("a")), hostile_program(find_session("a")), other_program(OWN) as other:
        for number in range(1, 11):
            assert other.run("x += 1; x")[0] == str(number)
            counts.append(count_descriptors())
    assert max(counts) - before < KEYLESS_MAX + 30
    assert session.execute("x").value == 10


def test_a_client_beyond_the_limit_is_refused_by_its_number(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.executor.control.control_socket.CLIENTS_MAX", 1)
    with kernelexec.attach("a") as attached:
        with pytest.raises(CapacityReached, match="clients use the sessions of this process"):
            attached.execute("1")
        assert session.execute("1").ok
    until(attaches)


def attaches() -> bool:
    try:
        with kernelexec.attach("a"):
            return True
    except CapacityReached:  # the owner has not noticed yet that the last one is gone
        return False


def test_a_silent_connection_is_closed_soon(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.executor.control.control_socket.KEY_SECONDS", 0.2)
    for content in (b"", b"0" * 100):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(BOUND)
            client.connect(str(find_session("a").root / "control"))
            client.sendall(content)
            assert client.recv(1) == b""
    assert session.execute("1").ok


def test_an_interrupted_program_ends_and_its_cell_with_it(session: Session) -> None:
    code = (
        f"import kernelexec\nwith kernelexec.attach('{OWN}') as session:\n    print('attached', flush=True)\n"
        "    session.execute('import time; time.sleep(600)')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        until(lambda: session.busy)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND)
    assert "KeyboardInterrupt" in errors
    until(lambda: not session.busy)
    assert session.execute("1").state == "kept"


@pytest.mark.parametrize("arguments", [{"code": b"1"}, {"code": "1", "stdin": object()}])
def test_unsendable_arguments_are_refused(session: Session, arguments: Any) -> None:
    with kernelexec.attach("a") as attached, pytest.raises(InvalidRequest, match="cannot be sent to another process"):
        attached.execute(**arguments)
    with pytest.raises(InvalidRequest, match="5 is no name of a session"):
        kernelexec.attach(5)  # type: ignore[arg-type]  # a wrong one
    assert not session.busy


def test_another_program_branches_a_session_and_has_the_branch_take_its_place(
    owner: Executor, tmp_path: Path, in_process: Command
) -> None:
    session = owner.session("a")
    session.execute("x = [1]")
    with kernelexec.attach("a") as attached:
        assert attached.branch("b") == "b"
    with kernelexec.attach("b") as branch:
        branch.execute("x.append(2)")
        assert session.execute("x").value == [1]
        assert branch.promote().names == ("x",)
    assert session.execute("x").value == [1, 2]
    opened = in_process(tmp_path, "branch", "a", "--shared")
    assert opened.stdout == "a-1\n"
    assert f"it works in {session.workspace}" in opened.stderr
    owner.session("a-1").execute("x.append(3)")
    assert "1 variable: x" in in_process(tmp_path, "promote", "a-1").stderr
    assert session.execute("x").value == [1, 2, 3]
    assert "no branch of another session" in in_process(tmp_path, "promote", "a").stderr
