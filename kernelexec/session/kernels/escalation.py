"""The ladder that ends a running cell, gentlest rung first; only the last one costs the state.

interrupt   a request on the control channel; the kernel signals its own process group
signal      SIGINT from outside, which also reaches a C loop that holds the interpreter's lock
cancel      a top-level await is cancelled, whatever the cell made of the signal
command     SIGKILL to every other process that the cell started
kill        the kernel's process and all its descendants; before it, every thread's stack is taken

A kernel of another language has one rung before the last: the interrupt that its kernelspec names.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from kernelexec.kernel import Execution, Kernel
from kernelexec.results import Rung

#: How long the kernel's control thread may take to notice a request: it cannot where a C loop holds the interpreter's lock.
NOTICE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Climbed:
    """The rung that ended the cell, and the stacks if it was the last one."""

    rung: Rung
    stacks: str = ""


async def end_cell(kernel: Kernel, execution: Execution, *, grace: float) -> Climbed:
    """End the execution. Each rung has ``grace`` seconds; whatever happens, it has ended when this returns."""

    async def interrupt() -> bool:
        return await kernel.request_interrupt(min(grace, NOTICE_SECONDS))

    async def from_outside() -> bool:
        await kernel.signal(signal.SIGINT)
        return True

    async def cancel() -> bool:
        kernel.request_cancel()
        return True

    async def command() -> bool:
        await kernel.request_stacks()
        await kernel.signal_children(signal.SIGKILL)
        return True

    rungs: list[tuple[Rung, Callable[[], Awaitable[bool]]]] = [
        ("interrupt", interrupt),
        ("signal", from_outside),
        ("cancel", cancel),
        ("command", command),
    ]
    for rung, step in rungs:
        if rung not in kernel.rungs:
            continue
        noticed = await step()
        with anyio.move_on_after(grace if noticed else 0):
            await execution.ended.wait()
        if execution.ended.is_set():
            return Climbed(rung)
    stacks = await kernel.stacks()
    await kernel.kill()
    execution.finish("died")
    return Climbed("kill", stacks)
