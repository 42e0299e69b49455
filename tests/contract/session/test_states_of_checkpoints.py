"""What a session that goes back to a checkpoint finds: objects of libraries, files, pipes and shared memory as they were."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelexec import CheckpointRefused, Executor, Session
from tests.conftest import EVERY_KIND, KINDS

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()


@dataclass(frozen=True)
class State:
    """A cell that makes it, one that changes it after the checkpoint, and an expression with the text of the value it had."""

    make: str
    change: str
    look: str
    text: str


STATES = {
    "a generator": State("g = (n for n in range(9)); next(g), next(g)", "next(g)", "next(g)", "2"),
    "a text file that is read": State(
        "open('a.txt', 'w').write('abcdefghi'); a = open('a.txt'); a.read(3)", "a.read(3)", "a.read(3)", "'def'"
    ),
    "a file that is read without a buffer": State(
        "open('b.txt', 'w').write('abcdefghi'); b = open('b.txt', 'rb', buffering=0); b.read(3)",
        "b.read(3)",
        "b.read(3)",
        "b'def'",
    ),
    "a text file that is written": State(
        "c = open('c.txt', 'w'); c.write('one ')",
        "c.write('two '); c.flush()",
        "(c.write('three'), c.flush(), open('c.txt').read())[-1]",
        "'one three'",
    ),
    "a file that is written without a buffer": State(
        "d = open('d.txt', 'wb', buffering=0); d.write(b'one ')",
        "d.write(b'two ')",
        "(d.write(b'three'), open('d.txt').read())[-1]",
        "'one three'",
    ),
    "a temporary file": State(
        "import tempfile; e = tempfile.TemporaryFile('w+'); e.write('one ')",
        "e.write('two '); e.flush()",
        "(e.write('3'), e.seek(0), e.read(5))[-1]",
        "'one 3'",
    ),
    "a reader of CSV": State(
        "import csv; open('f.csv', 'w').write('a\\n1\\n2\\n3\\n'); f = csv.reader(open('f.csv')); next(f)",
        "next(f), next(f)",
        "next(f)",
        "['1']",
    ),
    "an archive that is written": State(
        "from zipfile import ZipFile; z = ZipFile('z.zip', 'w'); z.writestr('a', 'one')",
        "z.writestr('b', 'two')",
        "(z.fp and z.writestr('c', 'three'), z.close(), ZipFile('z.zip').testzip(), ZipFile('z.zip').namelist())[2:]",
        "(None, ['a', 'c'])",
    ),
    "a database in memory": State(
        "import sqlite3; m = sqlite3.connect(':memory:', isolation_level=None); m.execute('create table t (n)')",
        "m.execute('insert into t values (1)')",
        "m.execute('select count(*) from t').fetchone()",
        "(0,)",
    ),
    "a cursor of a database": State(
        "cursor = sqlite3.connect(':memory:').execute('select 1 union select 2 union select 3'); cursor.fetchone()",
        "cursor.fetchone()",
        "cursor.fetchone()",
        "(2,)",
    ),
    "a database in a file": State(
        "s = sqlite3.connect('s.db'); s.execute('create table t (n)'); s.commit()",
        "s.execute('select * from t').fetchall()",
        "(s.execute('insert into t values (1)'), s.commit(), s.execute('select max(n) from t').fetchone())[-1]",
        "(1,)",
    ),
    "a figure": State(
        "import matplotlib.pyplot as plt; axes = plt.figure().gca(); axes.plot([1, 2]); plt.close()",
        "axes.plot([3, 4])",
        "len(axes.lines)",
        "1",
    ),
    "a logger with a file": State(
        "import logging; logger = logging.getLogger('x'); logger.addHandler(logging.FileHandler('x.log'))",
        "logger.handlers.clear()",
        "(logger.warning('one'), open('x.log').read().splitlines()[-1])[-1]",
        "'one'",
    ),
    "a lock of multiprocessing": State(
        "import multiprocessing; lock = multiprocessing.Lock(); lock.acquire()",
        "lock.release()",
        "lock.acquire(False)",
        "False",
    ),
    "a value of multiprocessing": State("n = multiprocessing.Value('i', 1)", "n.value = 2", "n.value", "1"),
    "a lock of threads": State(
        "import threading; mutex = threading.Lock(); mutex.acquire()", "mutex.release()", "mutex.locked()", "True"
    ),
    "memory that processes share": State("import mmap; page = mmap.mmap(-1, 4096); page[0] = 1", "page[0] = 2", "page[0]", "1"),
    "a pool without threads": State(
        "from concurrent.futures import ThreadPoolExecutor as Pool; pool = Pool(1)",
        "pool.shutdown()",
        "pool.submit(pow, 2, 5).result()",
        "32",
    ),
    "a context variable": State(
        "from contextvars import ContextVar; v = ContextVar('v'); v.set(1)", "v.set(2)", "v.get(0)", "1"
    ),
    "a decimal context": State(
        "import decimal; decimal.getcontext().prec = 5", "decimal.getcontext().prec = 9", "decimal.getcontext().prec", "5"
    ),
    "warning filters": State(
        "import warnings; warnings.simplefilter('error', BytesWarning)",
        "warnings.resetwarnings()",
        "[entry[0] for entry in warnings.filters if entry[2] is BytesWarning][:1]",
        "['error']",
    ),
    "a signal handler": State(
        "import signal; hits = []; signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))",
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "(signal.raise_signal(signal.SIGUSR1), hits)[1]",
        "[1]",
    ),
    "a handler of a signal that ends": State(
        "terms = []; signal.signal(signal.SIGTERM, lambda *_: terms.append(1))",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "(signal.raise_signal(signal.SIGTERM), terms)[1]",
        "[1]",
    ),
    "a timer of the system": State(
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 1000, 2000)",
        "signal.setitimer(signal.ITIMER_REAL, 0)",
        "(0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000, signal.getitimer(signal.ITIMER_REAL)[1])",
        "(True, 2000.0)",
    ),
    "a reader of the event loop": State(
        "import asyncio, os; arrived, ends = asyncio.Event(), os.pipe()\n"
        "asyncio.get_running_loop().add_reader(ends[0], lambda: (os.read(ends[0], 9), arrived.set()))",
        "asyncio.get_running_loop().remove_reader(ends[0])",
        "(os.write(ends[1], b'x'), await asyncio.wait_for(arrived.wait(), 60))[1]",
        "True",
    ),
    "a weak reference": State("import weakref; kept = {1, 2}; weak = weakref.ref(kept)", "del kept", "weak() is kept", "True"),
    "a queue and a timer of asyncio": State(
        "import asyncio; q, late = asyncio.Queue(), []; q.put_nowait(1)\n"
        "timer = asyncio.get_running_loop().call_later(0.3, late.append, 1)",
        "q.get_nowait(); timer.cancel()",
        "(await asyncio.sleep(0.6), q.qsize(), late)[1:]",
        "(1, [1])",
    ),
    "random numbers": State(
        "import numpy as np; rng = np.random.default_rng(1); np.random.seed(3); first = np.random.random()",
        "rng.random(), np.random.random()",
        "[float(n) for n in (np.random.random(), rng.random())] == "
        "[float(n) for n in (np.random.RandomState(3).random(2)[1], np.random.default_rng(1).random())]",
        "True",
    ),
    "a mask and a limit": State(
        "import os, sys; before = os.umask(0o077); sys.setrecursionlimit(3000)",
        "os.umask(0o022); sys.setrecursionlimit(2000)",
        "os.umask(0o022), sys.getrecursionlimit()",
        "(63, 3000)",
    ),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_states_are_as_they_were(kind: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path, config={**KINDS[kind], "quiet": True}) as executor:
        session = executor.session()
        session.execute("\n".join(state.make for state in STATES.values())).raise_for_error()
        checkpoint = session.checkpoint()
        for _ in range(2):  # the second copy has nothing of the first one
            session.execute("\n".join(state.change for state in STATES.values())).raise_for_error()
            session.restore(checkpoint)
            looks = session.execute(f"{{{', '.join(f'{name!r}: ({state.look})' for name, state in STATES.items())}}}")
            looks.raise_for_error()
            assert looks.value == {name: ast.literal_eval(state.text) for name, state in STATES.items()}
            session.restore(checkpoint)


def test_a_copy_that_waits_holds_no_lock_and_no_pipe(session: Session) -> None:
    """A lock is free once the kernel closes its file, and a program ends when the kernel closes its input."""
    lock = "import fcntl; f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    assert session.execute(lock).ok
    assert session.execute("import subprocess; c = subprocess.Popen(['cat'], stdin=subprocess.PIPE)").ok
    checkpoint = session.checkpoint()
    assert session.execute("f.close(); g = open('lock'); fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)").ok
    assert session.execute("c.stdin.close(); c.wait()").value == 0
    session.restore(checkpoint)
    broken = session.execute("c.stdin.write(b'x'); c.stdin.flush()")
    assert broken.error is not None
    assert broken.error.ename == "BrokenPipeError"  # the program has ended


def test_cycles_of_before_are_collected_and_their_files_written(session: Session) -> None:
    """A file that the kernel did not close is written at its end, as Python does: it is looked for among the same objects."""
    make = "import gc, weakref\nclass Node:\n    pass\nnode = Node()\nnode.itself, weak = node, weakref.ref(node)\n"
    assert session.execute(f"{make}note = open('note', 'w'); note.write('x')").ok
    session.restore(session.checkpoint())
    assert session.execute("del node; gc.collect(); weak() is None, gc.isenabled()").text == "(True, True)"
    assert session.execute("gc.disable()").ok
    session.restore(session.checkpoint())
    assert session.execute("gc.isenabled()").text == "False"
    session.close()
    assert (session.workspace / "note").read_text() == "x"


def test_warnings_that_are_errors_do_not_hinder_a_copy(session: Session) -> None:
    assert session.execute("import warnings; warnings.simplefilter('error')").ok
    checkpoint = session.checkpoint()
    session.execute("warnings.simplefilter('ignore')")
    session.restore(checkpoint)
    raised = session.execute("warnings.warn('now')")
    assert raised.error is not None
    assert raised.error.ename == "UserWarning"


def test_children_that_the_system_forgets_do_not_hinder_a_copy(session: Session) -> None:
    assert session.execute("import signal; x = 1; signal.signal(signal.SIGCHLD, signal.SIG_IGN)").ok
    session.restore(session.checkpoint())
    assert session.execute("x, signal.getsignal(signal.SIGCHLD).name").text == "(1, 'SIG_IGN')"


def test_a_copy_that_ends_at_once_is_no_checkpoint(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.kernel.process._CHECKPOINTS_SECONDS", 1.0)  # no copy will answer
    assert session.execute("import os; x = 1; os.register_at_fork(after_in_child=lambda: os._exit(0))").ok
    with pytest.raises(CheckpointRefused, match="ended at once"):
        session.checkpoint()
    assert session.checkpoints() == ()
    assert session.execute("x").text == "1"


def test_a_copy_that_fails_never_goes_on_as_a_second_kernel(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.kernel.process._CHECKPOINTS_SECONDS", 1.0)  # no copy will answer
    broken = "import os, sys\nclass Closed:\n    def write(self, text):\n        raise BrokenPipeError\n    flush = print\n"
    assert session.execute(f"{broken}os.setsid, sys.__stderr__ = None, Closed()").ok
    with pytest.raises(CheckpointRefused, match="ended at once"):
        session.checkpoint()
    running = "import psutil; [each.pid for each in psutil.Process().children() if each.status() != 'zombie']"
    assert session.execute(running).text == "[]"


def test_an_exit_handler_is_called_at_the_end_of_the_copy(session: Session) -> None:
    assert session.execute("import atexit, pathlib; note = pathlib.Path('note').write_text; atexit.register(note, 'x')").ok
    checkpoint = session.checkpoint()
    session.execute("atexit.unregister(note)")
    session.restore(checkpoint)
    assert not (session.workspace / "note").exists()
    session.close()
    assert (session.workspace / "note").read_text() == "x"


def test_a_pipe_within_the_kernel_is_its_own(session: Session) -> None:
    assert session.execute("import os; reader, writer = os.pipe(); os.set_blocking(reader, False)").ok
    checkpoint = session.checkpoint()
    session.execute("os.write(writer, b'late')")
    for _ in range(2):
        session.restore(checkpoint)
        look = "os.write(writer, b'new'), os.read(reader, 9), os.get_blocking(reader)"
        assert session.execute(look).text == "(3, b'new', False)"


REFUSED = {
    "a pool of processes": (
        "import multiprocessing; pool = multiprocessing.get_context('fork').Pool(1)",
        "threads",
        "handle_workers",
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor as Pool; pool = Pool(1, 'worker'); pool.submit(pow, 2, 2).result()",
        "threads",
        "worker_0",
    ),
    "a timer": (
        "import threading; timer = threading.Timer(60, print); timer.daemon = True; timer.start()",
        "threads",
        "Thread-",
    ),
    "a pipe with bytes": (
        "import os; ends = os.pipe(); os.write(ends[1], b'abc')",
        "connections",
        "a pipe with 3 unread bytes",
    ),
    "a server": (
        "import http.server as h; server = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)",
        "connections",
        "127.0.0.1",
    ),
    "an object with a transaction": (
        (
            "import sqlite3\nclass Store:\n    db = sqlite3.connect('o.db')\n"
            "    db.execute('create table t (n)'), db.execute('insert into t values (1)')"
        ),
        "transactions",
        "o.db",
    ),
    "an object with a transaction in a log": (
        (
            "import sqlite3\nclass Store:\n    db = sqlite3.connect('l.db')\n    db.execute('pragma journal_mode=wal')\n"
            "    db.execute('create table t (n)'), db.execute('insert into t values (1)')"
        ),
        "transactions",
        "l.db",
    ),
    "much shared memory": (
        "import mmap; many = mmap.mmap(-1, 65 << 20); many[0] = 1",
        "limit",
        "65 MiB of memory are shared with other processes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_irreversible_states_are_refused_by_name(case: str, session: Session) -> None:
    make, kind, name = REFUSED[case]
    assert session.execute(make).ok
    with pytest.raises(CheckpointRefused, match=name) as refused:
        session.checkpoint()
    assert list(refused.value.obstacles) == [kind]
