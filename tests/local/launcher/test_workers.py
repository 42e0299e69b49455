"""Output of workers: threads, processes, programs and tasks that an earlier cell has started.

While a cell runs, their output is in it, as in stock ipykernel; otherwise it is late output of the newest cell. Two kinds
differ from stock, which shows them under the cell that started them: forked processes, and tasks that the running cell wakes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelexec import ExecutionResult, Executor, Session
from kernelexec.results import output_text
from tests.support.night import named_cases
from tests.support.pace import BOUND, slow, until
from tests.support.stock_kernel import StockKernel, stock_kernel

START = """
import asyncio, logging, logging.handlers, multiprocessing, os, queue, subprocess, sys, threading, time, warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
warnings.simplefilter('ignore')  # of forks beside threads
jobs = queue.Queue()
def serve():
    while True:
        jobs.get()(); jobs.task_done()
threading.Thread(target=serve, daemon=True).start()
records = queue.Queue()
listener = logging.handlers.QueueListener(records, logging.StreamHandler(sys.stdout)); listener.start()
log = logging.getLogger('case'); log.propagate = False; log.setLevel(20); log.addHandler(logging.handlers.QueueHandler(records))
threads = ThreadPoolExecutor(1); threads.submit(int).result()
fork, spawn = multiprocessing.get_context('fork'), multiprocessing.get_context('spawn')
processes = ProcessPoolExecutor(1, mp_context=fork); processes.submit(int).result()
others = ProcessPoolExecutor(1, mp_context=spawn); others.submit(int).result()
pool = fork.Pool(1); pool.apply(int)
shell = subprocess.Popen(['cat'], stdin=subprocess.PIPE, text=True)
unbuffered = subprocess.Popen(['sh', '-c', 'while read line; do echo $line >&2; done'], stdin=subprocess.PIPE, text=True)
work, event = asyncio.Queue(), asyncio.Event()
async def work_on():
    while True:
        (await work.get())()
async def await_event():
    await event.wait(); print('mark')
tasks = [asyncio.create_task(work_on()), asyncio.create_task(await_event())]
await asyncio.sleep(0)
loop = asyncio.new_event_loop(); threading.Thread(target=loop.run_forever, daemon=True).start()
async def say(): print('mark')
async def say_later(): await asyncio.sleep(0.4); print('mark')
def until(name):
    while not os.path.exists(name): time.sleep(0.01)
    os.remove(name)
async def loop_until(name):
    while not os.path.exists(name): await asyncio.sleep(0.01)
    os.remove(name)
"""
#: Cells that have a worker print, and wait until it has; those that cannot know it wait for a file: their output was heard.
AS_STOCK = {
    "a thread with a queue": "jobs.put(lambda: print('mark')); jobs.join()",
    "a display of a thread": "jobs.put(lambda: display({'text/plain': 'mark'}, raw=True)); jobs.join()",
    "a listener of log records": "log.info('mark'); records.join()",
    "a pool of threads": "threads.submit(print, 'mark').result()",
    "a thread for a coroutine": "await asyncio.to_thread(print, 'mark')",
    "a loop in a thread": "asyncio.run_coroutine_threadsafe(say(), loop).result()",
    "an open program": "shell.stdin.write('mark\\n'); shell.stdin.flush(); until('heard')",
    "an open program's stderr": "unbuffered.stdin.write('mark\\n'); unbuffered.stdin.flush(); until('heard')",
    "a pool of spawned processes": "others.submit(print, 'mark', flush=True).result(); until('heard')",
    "a timer of the loop": (
        "said = asyncio.Event(); asyncio.get_running_loop().call_later(0.05, lambda: (print('mark'), said.set()))\n"
        "await said.wait();"
    ),
    "a thread that the cell before started": (
        "gate = threading.Event(); thread = threading.Thread(target=lambda: (gate.wait(), print('mark'))); thread.start() |"
        "gate.set(); thread.join()"
    ),
    "a program that the cell before started": (
        "os.system('(until [ -e begin ]; do sleep 0.05; done; echo mark) &') |open('begin', 'w').close(); until('heard')"
    ),
    "a thread, after the cell": "threading.Thread(target=lambda: (until('ended'), print('mark'))).start()",
    "a program, after the cell": "shell.stdin.write('mark\\n'); shell.stdin.flush()",
    "a task that the cell before started": "later = asyncio.create_task(say_later()); await asyncio.sleep(0) |await later",
}
LIKE_OTHERS = {"a pool of threads", "a thread for a coroutine", "a listener of log records", "an open program's stderr"}
#: Their output is in no cell of nbclient's.
BETTER = {
    "a pool of forked processes": "processes.submit(print, 'mark').result(); until('heard')",
    "a multiprocessing pool": "pool.apply(print, ('mark',)); until('heard')",
    "a task with a queue": "await work.put(lambda: print('mark')); await loop_until('heard')",
    "a display of a task": "work.put_nowait(lambda: display({'text/plain': 'mark'}, raw=True)); await loop_until('heard')",
    "a task that waits for an event": "event.set(); await loop_until('heard')",
}
#: How long stock's output after a cell may take, in seconds.
_SECONDS = slow(1)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspace")) as executor:
        opened = executor.session()
        opened.execute(START, timeout=60).raise_for_error()
        yield opened


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the stock kernel."""
    return tmp_path_factory.mktemp("stock")


