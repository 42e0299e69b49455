"""Output of workers: threads, processes, programs and tasks that an earlier cell has started.

While a cell runs, their output is in it, as in stock ipykernel; otherwise it is late output of the newest cell. Two kinds
differ from stock, which shows them under the cell that started them: forked processes, and tasks that the running cell wakes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kernelexec import ExecutionResult, Executor, Session
from kernelexec.results import output_text
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
"""
#: Cells that have a worker print, and wait for it.
AS_STOCK = {
    "a thread with a queue": "jobs.put(lambda: print('mark')); jobs.join()",
    "a display of a thread": "jobs.put(lambda: display({'text/plain': 'mark'}, raw=True)); jobs.join()",
    "a listener of log records": "log.info('mark'); time.sleep(0.3)",
    "a pool of threads": "threads.submit(print, 'mark').result()",
    "a thread for a coroutine": "await asyncio.to_thread(print, 'mark')",
    "a loop in a thread": "asyncio.run_coroutine_threadsafe(say(), loop).result()",
    "an open program": "shell.stdin.write('mark\\n'); shell.stdin.flush(); time.sleep(0.3)",
    "an open program's stderr": "unbuffered.stdin.write('mark\\n'); unbuffered.stdin.flush(); time.sleep(0.3)",
    "a pool of spawned processes": "others.submit(print, 'mark', flush=True).result(); time.sleep(0.3)",
    "a timer of the loop": "asyncio.get_running_loop().call_later(0.05, lambda: print('mark')); await asyncio.sleep(0.3)",
    "a thread that the cell before started": "threading.Timer(0.4, lambda: print('mark')).start() |time.sleep(0.8)",
    "a program that the cell before started": "os.system('(sleep 0.4; echo mark) &') |time.sleep(0.8)",
    "a thread, after the cell": "threading.Timer(0.4, lambda: print('mark')).start()",
    "a program, after the cell": "shell.stdin.write('mark\\n'); shell.stdin.flush()",
    "a task that the cell before started": "later = asyncio.create_task(say_later()); await asyncio.sleep(0) |await later",
}
#: Their output is in no cell of nbclient's.
BETTER = {
    "a pool of forked processes": "processes.submit(print, 'mark').result(); time.sleep(0.3)",
    "a multiprocessing pool": "pool.apply(print, ('mark',)); time.sleep(0.3)",
    "a task with a queue": "await work.put(lambda: print('mark')); await asyncio.sleep(0.2)",
    "a display of a task": "work.put_nowait(lambda: display({'text/plain': 'mark'}, raw=True)); await asyncio.sleep(0.2)",
    "a task that waits for an event": "event.set(); await asyncio.sleep(0.2)",
}
_SECONDS = 1.0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspace")) as executor:
        opened = executor.session()
        opened.execute(START, timeout=60).raise_for_error()
        yield opened


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockKernel]:
    with stock_kernel(str(tmp_path_factory.mktemp("stock"))) as kernel:
        kernel.run(START, "start")
        yield kernel


def texts_of(session: Session, cells: list[str]) -> list[str]:
    """The text of each cell, with its late output."""
    results = [session.execute(code, timeout=30) for code in cells]
    time.sleep(_SECONDS)
    return [after(session, result) for result in results]


def after(session: Session, result: ExecutionResult) -> str:
    final = session.wait_for(result.execution_id).result
    assert final is not None
    return output_text((*final.outputs, *final.late), is_part=True)


@pytest.mark.parametrize("code", AS_STOCK.values(), ids=AS_STOCK)
def test_output_of_a_worker_is_in_the_cell_where_stock_shows_it(session: Session, stock: StockKernel, code: str) -> None:
    cells, labels = code.split("|"), [f"{code} {number}" for number in range(len(code.split("|")))]
    for cell, label in zip(cells, labels, strict=True):
        stock.run(cell, label, _SECONDS * (label is labels[-1]))
    expected = [stock.texts[label] for label in labels]
    assert "mark" in "".join(expected)
    assert texts_of(session, cells) == expected


@pytest.mark.parametrize("code", BETTER.values(), ids=BETTER)
def test_output_that_stock_shows_elsewhere_is_in_the_cell_that_caused_it(session: Session, code: str) -> None:
    result = session.execute(code, timeout=30)
    assert (after(session, result), result.late) == ("mark\n", ())


def test_a_task_that_only_a_timer_wakes_stays_with_its_cell(session: Session) -> None:
    first = session.execute("later = asyncio.create_task(say_later()); await asyncio.sleep(0)")
    second = session.execute("await asyncio.sleep(0.8)")
    assert (second.text, after(session, first)) == ("", "mark\n")
    assert second.notes == (f"Output of an earlier cell ({first.execution_id}) came late.\nmark",)


def test_output_after_the_newest_cell_is_late_output_of_that_cell(session: Session) -> None:
    code = "gate = threading.Event(); threading.Thread(target=lambda: (gate.wait(), time.sleep(0.3), print('mark'))).start()"
    first, newest = session.execute(code), session.execute("gate.set()")
    time.sleep(_SECONDS)
    following = session.execute("print('next')")
    assert [after(session, result) for result in (first, newest, following)] == ["", "mark\n", "next\n"]
    assert following.notes == (f"Output of an earlier cell ({newest.execution_id}) came late.\nmark",)


def test_output_during_a_command_or_an_inspection_is_late_output_of_the_newest_cell(session: Session) -> None:
    newest = session.execute("threading.Timer(0.3, lambda: print('mark')).start()")
    command = session.execute_command("sleep 0.8; echo done")
    session.variables()
    assert (command.text, after(session, newest)) == ("done\n", "mark\n")
    assert command.notes == (f"Output of an earlier cell ({newest.execution_id}) came late.\nmark",)


def test_output_of_a_commands_child_is_in_the_cell_that_runs(session: Session) -> None:
    command = session.execute_command("mkfifo one two; (read line < one; echo mark; read line < two; echo mark) & echo now")
    other = session.execute_command("echo go > one; sleep 0.5; echo done")
    assert (command.text, other.text, after(session, command)) == ("now\n", "done\n", "now\nmark\n")
    assert session.execute("open('two', 'w').write('go\\n'); time.sleep(0.5)").text == "mark\n"
