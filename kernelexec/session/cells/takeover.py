"""The kernel and the running cell of an orphaned session, for its next owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelexec.provisioning import Handover
from kernelexec.records.journal import RunningCell
from kernelexec.session.cells.cell_run import CellRun, Timestamps


@dataclass(frozen=True, slots=True)
class OrphanedSession:
    """A kernel without an owner, and its running cell according to the journal."""

    handover: Handover
    running_cell: RunningCell | None
    ended_epochs: Mapping[str, int] = field(default_factory=dict)
    """The last epoch of each other language's kernel that ended with the owner."""

    def make_run(self, isolation: str) -> CellRun | None:
        """Return a run that resumes the cell, or None if no cell runs in that kernel: cells of other kernels have ended."""
        running_cell = self.running_cell
        if running_cell is None or running_cell.cell.kernel != "python" or running_cell.kernel_epoch != self.handover.epoch:
            return None
        return CellRun(
            cell=running_cell.cell,
            masked_cell=running_cell.cell,
            timeout=running_cell.timeout,
            isolation=isolation,
            request_id=running_cell.request_id,
            execution_id=running_cell.execution_id,
            in_flight=True,
            timestamps=Timestamps(running_cell.began, running_cell.began, running_cell.began),
        )
