"""The end of a cell ends the cell and what it has started, and nothing else: neither earlier cells' processes nor the state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.pace import BOUND, RunningCell, slow, until, until_equal

NO_COPIES: dict[str, Any] = {"checkpoints": "off"}
CONFIGS: dict[str, dict[str, Any]] = {"local": {}, "container": KINDS["container"]}


@pytest.fixture(scope="module", params=["local", pytest.param("container", marks=needs_engine)])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    config = {**CONFIGS[request.param], **NO_COPIES, "budgets": {"grace": slow(1), "compiled": slow(60)}}
    with Executor(request.param, workspace=tmp_path_factory.mktemp("work"), config=config) as executor:
        opened = executor.session("ends")
        opened.execute("import contextlib, ctypes, os, pathlib, subprocess, sys, threading, time\nkept = 42")
        yield opened


def ended(session: Session, code: str) -> Any:
    """The result of a cell that has printed ``begun`` and then reached its timeout."""
    result = session.execute(f"print('begun', flush=True)\n{code}", timeout=slow(1))
    assert (result.status, result.exit_code, result.interrupted) == ("error", 124, "timeout"), result.text
    assert result.state == "kept", (result.ended_by, result.notes)
    assert session.execute("kept").text == "42"
    return result


#: A command that obeys no interrupt.
STUBBORN = "os.system('trap \"\" INT; sleep 600')"
POOL = """
from concurrent.futures import ProcessPoolExecutor
pool = ProcessPoolExecutor(2)
assert list(pool.map(abs, [-1, 2])) == [1, 2]
child = subprocess.Popen(['sleep', '600'])
"""


def test_processes_of_earlier_cells_live_on(session: Session) -> None:
    assert session.execute(POOL, timeout=BOUND).ok
    server = session.start_background("sleep 600")
    for code in (
        "time.sleep(600)",
        "while True: pass",
        "subprocess.run(['sleep', '600'])",
        "os.system('trap \"\" INT; sleep 600')",
    ):
        ended(session, code)
        after = session.execute("print(child.poll(), list(pool.map(abs, [-3])))", timeout=BOUND)
        assert after.stdout == "None [3]\n", code
    assert session.background(server.command_id).status == "running"
    session.execute("pool.shutdown(); child.kill(); child.wait()", timeout=BOUND)


def test_processes_of_an_ended_cell_end(session: Session) -> None:
    ended(session, f"mine = [subprocess.Popen(['sleep', '600']) for _ in range(2)]\n{STUBBORN}\nlate = 1")
    after = session.execute("print([each.wait() for each in mine], 'late' in globals())", timeout=BOUND)
    assert after.stdout in {f"[{code}, {code}] False\n" for code in (-2, -9)}


#: The number that tells the processes of this run from all others.
NUMBER = f"600.{os.getpid()}"
DETACHED = {
    "session": f"subprocess.Popen(['sleep', '{NUMBER}'], start_new_session=True)",
    "trap": f"subprocess.Popen(['sh', '-c', 'trap : INT; sleep {NUMBER}; sleep {NUMBER}; true'])",
    "system": f"os.system('sleep {NUMBER} &')",
    "magic": f"!sleep {NUMBER} &",
}
COUNT = """
pids = []
for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError): pids += [int(path.parent.name)] * (b'NUMBER' in path.read_bytes())
print(len(pids))""".replace("NUMBER", NUMBER)


@pytest.mark.parametrize("code", DETACHED.values(), ids=DETACHED)
def test_detached_processes_of_an_ended_cell_end(session: Session, code: str) -> None:
    ended(session, f"{code}\ntime.sleep(600)")
    until_equal(lambda: session.execute(COUNT).stdout, "0\n")


def test_detached_processes_of_a_background_command_live_on(session: Session) -> None:
    running = RunningCell(session, "print('begun', flush=True)\ntime.sleep(600)")
    server = session.start_background(f"sleep {NUMBER} > {os.devnull} 2>&1 &")
    until_equal(lambda: session.background(server.command_id).status, "stopped")
    session.interrupt()
    assert running.result().state == "kept"
    assert session.execute(COUNT).stdout == "1\n"
    session.execute("for pid in pids: os.kill(pid, 9)")


STEPS = {
    "system": "for step in range(6): os.system('sleep 600')",
    "c_system": "for step in range(6): ctypes.CDLL(None).system(b'sleep 600')",
    "statements": "try: time.sleep(600)\nexcept: pass\n" * 2,
    "bare except": "for step in range(30):\n    try: time.sleep(600)\n    except: steps = step",
    "displays": """
