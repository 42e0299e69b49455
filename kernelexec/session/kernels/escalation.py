"""The escalation that ends a running cell by ever stronger steps. Only the last step loses the state.

interrupt   a request on the control channel; the kernel interrupts itself and the cell's processes
signal      another request, or SIGINT from the driver if the kernel reads no request: a C loop may hold the interpreter's
            lock; from now on repeated requests, since a cell may handle each as an error of a step of its own
cancel      cancellation of a top-level await, even if the cell ignores the signal
command     SIGKILL to every process of the cell
kill        the kernel's process and all its descendants, after a dump of every thread's stack

Processes left behind by an ended cell are killed as by ``command``: a program may ignore interrupts, or lead its own session.

No interrupt reaches a call into compiled code. Before the last step the driver waits while the main thread runs no Python
code. A kernel of another language has only the interrupt of its kernelspec and the last step.
"""

from __future__ import annotations

import itertools
import signal
from dataclasses import dataclass

import anyio

from kernelexec.config import Budgets
from kernelexec.kernel import Execution, Kernel
from kernelexec.results import InterruptStep

#: The time limit for the kernel's control thread to confirm a request. A C loop that holds the interpreter's lock blocks it.
NOTICE_SECONDS = 0.2
#: The pauses between further interrupts, in seconds: a cell has time to show its error, and a loop that handles one in each of
#: its rounds comes to its end.
_PAUSE_SECONDS, _PAUSES, _SHORT_PAUSE_SECONDS = 0.1, 3, 0.001
#: The pause between looks at a call into compiled code, in seconds.
_LOOK_SECONDS = 0.5
_STEPS: tuple[InterruptStep, ...] = ("interrupt", "signal", "cancel", "command")


@dataclass(frozen=True, slots=True)
class Ending:
    """The last step, the stacks of all threads after a kill, and the seconds of waiting for a call into compiled code."""

    step: InterruptStep
    stacks: str = ""
    awaited_seconds: float = 0.0


async def escalate(kernel: Kernel, execution: Execution, budgets: Budgets) -> Ending:
    """End an execution, ``budgets.grace`` seconds a step and ``budgets.compiled`` for a call into compiled code."""
    interrupter, is_away, noticed = kernel.interrupter, False, False
    for step in _STEPS:
        if step not in interrupter.available_steps:
            continue
        noticed = await _take_step(kernel, execution, step, budgets.grace, is_read=noticed)
        is_away |= step == "cancel" and not noticed
        repeats = step != "interrupt" and "interrupt" in interrupter.available_steps
        with anyio.move_on_after(budgets.grace if noticed or step == "cancel" else 0):
            if repeats:
                await _repeat_interrupts(kernel, execution)
            await execution.ended.wait()
        if execution.ended.is_set():
            await interrupter.kill_processes(execution.msg_id, budgets.grace)
            return Ending(step)
    awaited = await _wait_for_compiled_code(kernel, execution, budgets) if is_away else 0.0
    if execution.ended.is_set():
        await interrupter.kill_processes(execution.msg_id, budgets.grace)
        return Ending("interrupt", awaited_seconds=awaited)
    await interrupter.request_stacks()  # not before: to read the stack of a thread that runs on can crash the kernel
    stacks = await interrupter.read_stacks()
    await kernel.kill()
    execution.finish("died")
    return Ending("kill", stacks, awaited)


async def _repeat_interrupts(kernel: Kernel, execution: Execution) -> None:
    """Interrupt a cell until its end."""
    for count in itertools.count():
        with anyio.move_on_after(_PAUSE_SECONDS if count < _PAUSES else _SHORT_PAUSE_SECONDS):
            await execution.ended.wait()
            return
        await kernel.interrupter.request_interrupt(execution.msg_id, NOTICE_SECONDS)


async def _wait_for_compiled_code(kernel: Kernel, execution: Execution, budgets: Budgets) -> float:
    """Wait while the main thread has run no Python code since the interrupt, then for the cell's end; return the seconds."""
    began = anyio.current_time()
    execution.is_in_compiled_code = True
    with anyio.move_on_after(budgets.compiled):
        while not execution.ended.is_set() and not await kernel.interrupter.request_cancel(execution.msg_id, NOTICE_SECONDS):
            with anyio.move_on_after(_LOOK_SECONDS):
                await execution.ended.wait()
        with anyio.move_on_after(budgets.grace):  # it has met the interrupt only now
            await execution.ended.wait()
    execution.is_in_compiled_code = False
    return anyio.current_time() - began


async def _take_step(kernel: Kernel, execution: Execution, step: InterruptStep, grace: float, *, is_read: bool) -> bool:
    """Take a step; return whether the cell can obey, or for ``cancel`` whether the main thread has run Python code since.

    With ``is_read`` the kernel has read the previous request.
    """
    interrupter, msg_id, patience = kernel.interrupter, execution.msg_id, min(grace, NOTICE_SECONDS)
    match step:
        case "interrupt":
            return await interrupter.request_interrupt(msg_id, patience)
        case "signal":
            if not (is_read and await interrupter.request_interrupt(msg_id, patience)):  # the launcher counts requests
                await interrupter.signal(signal.SIGINT)
        case "cancel":
            return await interrupter.request_cancel(msg_id, patience)
        case "command":
            await interrupter.kill_processes(msg_id, patience)
    return True
