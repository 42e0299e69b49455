"""The states that ended kernels have lost, and how a later result tells each of them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelexec.results import Cause, ExecutionResult
from kernelexec.session.kernels.verdict import Verdict
from kernelexec.session.kernels.way_back import RepeatedCells

#: The beginning of the note of the first result of a kernel that replaces another one.
NEW_KERNEL_NOTE = "Ran in a new kernel"
_CLIENT_RETURN = "The kernel has ended ({}) since your last cell, and the session went on from a checkpoint."
#: The names in one note, and the names of earlier kernels that are remembered.
_LISTED, _MISSING_MAX = 20, 10_000


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


class Losses:
    """The lost states of one language's kernels until results have told them."""

    def __init__(self) -> None:
        self.lost_state: LostState | None = None
        """The lost state that no result has reported."""
        self.former: FormerSession | None = None
        """The earlier session that the next result tells from this one."""
        self._client_loss: LostState | None = None
        """The lost state that only results of clients in other processes have reported."""
        self._missing: dict[str, Cause] = {}

    def add(self, lost_state: LostState) -> None:
        """Add the lost state of a kernel that has ended."""
        self.lost_state = lost_state
        missing = self._missing | dict.fromkeys(lost_state.names, lost_state.cause)
        self._missing = dict(list(missing.items())[-_MISSING_MAX:])

    def take(self, *, by_client: bool) -> tuple[LostState | None, FormerSession | None]:
        """Return the losses that no result has reported, for the next one; to the owner also those that only clients know."""
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
        """Keep a loss that ``take`` has returned for the next result."""
        self.lost_state, self.former = self.lost_state or lost_state, self.former or former

    def note_client_result(self, result: ExecutionResult) -> None:
        """Note the lost state that the result of another process's cell has reported: the owner has not seen it."""
        is_restored, cause, names = result.state == "restored", result.cause or "killed", result.lost_names
        if result.state == "lost" or (is_restored and self._client_loss is None):
            note = _CLIENT_RETURN.format(cause) if is_restored else ""
            self._client_loss = LostState(cause, 0, names, len(names), is_reported=False, return_note=note)

    def list_missing(self, known: Iterable[str]) -> Mapping[str, Cause]:
        """Return the names that earlier kernels had and the present one does not know, with the causes of their loss."""
        for name in known:
            self._missing.pop(name, None)
        return self._missing


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


def _list_names(names: tuple[str, ...], count: int) -> str:
    listed = names[:_LISTED]
    more = count - len(listed)
    return ", ".join(listed) + f" and {more} more" * (more > 0)
