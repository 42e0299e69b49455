"""The kernel and the running cell of a session whose owner died, for the next owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelexec.provisioning import Handover
from kernelexec.records.journal import Flight
from kernelexec.session.cells.cell_run import Turn


@dataclass(frozen=True, slots=True)
class OrphanedSession:
    """A kernel that waits for a new owner, and the cell that runs in it according to the journal."""

    handover: Handover
    flight: Flight | None
    ended: Mapping[str, int] = field(default_factory=dict)
    """The languages whose kernels ended with the owner, and the epoch of each one's last kernel."""

    def turn(self, isolation: str) -> Turn | None:
        """Return a turn that resumes the cell; None where none runs in that kernel: those of other kernels ended."""
        flight = self.flight
        if flight is None or flight.cell.kernel != "python" or flight.kernel_epoch != self.handover.epoch:
            return None
        return Turn(
            flight.cell,
            timeout=flight.timeout,
            request_id=flight.request_id,
            isolation=isolation,
            execution_id=flight.execution_id,
            began=flight.began,
        )
