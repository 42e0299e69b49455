"""State that is gone, and the one result that says so."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.results import Cause
from kernelexec.session.cells.cell_run import Verdict

_LISTED = 20


@dataclass(frozen=True, slots=True)
class Loss:
    """State that is gone, and whether a result has said so yet."""

    cause: Cause
    exit_code: int
    names: tuple[str, ...]
    name_count: int
    told: bool

    def __str__(self) -> str:
        """The names, as many as a reader wants, and how many there are beside them."""
        listed = self.names[:_LISTED]
        more = self.name_count - len(listed)
        return ", ".join(listed) + f" and {more} more" * (more > 0)


#: Of a kernel that was killed with its owner, whose names nobody knows any more.
WITH_OWNER = Loss("killed", 137, (), 0, told=False)


def loss_told(verdict: Verdict, loss: Loss | None, epoch: int) -> None:
    """Let the first result after a new kernel say what became of the old one."""
    if loss is None:
        return
    names = f" Lost: {loss}." if loss.names else ""
    verdict.notes.insert(0, f"Ran in a new kernel (epoch {epoch}): the one before ended ({loss.cause}).{names}")
    if not loss.told and verdict.state == "kept":
        verdict.state, verdict.cause, verdict.lost_names = "lost", loss.cause, loss.names
