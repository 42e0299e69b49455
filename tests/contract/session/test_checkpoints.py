"""Checkpoints: the session goes back to a stopped copy of its kernel, and goes on from one when its kernel dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, CheckpointRefused, Executor, InvalidRequest, KernelNotAnswering, Session
from kernelexec.provisioning.runtime import processes
from kernelexec.provisioning.runtime.processes import find_children
from tests.conftest import EVERY_KIND, KINDS
from tests.support.engine import needs_bubblewrap
from tests.support.night import named_cases
from tests.support.pace import slow, until

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

#: The tests count checkpoints and processes: none is made but by request.
CHECKPOINTS = "named"
#: Ends of a kernel: the cell, and the cause in its result.
DEATHS = {
    "exits": ("import os; os._exit(3)", "exited"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "crashed"),
    "is killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
    "hears nothing": (  # it blocks all signals, and holds the interpreter's lock
        "import ctypes, signal as s; s.pthread_sigmask(s.SIG_BLOCK, s.valid_signals()); ctypes.PyDLL(None).sleep(600)",
        "timeout",
    ),
}


#: Ends the kernel after its cell has ended: once a file is there.
DIES = """
import os, signal, threading, time
def die():
    while not os.path.exists('die'): time.sleep(0.01)
    END
threading.Thread(target=die).start()
"""


def died(session: Session) -> None:
    """Let the kernel of a session end that waits for it."""
    (session.workspace / "die").touch()
    until(lambda: session.connection_file is None)
    (session.workspace / "die").unlink()


@pytest.fixture(scope="module", params=EVERY_KIND)
def busy_executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One whose sessions make a checkpoint after each cell."""
    settings = {**KINDS[request.param], "checkpoints": "each", "quiet": True, "budgets": {"compiled": 0.2}}
    with Executor(request.param, workspace=tmp_path_factory.mktemp("automatic"), config=settings) as executor:
        yield executor