@pytest.fixture(scope="module")
def stock(location: Path) -> Iterator[StockKernel]:
    with stock_kernel(str(location)) as kernel:
        kernel.run(START, "start")
        yield kernel


def run_stock(stock: StockKernel, location: Path, code: str, label: str, patience: float) -> None:
    """Run a cell in the stock kernel; one that waits until its output was heard goes on then."""
    over, before, whole_before = threading.Event(), marks_of(stock), marks_of(stock, "mark\n")

    def tell() -> None:
        while not over.wait(0.02):
            if marks_of(stock) > before:
                (location / "heard").touch()
                return

    if "'ended'" in code:
        (location / "ended").touch()
    telling = threading.Thread(target=tell)
    if "'heard'" in code:
        telling.start()
    stock.run(code, label, patience, lambda: marks_of(stock, "mark\n") > whole_before)
    over.set()
    if telling.ident:
        telling.join()


def marks_of(stock: StockKernel, mark: str = "mark") -> int:
    return "".join([*stock.texts.values()]).count(mark)


def run(session: Session, code: str) -> ExecutionResult:
    """Run a cell; one that waits until its output was heard goes on then."""
    heard = session.workspace / "heard"
    return session.execute(code, timeout=BOUND, on_output=lambda _: heard.touch() if "'heard'" in code else None)


def texts_of(session: Session, cells: list[str]) -> list[str]:
    """The text of each cell, with its late output."""
    results = [run(session, code) for code in cells]
    if "'ended'" in cells[-1]:
        (session.workspace / "ended").touch()
    until(lambda: "mark" in "".join(after(session, result) for result in results))
    time.sleep(0.2)  # for output that must not come once more
    return [after(session, result) for result in results]


def after(session: Session, result: ExecutionResult) -> str:
    final = session.wait_for(result.execution_id).result
    assert final is not None
    return output_text((*final.outputs, *final.late), is_part=True)


@pytest.mark.parametrize("code", named_cases(AS_STOCK, AS_STOCK.keys() - LIKE_OTHERS))
def test_output_of_a_worker_is_in_the_cell_where_stock_shows_it(
    session: Session, stock: StockKernel, location: Path, code: str
) -> None:
    cells, labels = code.split("|"), [f"{code} {number}" for number in range(len(code.split("|")))]
    for cell, label in zip(cells, labels, strict=True):
        run_stock(stock, location, cell, label, _SECONDS * (label is labels[-1]))
    expected = [stock.texts[label] for label in labels]
    assert "mark" in "".join(expected)
    assert texts_of(session, cells) == expected


@pytest.mark.parametrize("code", BETTER.values(), ids=BETTER)
def test_output_that_stock_shows_elsewhere_is_in_the_cell_that_caused_it(session: Session, code: str) -> None:
    result = run(session, code)
    assert (after(session, result), result.late) == ("mark\n", ())


def test_a_task_that_only_a_timer_wakes_stays_with_its_cell(session: Session) -> None:
    first = session.execute("later = asyncio.create_task(say_later()); await asyncio.sleep(0)")
    second = session.execute("while not later.done(): await asyncio.sleep(0.01)")
    assert (second.text, after(session, first)) == ("", "mark\n")
    assert second.notes == (f"Output of an earlier cell ({first.execution_id}) came late.\nmark",)


def test_output_after_the_newest_cell_is_late_output_of_that_cell(session: Session) -> None:
    code = "threading.Thread(target=lambda: (until('ended'), print('mark'))).start()"
    first, newest = session.execute(code), session.execute("None")
    (session.workspace / "ended").touch()
    until(lambda: after(session, newest))
    following = session.execute("print('next')")
    assert [after(session, result) for result in (first, newest, following)] == ["", "mark\n", "next\n"]
    assert following.notes == (f"Output of an earlier cell ({newest.execution_id}) came late.\nmark",)


def test_output_during_a_command_or_an_inspection_is_late_output_of_the_newest_cell(session: Session) -> None:
    printing = "(until('begun'), print('mark', flush=True), open('said', 'w').close())"
    newest = session.execute(f"threading.Thread(target=lambda: {printing}).start()")
    command = session.execute_command("touch begun; until [ -e said ]; do sleep 0.05; done; echo done")
    session.variables()
    assert (command.text, after(session, newest)) == ("done\n", "mark\n")
    assert command.notes == (f"Output of an earlier cell ({newest.execution_id}) came late.\nmark",)


def test_output_of_a_commands_child_is_in_the_cell_that_runs(session: Session) -> None:
    command = session.execute_command("mkfifo one two; (read line < one; echo mark; read line < two; echo mark) & echo now")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            session.execute_command, "echo go > one; until [ -e heard ]; do sleep 0.05; done; rm heard; echo done"
        )
        until(lambda: after(session, command) != "now\n")
        (session.workspace / "heard").touch()
        other = running.result(BOUND)
    assert (command.text, other.text, after(session, command)) == ("now\n", "done\n", "now\nmark\n")
    assert run(session, "open('two', 'w').write('go\\n'); until('heard')").text == "mark\n"
