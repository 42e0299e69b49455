"""The end of a cell: the escalation of steps that end a running cell, and the verdict on the state after it.

Only the last step of the escalation loses the state.

interrupt   a request on the control channel; the kernel signals its own process group
signal      SIGINT from the driver, which also reaches a C loop that holds the interpreter's lock
cancel      cancellation of a top-level await, even if the cell ignores the signal
command     SIGKILL to every other process that the cell started
kill        the kernel's process and all its descendants, after a dump of every thread's stack

A kernel of another language has only the interrupt of its kernelspec and the last step.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import anyio

from kernelexec.kernel import Execution, Kernel
from kernelexec.kernel.launcher_reports import Usage
from kernelexec.results import Cause, Interrupted, InterruptStep, State
from kernelexec.results.usage import format_size

#: The time limit for the kernel's control thread to confirm a request. A C loop that holds the interpreter's lock blocks it.
NOTICE_SECONDS = 0.2
_STEPS: tuple[InterruptStep, ...] = ("interrupt", "signal", "cancel", "command")
_LISTED = 20


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


@dataclass(slots=True)
class Verdict:
    """The judgement on the end of a cell, before it becomes a result."""

    state: State = "unknown"
    cause: Cause | None = None
    exit_code: int | None = None
    interrupted: Interrupted | None = None
    step: InterruptStep | None = None
    lost_names: tuple[str, ...] = ()
    confinement: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    stacks: str = ""
    memory_limit: str = ""
    """The memory limit, as text, where reaching it ended the kernel."""


@dataclass(frozen=True, slots=True)
class LostState:
    """The lost state of a kernel. ``is_reported`` is true if the result of the kernel's last cell has reported it."""

    cause: Cause
    exit_code: int
    names: tuple[str, ...]
    name_count: int
    is_reported: bool

    def __str__(self) -> str:
        """Return the first names, and the number of further names."""
        listed = self.names[:_LISTED]
        more = self.name_count - len(listed)
        return ", ".join(listed) + f" and {more} more" * (more > 0)


#: The lost state of a kernel that was killed with its owner; its names are unknown.
LOST_WITH_OWNER = LostState("killed", 137, (), 0, is_reported=False)


def report_lost_state(verdict: Verdict, lost_state: LostState | None, epoch: int) -> None:
    """Report the end of the previous kernel in the first result of the new one."""
    if lost_state is None:
        return
    names = f" Lost: {lost_state}." if lost_state.names else ""
    verdict.notes.insert(0, f"Ran in a new kernel (epoch {epoch}): the one before ended ({lost_state.cause}).{names}")
    if not lost_state.is_reported and verdict.state == "kept":
        verdict.state, verdict.cause, verdict.lost_names = "lost", lost_state.cause, lost_state.names


def memory_limit_text(usage: Usage, isolation: str) -> str:
    """Return the memory limit of a kernel as text; empty if none is known."""
    limit = usage.limit_bytes
    owner = "the container's" if isolation == "container" else "its control group's"
    return f"{owner} memory limit of {format_size(limit)}" if limit else ""


def add_memory_notes(verdict: Verdict, usage: Usage, limit: str) -> None:
    """Add notes about the kernel's memory to a verdict."""
    if verdict.cause == "oom":
        verdict.memory_limit = limit
        before = (
            f" The biggest variables before: {usage.memory.names_text}." if usage.memory and usage.memory.names_text else ""
        )
        verdict.notes.append(f"The kernel was killed for want of memory: {limit or 'a limit'} was reached.{before}")
        return
    if usage.killed > 0:
        subject = "One process was" if usage.killed == 1 else f"{usage.killed} processes were"
        verdict.notes.append(f"{subject} killed for want of memory: {limit or 'a limit'} was reached.")
    if usage.watermark is not None:
        over = usage.memory is not None and not usage.memory.high
        verdict.notes.append(f"While the cell ran, {usage.watermark}" if over else str(usage.watermark))
