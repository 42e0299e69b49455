"""The verdict on the end of a cell: the state of its kernel, the lost state, and the notes about memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelexec.kernel.launcher_reports import Usage
from kernelexec.results import Cause, Interrupted, InterruptStep, State
from kernelexec.results.usage import format_size

if TYPE_CHECKING:
    from kernelexec.kernel import Kernel
    from kernelexec.session.kernels.way_back import RepeatedCells

#: The beginning of the note of the first result of a kernel that replaces another one.
NEW_KERNEL_NOTE = "Ran in a new kernel"

_LISTED = 20


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


@dataclass(frozen=True, slots=True)
class LostState:
    """The lost state of a kernel. ``is_reported`` is true if the result of the kernel's last cell has reported it.

    Where the session goes on from a checkpoint, ``return_note`` says from which, and ``names`` are only those that are gone.
    """

    cause: Cause
    exit_code: int
    names: tuple[str, ...]
    name_count: int
    is_reported: bool
    return_note: str = ""

    def __str__(self) -> str:
        """Return the first names, and the number of further names."""
        return _list_names(self.names, self.name_count)


def _list_names(names: tuple[str, ...], count: int) -> str:
    listed = names[:_LISTED]
    more = count - len(listed)
    return ", ".join(listed) + f" and {more} more" * (more > 0)


#: The lost state of a kernel that was killed with its owner; its names are unknown.
LOST_WITH_OWNER = LostState("killed", 137, (), 0, is_reported=False)


@dataclass(frozen=True, slots=True)
class FormerSession:
    """An ended session that a caller may take for a new one: the first result of the new one says so.

    ``reason`` begins a sentence after a colon; ``names`` are the variables that are gone, where they are known.
    """

    reason: str
    cause: Cause | None = None
    names: tuple[str, ...] = ()
    name_count: int = 0


def judge_death(kernel: Kernel, verdict: Verdict) -> None:
    """Enter the death of a kernel into the verdict, where no other one follows."""
    cause, verdict.exit_code = (kernel.death.cause, kernel.death.exit_code) if kernel.death is not None else ("killed", 137)
    verdict.state, verdict.cause, verdict.lost_names = "lost", cause, tuple(sorted(kernel.variable_names.known))


def report_new_state(verdict: Verdict, former: FormerSession | None) -> None:
    """Report in the first result of a new kernel that it is no earlier one; a loss says more."""
    if former is None or verdict.state != "kept":
        return
    gone = f" Gone: {_list_names(former.names, former.name_count)}." if former.names else ""
    verdict.notes.insert(0, f"A new kernel: {former.reason}.{gone}")
    verdict.state, verdict.cause, verdict.lost_names = "new", former.cause, former.names


def report_lost_state(verdict: Verdict, lost_state: LostState | None, epoch: int) -> None:
    """Report the end of the previous kernel in the first result of the new one."""
    if lost_state is None:
        return
    if lost_state.return_note:
        verdict.notes.insert(0, lost_state.return_note)
        if verdict.state == "kept":
            verdict.state, verdict.cause, verdict.lost_names = "restored", lost_state.cause, lost_state.names
        return
    names = f" Lost: {lost_state}." if lost_state.names else ""
    verdict.notes.insert(0, f"{NEW_KERNEL_NOTE} (epoch {epoch}): the one before ended ({lost_state.cause}).{names}")
    if not lost_state.is_reported and verdict.state == "kept":
        verdict.state, verdict.cause, verdict.lost_names = "lost", lost_state.cause, lost_state.names


def describe_return(cause: Cause, repeated: RepeatedCells, ended_cell: int, *, is_copy: bool = True) -> str:
    """Return the note on a session that goes on, after its kernel ended in ``ended_cell``, in a copy or in a new kernel."""
    before = "this cell" if repeated.first >= ended_cell else f"cell [{repeated.first}]"
    lost = "this cell has" if repeated.undone >= ended_cell else f"the cells from [{repeated.undone}] on have"
    older = f" Older now: {_list_names(repeated.older_names, len(repeated.older_names))}." if repeated.older_names else ""
    reason = f" Cell [{repeated.undone}] did not run again: {repeated.obstacle}.{older}" if repeated.obstacle else ""
    state = "variables, imports and the current directory are as they were"
    state = f"{describe_repeated(repeated)}, and {state} after that" if repeated.count else f"{state} then"
    start = f"from its checkpoint before {before}" if is_copy else "in a new one"
    return f"The kernel ended ({cause}), and the session goes on {start}: {state}. What {lost} changed in them is lost.{reason}"


def describe_repeated(repeated: RepeatedCells) -> str:
    """Return a clause on the cells that have run again."""
    last = repeated.undone - 1
    return f"cell [{last}] has run again" if repeated.count == 1 else f"the cells [{repeated.first}] to [{last}] have run again"


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
