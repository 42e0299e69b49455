"""Lost state, and its report in one result."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.results import Cause
from kernelexec.session.cells.cell_run import Verdict

_LISTED = 20


@dataclass(frozen=True, slots=True)
class LostState:
    """The lost state of a kernel. ``reported`` says that the result of its last cell has reported it."""

    cause: Cause
    exit_code: int
    names: tuple[str, ...]
    name_count: int
    reported: bool

    def __str__(self) -> str:
        """Return the first names, and the number of further ones."""
        listed = self.names[:_LISTED]
        more = self.name_count - len(listed)
        return ", ".join(listed) + f" and {more} more" * (more > 0)


#: The state of a kernel that was killed with its owner; its names are unknown.
WITH_OWNER = LostState("killed", 137, (), 0, reported=False)


def report_lost_state(verdict: Verdict, loss: LostState | None, epoch: int) -> None:
    """Report the end of the previous kernel in the first result of the new one."""
    if loss is None:
        return
    names = f" Lost: {loss}." if loss.names else ""
    verdict.notes.insert(0, f"Ran in a new kernel (epoch {epoch}): the one before ended ({loss.cause}).{names}")
    if not loss.reported and verdict.state == "kept":
        verdict.state, verdict.cause, verdict.lost_names = "lost", loss.cause, loss.names
