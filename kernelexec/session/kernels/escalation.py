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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from kernelexec.kernel import Execution, Kernel
from kernelexec.results import InterruptStep

#: The time limit for the kernel's control thread to confirm a request. A C loop that holds the interpreter's lock blocks it.
NOTICE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Escalation:
    """The step that ended the cell, and the stacks of all threads if it was the last step."""

    rung: InterruptStep
    stacks: str = ""


async def escalate(kernel: Kernel, execution: Execution, *, grace: float) -> Escalation:
    """End the execution, with ``grace`` seconds for each step."""

    async def interrupt() -> bool:
        return await kernel.interrupter.request_interrupt(min(grace, NOTICE_SECONDS))

    async def signal_from_outside() -> bool:
        await kernel.interrupter.signal(signal.SIGINT)
        return True

    async def cancel() -> bool:
        kernel.interrupter.request_cancel()
        return True

    async def kill_children() -> bool:
        await kernel.interrupter.request_stacks()
        await kernel.interrupter.signal_children(signal.SIGKILL)
        return True

    steps: list[tuple[InterruptStep, Callable[[], Awaitable[bool]]]] = [
        ("interrupt", interrupt),
        ("signal", signal_from_outside),
        ("cancel", cancel),
        ("command", kill_children),
    ]
    for rung, step in steps:
        if rung not in kernel.interrupter.rungs:
            continue
        noticed = await step()
        with anyio.move_on_after(grace if noticed else 0):
            await execution.ended.wait()
        if execution.ended.is_set():
            return Escalation(rung)
    stacks = await kernel.interrupter.read_stacks()
    await kernel.kill()
    execution.finish("died")
    return Escalation("kill", stacks)
