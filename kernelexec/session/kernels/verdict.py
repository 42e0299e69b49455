"""The verdict on the end of a cell: whether the kernel has kept its state, and the lost states of ended kernels.

A kernel confirms its state after a cell, or at least answers. A later result reports the loss of an ended kernel once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelexec.kernel import Execution, Kernel
from kernelexec.kernel.launcher_reports import Usage, explain_obstacles, read_obstacles
from kernelexec.results import Cause, ExecutionResult, Interrupted, InterruptStep, State
from kernelexec.results.usage import format_size
from kernelexec.session.kernels.starts import RepeatedCells

#: The beginning of the note of the first result of a kernel that replaces another one.
NEW_KERNEL_NOTE = "Ran in a new kernel"
_CLIENT_RETURN = "The kernel has ended ({}) since your last cell, and the session went on from a checkpoint."
#: The names in one note, and the names of earlier kernels that are remembered.
_LISTED, _MISSING_MAX = 20, 10_000


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
    """The memory limit, as text, of a kernel that ended at this limit."""
    has_run: bool = True
    """False if an earlier cell had ended the kernel before this cell began. Then nothing else is judged."""
    is_skipped: bool = False
    """Whether the cell was skipped, because its end was requested during a cell of another client."""


def judge_death(kernel: Kernel, verdict: Verdict) -> None:
    """Enter the death of a kernel without a successor into the verdict."""
    cause, verdict.exit_code = (kernel.death.cause, kernel.death.exit_code) if kernel.death is not None else ("killed", 137)
    verdict.state, verdict.cause, verdict.lost_names = "lost", cause, tuple(sorted(kernel.variable_names.known))


def add_obstacles_note(verdict: Verdict, ended: Kernel) -> None:
    """Add a note on the obstacles to a checkpoint before the cell, if the configuration asks for such checkpoints."""
    if obstacles := read_obstacles(ended.obstacles):
        reason = explain_obstacles(obstacles)
    elif ended.installed is not None or ended.config.checkpoints not in ("auto", "each") or ended.next_cell == 1:
        return
    elif not ended.has_place_for_checkpoints:
        reason = "kernels make none here."
    elif ended.usage.memory is not None and ended.usage.memory.checkpoints:
        reason = "they were ended for want of memory."
    else:
        reason = "none was made in the time that they may take, or each has ended."
    verdict.notes.append(f"There was no checkpoint to go on from: {reason}")


def memory_limit_text(usage: Usage, isolation: str) -> str:
    """Return the memory limit of a kernel as text; empty for an unknown limit."""
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


async def confirm_state(kernel: Kernel, execution: Execution, verdict: Verdict, grace: float) -> bool:
    """Return whether the kernel confirms its state, or at least answers within ``grace`` seconds; else add a note."""
    # the token in the reply: a kernel that was replaced by ``exec`` in the cell may answer too, but does not know it
    if execution.end == "complete" and kernel.confirms_state(execution):
        return True
    if execution.end in ("complete", "incomplete"):
        if await kernel.client.wait_until_quiet(execution, grace):
            if execution.end == "incomplete":
                verdict.notes.append("The kernel never reported the end of the cell, but answers again.")
            return True
        verdict.notes.append("The kernel no longer answered after the cell and was killed.")
    elif execution.end == "disconnected" and not await has_ended(kernel, grace):
        verdict.cause = "killed" if kernel.is_unreachable else None  # also if the cell was interrupted before
        subject = "The container engine does not answer, and its" if kernel.is_unreachable else "The"
        act = "did not read its messages" if kernel.client.is_overrun else "closed its sockets"
        verdict.notes.append(f"{subject} kernel {act}: it counts as killed.")
    return False


async def has_ended(kernel: Kernel, grace: float) -> bool:
    """Return whether an ending kernel is reported as dead."""
    # the sockets close before the process is gone, so the report comes later than the disconnection
    return await kernel.wait_exit(grace * 2) or await kernel.wait_report()


@dataclass(frozen=True, slots=True)
class LostState:
    """The lost state of a kernel. ``is_reported`` is true if the result of the kernel's last cell has reported the loss.

    After a return to a checkpoint, ``return_note`` names the checkpoint, and ``names`` has the missing names only.
    """

    cause: Cause
    exit_code: int
    names: tuple[str, ...]
    name_count: int
    is_reported: bool
    return_note: str = ""

    @classmethod
    def of(cls, kernel: Kernel, cause: Cause, exit_code: int, *, is_reported: bool) -> LostState:
        """Return the lost state of a kernel with the names of its variables."""
        names = kernel.variable_names
        return cls(cause, exit_code, tuple(sorted(names.known)), names.count, is_reported)

    def __str__(self) -> str:
        """Return the first names, and the number of further names."""
        return _list_names(self.names, self.name_count)


#: The lost state of a kernel that was killed with its owner; its names are unknown.
LOST_WITH_OWNER = LostState("killed", 137, (), 0, is_reported=False)


@dataclass(frozen=True, slots=True)
class FormerSession:
    """An ended session with a name that a caller may confuse with a new session. The new session's first result says so.

    ``reason`` follows a colon; ``names`` are the lost variables, if known.
    """

    reason: str
    cause: Cause | None = None
    names: tuple[str, ...] = ()
    name_count: int = 0


class Losses:
    """The lost states of a language's kernels until results have reported them."""

    def __init__(self) -> None:
        self.lost_state: LostState | None = None
        """The lost state without a report so far."""
        self.former: FormerSession | None = None
        """An earlier session, to mention in the next result."""
        self._client_loss: LostState | None = None
        """The lost state reported only in results of clients in other processes."""
        self._missing: dict[str, Cause] = {}

    def add(self, lost_state: LostState) -> None:
        """Add the lost state of an ended kernel."""
        # ``_missing`` outlives the report: a NameError many cells later still gets its explanation
        self.lost_state = lost_state
        missing = self._missing | dict.fromkeys(lost_state.names, lost_state.cause)
        self._missing = dict(list(missing.items())[-_MISSING_MAX:])

    def take(self, *, by_client: bool) -> tuple[LostState | None, FormerSession | None]:
        """Return the unreported losses, for the next cell's result. The owner also gets losses reported to clients only."""
        lost_state, former = self.lost_state, self.former
        self.lost_state = self.former = None
        if former is not None and former.cause is not None:
            self._missing |= dict.fromkeys(former.names[:_MISSING_MAX], former.cause)
        if not by_client:
            client_loss, self._client_loss = self._client_loss, None
            if client_loss is not None and (lost_state is None or lost_state.is_reported):
                lost_state = client_loss
        return lost_state, former

    def give_back(self, lost_state: LostState | None, former: FormerSession | None) -> None:
        """Keep the values of ``take`` for the next result."""
        self.lost_state, self.former = self.lost_state or lost_state, self.former or former

    def note_client_result(self, result: ExecutionResult) -> None:
        """Note a loss reported in a result of another process's cell. The owner has not seen the report."""
        is_restored, cause, names = result.state == "restored", result.cause or "killed", result.lost_names
        if result.state == "lost" or (is_restored and self._client_loss is None):
            note = _CLIENT_RETURN.format(cause) if is_restored else ""
            self._client_loss = LostState(cause, 0, names, len(names), is_reported=False, return_note=note)

    def list_missing(self, kernel: Kernel | None) -> Mapping[str, Cause]:
        """Return the names of earlier kernels' variables unknown to the present kernel, with the causes of their loss."""
        if self._missing and kernel is not None:
            for name in kernel.variable_names.known:
                self._missing.pop(name, None)
        return self._missing