@pytest.fixture
def automatic(busy_executor: Executor, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session with a checkpoint after each cell."""
    with busy_executor.session(f"t{abs(hash(request.node.nodeid)) % 10**8}") as opened:
        yield opened


def value(session: Session, code: str) -> object:
    result = session.execute(code)
    assert result.ok, result.text
    return result.value


def test_a_kernel_that_is_killed_between_two_cells_goes_on_from_its_checkpoint(automatic: Session) -> None:
    for number in range(3):
        value(automatic, f"kept = {number}")
        value(automatic, "import os, signal, threading")
        automatic.execute(DIES.replace("END", "os.kill(os.getpid(), signal.SIGKILL)"))
        died(automatic)
        result = automatic.execute("kept")
        assert (result.value, result.state, result.cause) == (number, "restored", "killed"), result.notes
        assert "goes on from its checkpoint before cell" in result.notes[0]
        assert automatic.execute("kept").state == "kept"


def test_undone_states_do_not_come_back(automatic: Session) -> None:
    for number in range(1, 4):
        value(automatic, f"x = {number}; open('x', 'w').close()")
    until(lambda: len(automatic.checkpoints()) == 3)
    assert automatic.undo().cells == 1
    assert automatic.execute("import os; os._exit(3)").state == "restored"
    assert value(automatic, "x") == 2
    assert automatic.undo(2).cells == 2
    assert value(automatic, "x") == 1
    automatic.restore(3)  # a state that the session has left
    assert automatic.execute("import os; os._exit(3)").state == "restored"
    assert value(automatic, "x") == 3


def test_one_checkpoint_serves_many_times(session: Session) -> None:
    session.execute("class Point:\n    pass\ndef double(n):\n    return 2 * n\nx, point = [1], Point()\npoint.place = x")
    checkpoint = session.checkpoint("start")
    assert (checkpoint.name, [each.number for each in session.checkpoints()]) == ("start", [checkpoint.number])
    epoch = session.kernel_epoch
    for number in range(3):
        session.execute(f"x.append({number}); del double; new = 1")
        restored = session.restore(checkpoint if number else "start")
        assert restored.names == ("Point", "double", "point", "x")
        assert restored.gone == ("new",)
        assert session.kernel_epoch == epoch + number + 1
        assert value(session, "(x, double(4), point.place is x, type(point) is Point)") == ([1], 8, True, True)
    checkpoint.drop()
    assert session.checkpoints() == ()
    with pytest.raises(InvalidRequest, match=f"no checkpoint {checkpoint.number} "):
        session.restore(checkpoint)
    assert value(session, "x") == [1]


def test_the_directory_the_environment_and_the_shell_go_back(session: Session) -> None:
    session.execute_command("mkdir -p sub && cd sub && export COLOUR=blue")
    session.execute("import os, decimal; os.environ['SHAPE'] = 'round'; decimal.getcontext().prec = 5; os.chdir('sub')")
    checkpoint = session.checkpoint()
    session.execute("os.environ['SHAPE'] = 'square'; decimal.getcontext().prec = 9; os.chdir('/')")
    session.execute_command("cd / && export COLOUR=red")
    session.restore(checkpoint)
    assert session.execute_command("echo ${PWD##*/} $COLOUR").stdout == "sub blue\n"
    assert value(session, "(os.environ['SHAPE'], decimal.getcontext().prec, os.path.basename(os.getcwd()))") == (
        "round",
        5,
        "sub",
    )


def test_random_numbers_go_on_as_they_would_have(session: Session) -> None:
    session.execute("import random, uuid; random.seed(1); random.random()")
    checkpoint = session.checkpoint()
    expected = value(session, "random.random()")
    session.restore(checkpoint)
    assert value(session, "random.random()") == expected


def test_output_and_input_are_as_before(session: Session) -> None:
    """Streams that user code keeps go on: of a logger, of C code, of programs and threads; and a cell can ask."""
    session.execute(
        "import logging, sys, os, threading\nlogging.basicConfig(stream=sys.stdout, force=True)\nkept = sys.stdout\n"
        "log = logging.getLogger('a')"
    )
    session.restore(session.checkpoint())
    result = session.execute(
        "log.warning('logged'); print('kept', file=kept); os.write(1, b'raw\\n'); os.system('echo program')\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()"
    )
    assert sorted(result.stdout.splitlines()) == ["WARNING:a:logged", "kept", "program", "raw", "thread"]
    assert session.execute("1 / 0").error is not None
    assert session.execute("input('name? ')", on_input=lambda _: "Ann").text == "name? Ann\n'Ann'"
    assert session.execute("import asyncio; await asyncio.sleep(0.01); print('awaited')").stdout == "awaited\n"
    assert session.execute("while True: pass", timeout=0.5).state == "kept"


def test_a_display_of_before_is_updated_after_going_back(session: Session) -> None:
    session.execute("display({'text/plain': 'first'}, raw=True, display_id='d')")
    session.restore(session.checkpoint())
    session.execute("from IPython.display import update_display")
    session.execute("update_display({'text/plain': 'second'}, raw=True, display_id='d')")
    session.save_notebook()
    assert session.notebook is not None
    notebook = json.loads(session.notebook.read_text())
    assert notebook["cells"][0]["outputs"][0]["data"] == {"text/plain": "second"}


@pytest.mark.parametrize("death", named_cases({name: name for name in DEATHS}, {"is killed"}))
def test_a_session_goes_on_after_the_death_of_its_kernel(automatic: Session, death: str) -> None:
    code, cause = DEATHS[death]
    automatic.execute("x, big = [1], b'x' * 50_000_000")
    automatic.execute("x.append(2)")
    until(lambda: len(automatic.checkpoints()) == 2)
    result = automatic.execute(f"x.append(3)\n{code}", timeout=slow(3) if cause == "timeout" else 60)
    assert (result.state, result.cause, result.lost_names) == ("restored", cause, ()), result.notes
    assert any("before this cell" in note for note in result.notes)
    following = automatic.execute("(x, len(big))")
    assert (following.value, following.state) == (([1, 2], 50_000_000), "kept")


@pytest.mark.parametrize("source", ["the system", "nothing"])
def test_how_a_kernel_ends_is_as_true_without_a_fork_server(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its parent gets its exit status from every system; where none is had, a note says so."""
    if source == "nothing":
        monkeypatch.setattr(processes, "_read_exit_status", lambda *_: None)
    settings = {**KINDS["local"], "fork_server": False, "checkpoints": "named", "quiet": True}
    with Executor("local", workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        session.execute("x = 1")
        session.restore(session.checkpoint())
        result = session.execute("import os; os.abort()")
        is_unknown = any("How the kernel ended is unknown" in note for note in result.notes)
        assert result.state == "restored"
        assert (result.cause, result.exit_code) == (("exited", 1) if is_unknown else ("crashed", 134))
        assert is_unknown or source == "the system"
        assert value(session, "x") == 1


@pytest.mark.parametrize(
    ("kind", "mode", "reason", "advice"),
    [
        pytest.param("bubblewrap", "each", "kernels make none here", "kernels make none here", marks=needs_bubblewrap),
        ("local", "each", "each has ended", "there is none"),
        ("local", "named", "", "checkpoint() makes one, and Config(checkpoints='auto') makes one"),
        ("local", "off", "", ": Config(checkpoints='auto') makes one"),
    ],
)
def test_a_loss_names_what_has_prevented_a_checkpoint(kind: str, mode: str, reason: str, advice: str, tmp_path: Path) -> None:
    settings = {**KINDS.get(kind, {}), "checkpoints": mode, "quiet": True}
    with Executor(kind, workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        session.execute("x = 1; open('log', 'a').close()")  # not safe to repeat
        if reason == "each has ended":
            until(session.checkpoints)
            session.checkpoints()[0].drop()
        with pytest.raises(InvalidRequest, match=re.escape(advice)):
            session.undo()
        result = session.execute("import os; os._exit(3)")
        assert (result.state, result.lost_names) == ("lost", ("x",))
        notes = [note for note in result.notes if "There was no checkpoint" in note]
        assert [reason in note for note in notes] == ([True] if reason else [])


def test_the_note_names_the_cells_that_an_old_checkpoint_undoes(session: Session) -> None:
    session.execute("x = 1")
    session.checkpoint()
    session.execute("x, y = 2, 3; open('log', 'a').close()")  # not safe to repeat
    result = session.execute("import os; os._exit(3)")
    assert (result.state, result.lost_names) == ("restored", ("y",))
    assert any("before cell [2]" in note and "from [2] on" in note for note in result.notes)
    assert value(session, "x") == 1


def test_a_loss_that_no_result_has_reported_is_reported_after_going_back(session: Session) -> None:
    session.execute(f"x = 1\n{DIES.replace('END', 'os._exit(3)')}")
    died(session)
    checkpoint = session.checkpoint()  # of a new kernel
    assert session.restore(checkpoint).names == ()
    result = session.execute("'x' in globals()")
    assert (result.text, result.state, result.cause) == ("False", "lost", "exited")
    assert "x" in result.lost_names


def test_the_last_cells_are_undone(automatic: Session) -> None:
    for number in range(4):
        automatic.execute("x = []" if number == 0 else f"x.append({number})")
    until(lambda: len(automatic.checkpoints()) == 4)
    assert automatic.undo().cells == 1
    assert value(automatic, "x") == [1, 2]
    assert automatic.undo(3).cells == 3  # the look at x, and two more
    assert value(automatic, "x") == []
    with pytest.raises(InvalidRequest, match="no checkpoint of the state before the last 99 cells"):
        automatic.undo(99)
    with pytest.raises(InvalidRequest, match="cells=0"):
        automatic.undo(0)
    assert value(automatic, "x") == []


def test_an_exit_that_was_asked_for_is_one(automatic: Session) -> None:
    automatic.execute("x = 1")
    until(lambda: len(automatic.checkpoints()) == 1)
    automatic.restart()
    result = automatic.execute("'x' in dir()")
    assert (result.value, result.state) == (False, "lost")


OBSTACLES = {
    "threads": "import threading, time\n"
    "thread = threading.Thread(target=time.sleep, args=(60,), name='worker', daemon=True); thread.start()",
    "native threads": "import ctypes; libc, thread = ctypes.CDLL(None), ctypes.c_ulong(); "
    "libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)",
    "tasks": "import asyncio; task = asyncio.get_running_loop().create_task(asyncio.sleep(60), name='sleeper')",
    "connections": "import socket; a, b = socket.socketpair()",
    "transactions": "import sqlite3; db = sqlite3.connect('a.db'); db.execute('create table if not exists t (n)'); "
    "db.execute('insert into t values (1)')",
}


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_obstacles_of_a_checkpoint_are_named(kind: str, obstacle: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path, config={**KINDS[kind], "quiet": True}) as executor:
        session = executor.session()
        assert session.execute("x = 1\n" + OBSTACLES[obstacle]).ok
        with pytest.raises(CheckpointRefused) as refused:
            session.checkpoint()
        assert list(refused.value.obstacles) == [obstacle]
        assert session.checkpoints() == ()
        assert value(session, "x") == 1


def test_children_of_cells_are_waited_for_as_without_checkpoints(session: Session) -> None:
    session.checkpoint()
    code = "import os\nfor n in range(2):\n    if os.fork() == 0:\n        os._exit(n)\n"
    assert value(session, f"{code}sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2))") == [0, 1]
    assert value(session, f"{code}sorted(os.waitpid(-1, 0)[1] >> 8 for _ in range(2))") == [0, 1]
    assert value(session, f"{code}sorted(os.waitid(os.P_ALL, 0, os.WEXITED).si_status for _ in range(2))") == [0, 1]
    for wait in ("os.wait()", "os.waitpid(-1, os.WNOHANG)", "os.wait3(0)", "os.waitid(os.P_ALL, 0, os.WEXITED)"):
        result = session.execute(wait)
        assert result.error is not None, result
        assert result.error.ename == "ChildProcessError"


def test_bad_arguments_are_refused(session: Session) -> None:
    for name in ("", "x" * 101, 3):
        with pytest.raises(InvalidRequest, match="name="):
            session.checkpoint(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"saved=3\.0"):
        session.restore(3.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no checkpoint 3 "):
        session.restore(3)
    with pytest.raises(InvalidRequest, match="no checkpoint 'nope'"):
        session.restore("nope")
    session.checkpoint("first")
    with pytest.raises(InvalidRequest, match="names: a checkpoint is restored as a whole"):
        session.restore("first", names=["x"])


def test_many_rounds_leave_nothing(tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process, no descriptor of the kernel, and no socket is left of earlier kernels and dropped checkpoints."""
    monkeypatch.setattr("kernelexec.kernel.process.KernelProcess.checkpoints_max", 3)
    settings, own = {"checkpoints": "each", "quiet": True}, os.getpid()
    before = find_children(own)
    with Executor("local", workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        session.execute("import os\ndef fds():\n    return len(os.listdir('/proc/self/fd'))")
        counts: list[int] = []
        for _ in range(30 if pytestconfig.getoption("nightly") else 10):
            until(lambda: len(session.checkpoints()) > 0)
            assert session.execute("os._exit(3)").state == "restored"
            counts.append(int(str(value(session, "fds()"))))
        until(lambda: len(session.checkpoints()) <= 3)  # the newest is there before the oldest ends
        assert max(counts[5:]) <= counts[4] + 1, counts
        assert session.connection_file is not None
        private = session.connection_file.parent
    assert not private.exists()
    until(lambda: find_children(own) <= before)


@pytest.mark.anyio
async def test_the_asynchronous_session_has_the_same(tmp_path: Path) -> None:
    async with AsyncExecutor("local", workspace=tmp_path, config={"quiet": True, "checkpoints": CHECKPOINTS}) as executor:
        session = await executor.session()
        await session.execute("x = 1")
        checkpoint = await session.checkpoint()
        await session.execute("x = 2")
        assert (await session.restore(checkpoint)).names == ("x",)
        assert (await session.execute("x")).value == 1
        assert [each.cell for each in await session.checkpoints()] == [checkpoint.cell]
        await checkpoint.drop()
        assert await session.checkpoints() == ()


#: Waits until the memory of all checkpoints is measured, and has the next one measured without a pause.
_MEASURED = """
costs = get_ipython().kernel.checkpoints._costs
costs._thread.join()
costs._measured = 0.0
"""


def test_the_oldest_are_dropped_when_they_take_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.kernel.process.KernelProcess.checkpoints_bytes", 150 * 2**20)
    settings = {"checkpoints": "named", "quiet": True}
    with Executor("local", workspace=tmp_path, config=settings) as executor:
        session = executor.session()
        for number in range(5):
            session.execute("data = None; data = b'x' * 60_000_000")  # the pages of the value before are the checkpoint's alone
            session.checkpoint(str(number))
            session.execute(_MEASURED).raise_for_error()
        until(lambda: len(session.checkpoints()) <= 4)
        assert len(session.checkpoints()) >= 2
        assert session.checkpoints()[-1].name == "4"


def test_each_round_goes_back_by_one_cell(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Measurements of memory beside the forks leave nothing in the copies."""
    with Executor("local", workspace=tmp_path, config={"checkpoints": "each", "quiet": True}) as executor:
        session = executor.session()
        session.execute("n, big = 0, bytearray(20 << 20)")
        for number in range(1, 31 if pytestconfig.getoption("nightly") else 6):
            session.execute("n += 1")
            ended = session.execute("import os; os._exit(3)")
            assert (ended.state, value(session, "n")) == ("restored", number), ended.notes


#: Has the thread that measures checkpoints take a while for each.
_SLOW_MEASUREMENT = """
import sys, time
costs = get_ipython().kernel.checkpoints._costs
measurement, costs._measured = sys.modules[type(costs).__module__], 0.0
def read_slowly(pid):
    time.sleep(0.5)
    return 0
measurement._read_private_bytes = read_slowly
"""


def test_the_measurement_of_memory_is_no_obstacle(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True, "checkpoints": CHECKPOINTS}) as executor:
        session = executor.session()
        session.execute(_SLOW_MEASUREMENT).raise_for_error()
        numbers = [session.checkpoint().number for _ in range(3)]
        assert numbers == [1, 2, 3]
        assert session.restore(3).names


LARGE = {
    "text": "print('x' * 3_000_000)",
    "a display": "display({'text/plain': 'x' * 300_000}, raw=True)",
    "a message with buffers": "from comm import create_comm; create_comm('t').send({}, buffers=[bytes(300_000)])",
    "an error": "raise ValueError('x' * 3_000_000)",
}


@pytest.mark.parametrize("code", LARGE.values(), ids=LARGE)
def test_large_messages_are_no_obstacle(code: str, tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True, "checkpoints": CHECKPOINTS}) as executor:
        session = executor.session()
        session.execute(code)
        assert session.checkpoint().number == 1


@pytest.mark.anyio
async def test_a_way_back_whose_caller_leaves_is_gone_or_not_gone(tmp_path: Path) -> None:
    async with AsyncExecutor("local", workspace=tmp_path, config={"checkpoints": "named"}) as executor:
        session = await executor.session("a")
        actual = set()
        for seconds in (0.005, 0.02, 0.03, 0.04, 0.06):
            await session.execute("x = 1")
            await session.checkpoint("first")
            await session.execute("x = 2")
            with suppress(TimeoutError):
                await asyncio.wait_for(session.restore("first"), seconds)
            result = await session.execute("x")
            actual.add((result.text in {"1", "2"}, result.state))
        assert actual == {(True, "kept")}
        assert len(await session.checkpoints()) == 5


@pytest.mark.anyio
async def test_undo_counts_the_cells_before_its_turn(tmp_path: Path) -> None:
    async with AsyncExecutor("local", workspace=tmp_path, config={"checkpoints": "each"}) as executor:
        session = await executor.session("a")
        for number in range(1, 5):
            await session.execute(f"x = {number}")
        await session.execute("while not __import__('os').path.exists('go'): pass\nx = 5", wait=0.01)
        going = asyncio.gather(session.undo(), session.undo())
        (session.workspace / "go").touch()
        assert [(went.cells, went.gone) for went in await going] == [(1, ()), (1, ())]
        assert (await session.execute("x")).text == "3"


def test_a_checkpoint_of_an_earlier_kernel_or_of_another_session_is_refused_and_its_number_dropped_by_none(
    session: Session,
) -> None:
    session.execute("x = 'old'")
    old = session.checkpoint()
    session.restart()
    session.execute("x = 'new'")
    new = session.checkpoint()
    assert new.number == old.number
    with pytest.raises(InvalidRequest, match="of an earlier kernel, or of another session"):
        session.restore(old)
    old.drop()
    assert [checkpoint.number for checkpoint in session.checkpoints()] == [new.number]
    with session.branch() as branch, pytest.raises(InvalidRequest, match="or of another session"):
        branch.restore(new)
    assert session.execute("x").text == "'new'"


def test_undo_after_a_death_between_two_cells_counts_from_the_restored_state(automatic: Session) -> None:
    for number in range(1, 4):
        automatic.execute(f"x = {number}")
    pid = automatic.execute("import os; os.getpid()").value
    until(lambda: len(automatic.checkpoints()) == 4)
    with suppress(KernelNotAnswering):  # it may end before it answers
        automatic.start_background(f"kill -9 {pid}")  # there, where processes may have other numbers
    until(lambda: automatic.connection_file is None)
    assert automatic.undo(2).cells == 2
    result = automatic.execute("x")
    assert (result.text, result.state, result.cause) == ("2", "restored", "killed")
