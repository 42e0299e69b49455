"""The kernel, the running cell and the newest results of an orphaned session, for its next owner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.cells import CodeCell
from kernelexec.provisioning import Handover
from kernelexec.records.journal import RunningCell, shorten_result
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.cell_run import CellRun, Timestamps
from kernelexec.workspace.safe_files import read_regular, replace_file

logger = logging.getLogger("kernelexec")
_RESULTS_FILE = "results.jsonl"
_RESULTS_MAX, _RESULTS_BYTES = 20, 64 * 1024 * 1024


def write_results(directory: Path, results: Iterable[ExecutionResult]) -> None:
    """Write the newest results into a session's private directory, for the next owner. Failures are logged."""
    lines = [shorten_result(result).to_json().encode() for result in [*results][-_RESULTS_MAX:]]
    try:
        replace_file(directory / _RESULTS_FILE, b"\n".join(lines), mode=0o600)
    except OSError:
        logger.exception("kernelexec.results_not_written", extra={"directory": str(directory)})


def read_results(directory: Path) -> tuple[ExecutionResult, ...]:
    """Return the results written by the last owner at an orderly end; none after a crash."""
    with suppress(OSError, ValueError):
        content = read_regular(directory / _RESULTS_FILE, _RESULTS_BYTES)
        return tuple(ExecutionResult.from_json(line) for line in content.splitlines())
    return ()


@dataclass(frozen=True, slots=True)
class OrphanedSession:
    """A kernel without an owner, and its running cell according to the journal."""

    handover: Handover
    running_cell: RunningCell | None
    ended_epochs: Mapping[str, int] = field(default_factory=dict)
    """The last epoch of each other language's kernel; these ended with the owner."""
    results: tuple[ExecutionResult, ...] = ()
    """The newest results, possibly not collected by their callers."""

    def make_finished_runs(self) -> list[CellRun]:
        """Return a finished run for each result."""
        runs = []
        for result in self.results:
            cell = CodeCell("")
            run = CellRun(
                cell=cell, masked_cell=cell, timeout=0.0, isolation=result.isolation, execution_id=result.execution_id
            )
            run.finish(result)
            run.wake_callers()
            runs.append(run)
        return runs

    def make_run(self, isolation: str) -> CellRun | None:
        """Return a run that resumes the cell, or None if no cell runs in the kernel. Cells of other kernels have ended."""
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