class Slow:
    def _repr_html_(self): time.sleep(600)
    _repr_latex_ = _repr_svg_ = _repr_png_ = _repr_markdown_ = _repr_html_
display(Slow())""",
}


@pytest.mark.parametrize("code", STEPS.values(), ids=STEPS)
def test_a_cell_of_several_steps_ends_with_the_state_kept_and_its_rest_does_not_run(session: Session, code: str) -> None:
    session.execute("rest = None")
    ended(session, f"{code}\nrest = 'ran'")
    assert session.execute("rest").text == ""


#: A call that no signal ends: it returns once another thread has unlocked what it waits for.
LOCKED = """
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
library.pthread_mutex_lock(mutex)
threading.Timer({seconds}, library.pthread_mutex_unlock, [mutex]).start()
"""


def test_a_call_into_compiled_code_is_waited_for(session: Session) -> None:
    session.execute(f"rest = None\n{LOCKED.format(seconds=slow(8))}")
    begun = session.execute("library.pthread_mutex_lock(mutex)\nrest = 'ran'", timeout=slow(1), wait=0.01)
    until(lambda: "compiled code is waited for" in session.wait_for(begun.execution_id, wait=0.01).remark)
    result = session.wait_for(begun.execution_id, wait=BOUND).result
    assert result is not None
    assert (result.interrupted, result.state) == ("timeout", "kept")
    assert any("compiled code" in note for note in result.notes)
    assert session.execute("rest").text == ""


def test_code_that_holds_the_interpreters_lock_is_waited_for(session: Session) -> None:
    ended(session, "sum(range(5 * 10**8))")


#: Threads that make every other thread wait for the interpreter's lock.
BUSY = """
import subprocess, threading, time
def be_busy():
    while True: sum(range(1000))
for _ in range(3): threading.Thread(target=be_busy, daemon=True).start()"""


def test_no_interrupt_of_an_ended_cell_reaches_the_next(tmp_path: Path) -> None:
    """The kernel reads the requests late: its control thread cannot run before the cell has ended, and then it is slow."""
    with Executor("local", workspace=tmp_path, config={**NO_COPIES, "budgets": {"grace": BOUND}}) as executor:
        session = executor.session("late")
        session.execute(BUSY).raise_for_error()
        overrun = session.execute("sum(range(10**8))", timeout=0.2)
        assert (overrun.interrupted, overrun.state) == ("timeout", "kept")
        after = session.execute("child = subprocess.Popen(['sleep', '600'])\ntime.sleep(1.5)\nchild.poll()", timeout=BOUND)
        assert (after.status, after.text) == ("ok", "")


def test_the_wait_for_compiled_code_has_a_bound(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={**NO_COPIES, "budgets": {"grace": 0.2, "compiled": 0.5}}) as executor:
        session = executor.session("bound")
        session.execute("import ctypes, threading")
        session.execute(LOCKED.format(seconds=600))
        result = session.execute("library.pthread_mutex_lock(mutex)", timeout=slow(1))
        assert (result.state, result.interrupted, result.ended_by) == ("lost", "timeout", "kill")


def test_a_cell_that_swallows_every_interrupt_is_killed_without_that_wait(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={**NO_COPIES, "budgets": {"grace": 0.2, "compiled": 600}}) as executor:
        session = executor.session("swallows")
        cell = RunningCell(session, "import time\nprint('begun')\nwhile True:\n    try: time.sleep(600)\n    except: pass")
        session.interrupt()
        assert cell.result().state == "lost"


def test_a_death_is_charged_to_the_cell_that_caused_it(tmp_path: Path) -> None:
    """The next cell, which was sent before its kernel ended and did not begin, runs in a new one.

    Whether the kernel still confirms its state after the cell that stops its loop is a race: each end has its right result.
    """
    with Executor("local", workspace=tmp_path, config=NO_COPIES) as executor:
        session = executor.session("stopped")
        for _ in range(3):
            cause = session.execute("import asyncio\nasyncio.get_running_loop().stop()")
            assert (cause.status, cause.state) in {("ok", "kept"), ("ok", "lost"), ("error", "lost")}
            result = session.execute("print('harmless')")
            assert (result.status, result.stdout) == ("ok", "harmless\n")
            assert any("Ran in a new kernel" in note for note in result.notes)


HANDLERS = """
import atexit, pathlib, weakref
atexit.register(lambda: pathlib.Path('handler').write_text('ran'))
class Run: pass
run = Run()
weakref.finalize(run, lambda: pathlib.Path('finalizer').write_text('ran'))
written = open('written', 'w')
written.write('flushed')
"""


#: Files that are left open, and what reads them later.
OPEN_FILES = """
import bz2, gzip, io, lzma, zipfile
class Own(io.TextIOWrapper): pass
class Upper(io.RawIOBase):
    def __init__(self, path): self.file = open(path, 'wb', buffering=0)
    def writable(self): return True
    def write(self, data): return self.file.write(bytes(data).upper())
    def close(self):
        if not self.closed: self.file.write(b'!')
        super().close()