def report_new_state(verdict: Verdict, former: FormerSession | None) -> None:
    """Report in the first result of a new kernel that the kernel is new. A report of a loss takes precedence."""
    if former is None or verdict.state != "kept":
        return
    gone = f" Gone: {_list_names(former.names, former.name_count)}." if former.names else ""
    verdict.notes.insert(0, f"A new kernel: {former.reason}.{gone}")
    verdict.state, verdict.cause, verdict.lost_names = "new", former.cause, former.names


def report_lost_state(verdict: Verdict, lost_state: LostState | None, epoch: int) -> None:
    """Report the end of the previous kernel in the new kernel's first result."""
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
    """Return the note on a return, in a copy or a new kernel, after the end of a kernel in ``ended_cell``."""
    before = "this cell" if repeated.first >= ended_cell else f"cell [{repeated.first}]"
    lost = "this cell has" if repeated.undone >= ended_cell else f"the cells from [{repeated.undone}] on have"
    older = f" Older now: {_list_names(repeated.older_names, len(repeated.older_names))}." if repeated.older_names else ""
    reason = f" Cell [{repeated.undone}] did not run again: {repeated.obstacle}.{older}" if repeated.obstacle else ""
    state = "variables, imports and the current directory are as they were"
    state = f"{describe_repeated(repeated)}, and {state} after that" if repeated.count else f"{state} then"
    start = f"from its checkpoint before {before}" if is_copy else "in a new one"
    return f"The kernel ended ({cause}), and the session goes on {start}: {state}. What {lost} changed in them is lost.{reason}"


def describe_repeated(repeated: RepeatedCells) -> str:
    """Return a clause on the repeated cells."""
    last = repeated.undone - 1
    return f"cell [{last}] has run again" if repeated.count == 1 else f"the cells [{repeated.first}] to [{last}] have run again"


def _list_names(names: tuple[str, ...], count: int) -> str:
    listed = names[:_LISTED]
    more = count - len(listed)
    return ", ".join(listed) + f" and {more} more" * (more > 0)
