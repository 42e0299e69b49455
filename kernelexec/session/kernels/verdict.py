"""The verdict on the end of a cell: the state of its kernel, and the notes about memory and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelexec.kernel.launcher_reports import Usage
from kernelexec.results import Cause, Interrupted, InterruptStep, State
from kernelexec.results.usage import format_size

if TYPE_CHECKING:
    from kernelexec.kernel import Kernel


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
    has_run: bool = True
    """False if the kernel, which an earlier cell has ended, died before the cell began; then nothing else is judged."""
    is_skipped: bool = False
    """Whether it has not run since its end was asked for while a cell of another client ran."""


def judge_death(kernel: Kernel, verdict: Verdict) -> None:
    """Enter the death of a kernel into the verdict, where no other one follows."""
    cause, verdict.exit_code = (kernel.death.cause, kernel.death.exit_code) if kernel.death is not None else ("killed", 137)
    verdict.state, verdict.cause, verdict.lost_names = "lost", cause, tuple(sorted(kernel.variable_names.known))


def add_obstacles_note(verdict: Verdict, ended: Kernel) -> None:
    """Add a note on what has prevented a checkpoint before the cell, where the configuration asks for such checkpoints."""
    from kernelexec.kernel.launcher_reports import explain_obstacles, read_obstacles  # noqa: PLC0415 - few kernels end

    if obstacles := read_obstacles(ended.obstacles):
        reason = explain_obstacles(obstacles)
    elif ended.installed is not None or ended.config.checkpoints.mode not in ("auto", "each") or ended.next_cell == 1:
        return
    elif not ended.has_place_for_checkpoints:
        reason = "kernels make none here."
    elif ended.usage.memory is not None and ended.usage.memory.checkpoints:
        reason = "they were ended for want of memory."
    else:
        reason = "none was made in the time that they may take, or each has ended."
    verdict.notes.append(f"There was no checkpoint to go on from: {reason}")


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
    if usage.killed_checkpoints > 0:
        dropped = "One checkpoint was" if usage.killed_checkpoints == 1 else f"{usage.killed_checkpoints} checkpoints were"
        verdict.notes.append(f"{dropped} dropped for want of memory.")
    if usage.watermark is not None:
        over = usage.memory is not None and not usage.memory.high
        verdict.notes.append(f"While the cell ran, {usage.watermark}" if over else str(usage.watermark))