opened = [gzip.open('a.gz', 'wt'), bz2.open('a.bz2', 'wt'), lzma.open('a.xz', 'wt'), Own(open('own', 'wb'))]
opened.append(io.TextIOWrapper(io.BufferedWriter(gzip.open('buffered.gz', 'wb'))))
opened.append(io.TextIOWrapper(io.BufferedWriter(Upper('upper'))))
below = open('below.gz', 'wb')
opened.append(io.TextIOWrapper(gzip.GzipFile(fileobj=below, mode='wb')))
for file in opened: file.write('text')
archive = zipfile.ZipFile('a.zip', 'w')
archive.writestr('member', 'text')
inner = zipfile.ZipFile('inner.zip', 'w')
member = inner.open('member', 'w')
member.write(b'text')
"""
READ_FILES = """
import bz2, gzip, lzma, zipfile
texts = [opener.open(name, 'rt').read() for opener, name in ((gzip, 'a.gz'), (bz2, 'a.bz2'), (lzma, 'a.xz'))]
texts += [gzip.open(name, 'rt').read() for name in ('buffered.gz', 'below.gz')]
texts += [zipfile.ZipFile(name).read('member').decode() for name in ('a.zip', 'inner.zip')]
[*texts, open('own').read(), open('upper').read()]
"""


@pytest.mark.parametrize("way", ["restart", "exit"])
def test_files_that_are_left_open_are_whole_afterwards(way: str, tmp_path: Path) -> None:
    config = {**NO_COPIES, "budgets": {"grace": slow(10)}}
    with Executor("local", workspace=tmp_path, config=config) as executor:
        session = executor.session("files")
        assert session.execute(OPEN_FILES).ok
        session.restart() if way == "restart" else session.execute("exit()")
        assert session.execute(READ_FILES).value == ["text"] * 8 + ["TEXT!"]


@pytest.mark.parametrize("way", ["restart", "close"])
@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=needs_engine)])
def test_exit_handlers_and_finalizers_run_and_files_are_flushed(kind: str, way: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path, config={**CONFIGS[kind], "budgets": {"grace": slow(10)}}) as executor:
        session = executor.session("exits")
        assert session.execute(HANDLERS).ok
        getattr(session, way)()
        texts = {name: (session.workspace / name).read_text() for name in ("handler", "finalizer", "written")}
        assert texts == {"handler": "ran", "finalizer": "ran", "written": "flushed"}
        if way == "restart":
            assert session.execute("1 + 1").text == "2"


def test_an_exit_handler_that_takes_too_long_is_cut_and_reported(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={**NO_COPIES, "budgets": {"grace": 0.5}}) as executor:
        session = executor.session("slow")
        session.execute("import atexit, time\natexit.register(time.sleep, 600)")
        session.restart()
        notes = session.execute("1").notes
        assert any("its threads or exit handlers had not ended after 0.5 s" in note for note in notes), notes


def test_a_close_says_that_it_has_cut_exit_handlers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Executor("local", workspace=tmp_path, config={**NO_COPIES, "quiet": False, "budgets": {"grace": 0.5}}) as executor:
        with executor.session("slow") as session:
            session.execute("import atexit, time\natexit.register(time.sleep, 600)")
        assert "session 'slow': the kernel (python) was killed: its threads or exit handlers had not" in capsys.readouterr().err
        assert session.journal is not None
        closed = json.loads(session.journal.read_text().splitlines()[-1])
        assert (closed["event"], closed["cut"]) == ("closed", ["python"])
