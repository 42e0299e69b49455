"""An interrupt ends the cell that it is meant for, wherever that is, and what the cell makes of it is the cell's own affair."""

from __future__ import annotations

import pytest

from kernelexec import Session
from tests.support.night import at_night
from tests.support.pace import slow, until

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_code_before_a_cell_is_interrupted_and_the_state_is_kept[container-hook-1]",)

#: The step that ends a cell is asserted here.
GRACE = 2.0

HOOKED = """
import asyncio, time
def hook(*_):
    if armed:
        open('hooked', 'w').close()
        time.sleep(600)
armed = False
get_ipython().events.register('pre_run_cell', hook)
"""
TRANSFORMED = """
import ast, asyncio, time
class Slow(ast.NodeTransformer):
    def visit(self, node):
        if armed:
            open('hooked', 'w').close()
            time.sleep(600)
        return node
armed = False
get_ipython().ast_transformers.append(Slow())
"""
#: A signal that comes after a task has given way, and before the loop knows what it waits for.
BETWEEN = """
import asyncio, signal
loop = asyncio.get_running_loop()
call_soon, armed = loop.call_soon, None
def sending(*args, **options):
    global armed
    if armed is not None and asyncio.current_task(loop) is armed:
        armed = None
        signal.raise_signal(signal.SIGINT)
    return call_soon(*args, **options)
loop.call_soon = sending
async def work():
    global armed
    armed = asyncio.current_task()
    await asyncio.sleep(0)
    await asyncio.sleep(60)
"""


@pytest.mark.parametrize("code", ["1", "await asyncio.sleep(0)"])
@pytest.mark.parametrize("prepared", [HOOKED, TRANSFORMED], ids=["hook", "transformer"])
@pytest.mark.shared_session
def test_code_before_a_cell_is_interrupted_and_the_state_is_kept(session: Session, prepared: str, code: str) -> None:
    session.execute(prepared)
    session.execute("armed = True")
    session.execute(code, wait=0.01, timeout=600)
    until((session.workspace / "hooked").exists)
    result = session.interrupt()
    assert result is not None
    assert (result.interrupted, result.ended_by, result.state) == ("request", "interrupt", "kept")
    session.restart()
    (session.workspace / "hooked").unlink()


@pytest.mark.parametrize("caught", ["asyncio.CancelledError", *at_night("BaseException")])
def test_a_cell_that_cleans_up_after_its_interrupt_goes_on(session: Session, caught: str) -> None:
    code = f"import asyncio\ntry: await asyncio.sleep(600)\nexcept {caught}: print('cleaned up')\nprint('goes on')\ny = 5"
    result = session.execute(code, timeout=slow(2))
    assert (result.interrupted, result.state, result.stdout) == ("timeout", "kept", "cleaned up\ngoes on\n")
    assert session.execute("y").text == "5"


@pytest.mark.parametrize(
    "cell",
    ["async with asyncio.TaskGroup() as group: group.create_task(work())", "await asyncio.gather(work())", "await work()"],
)
@pytest.mark.shared_session
def test_a_signal_between_two_tasks_loses_neither(session: Session, cell: str) -> None:
    session.execute(BETWEEN)
    result = session.execute(cell, timeout=20)
    assert result.error is not None
    assert (result.error.ename, result.interrupted, result.state) == ("CancelledError", None, "kept")
    session.restart()


def test_one_signal_ends_tasks_that_take_turns(session: Session) -> None:
    pid = session.execute("import asyncio, os, signal, threading\nos.getpid()").text
    session.execute("async def turn():\n    while True: await asyncio.sleep(0)")
    for number in range(12):
        sending = f"threading.Timer({0.02 + number / 500}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        code = f"{sending}async with asyncio.TaskGroup() as group:\n    for _ in range(5): group.create_task(turn())"
        result = session.execute(code, timeout=20)
        assert (result.status, result.interrupted, result.state) == ("error", None, "kept")
    assert session.execute("os.getpid()").text == pid
