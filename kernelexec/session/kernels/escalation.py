"""The escalation that ends a running cell by ever stronger steps. Only the last step loses the state.

interrupt   a request on the control channel; the kernel signals its own process group
signal      SIGINT from the driver, which also reaches a C loop that holds the interpreter's lock
cancel      cancellation of a top-level await, even if the cell ignores the signal
command     SIGKILL to every other process that the cell started
kill        the kernel's process and all its descendants, after a dump of every thread's stack

A kernel of another language has only the interrupt of its kernelspec and the last step.
"""

from __future__ import annotations

import signal

import anyio

from kernelexec.kernel import Execution, Kernel
from kernelexec.results import InterruptStep

#: The time limit for the kernel's control thread to confirm a request. A C loop that holds the interpreter's lock blocks it.
NOTICE_SECONDS = 0.2
_STEPS: tuple[InterruptStep, ...] = ("interrupt", "signal", "cancel", "command")


async def escalate(kernel: Kernel, execution: Execution, *, grace: float) -> tuple[InterruptStep, str]:
    """End an execution, ``grace`` seconds a step; return the last step, and the stacks of all threads after a kill."""
    for step in _STEPS:
        if step not in kernel.interrupter.available_steps:
            continue
        noticed = await _take_step(kernel, step, grace)
        with anyio.move_on_after(grace if noticed else 0):
            await execution.ended.wait()
        if execution.ended.is_set():
            return step, ""
    stacks = await kernel.interrupter.read_stacks()
    await kernel.kill()
    execution.finish("died")
    return "kill", stacks


async def _take_step(kernel: Kernel, step: InterruptStep, grace: float) -> bool:
    """Take one step; return whether the cell can obey it."""
    interrupter = kernel.interrupter
    match step:
        case "interrupt":
            return await interrupter.request_interrupt(min(grace, NOTICE_SECONDS))
        case "signal":
            await interrupter.signal(signal.SIGINT)
        case "cancel":
            interrupter.request_cancel()
        case "command":
            await interrupter.request_stacks()
            await interrupter.signal_children(signal.SIGKILL)
    return True
