"""The queue of one session: one cell runs, the others wait in order, and the newest finished runs are remembered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kernelexec.errors import QueueFull, UnknownExecution, did_you_mean
from kernelexec.events import CellAborted, CellExecuted, Event, LateOutputReported
from kernelexec.results import ExecutionResult, output_text
from kernelexec.session.cells.approval import CellApproval
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.idempotency import RequestIds
from kernelexec.session.cells.result_builder import (
    build_aborted_result,
    build_interrupted_result,
    build_running_result,
    mask_result,
)
from kernelexec.session.cells.runner import CellRunner
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.lifecycle import TaskScope
from kernelexec.session.notebook_writer import NotebookWriter
from kernelexec.text import apply_returns, cut_middle

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore

#: The limits for the output of all remembered executions of a session, in bytes: in memory, and in spill files.
MEMORY_BYTES_MAX, SPILLED_BYTES_MAX = 64 * 1024 * 1024, 1024 * 1024 * 1024
#: The finished executions that a session remembers.
_REMEMBERED_MAX = 100
_LATE_NOTES_MAX, _LATE_NOTE_BYTES = 3, 2000


class FinishedExecutions:
    """The finished runs by execution id. The oldest are dropped first, with their spill files."""

    def __init__(self) -> None:
        self.runs: OrderedDict[str, CellRun] = OrderedDict()
        self._memory_bytes = 0
        self._spilled_bytes = 0

    def add(self, run: CellRun) -> None:
        """Add a finished run, and drop the oldest runs above the limits."""
        if run.execution is not None:
            run.execution.forget_reply()
        self.runs[run.execution_id] = run
        self._memory_bytes += run.memory_bytes
        self._spilled_bytes += run.spilled_bytes
        while len(self.runs) > 1 and (
            len(self.runs) > _REMEMBERED_MAX or self._memory_bytes > MEMORY_BYTES_MAX or self._spilled_bytes > SPILLED_BYTES_MAX
        ):
            self._drop(self.runs.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop all runs, and delete their files."""
        while self.runs:
            self._drop(self.runs.popitem()[1])

    def _drop(self, run: CellRun) -> None:
        self._memory_bytes -= run.memory_bytes
        self._spilled_bytes -= run.spilled_bytes
        run.delete_files()


@dataclass(slots=True, kw_only=True)
class CellQueue:
    """The queue of one session's runs. Each run has a task in the session's scope; one runs at a time."""

    session: str
    limit: int
    """The number of runs that may wait."""
    scope: TaskScope
    kernels: LanguageKernels
    approval: CellApproval
    runner: CellRunner
    requests: RequestIds
    secrets: SecretStore | None
    dispatch: Callable[[Event], None]
    history: FinishedExecutions
    notebook_writer: NotebookWriter
    runs: list[CellRun] = field(default_factory=list)
    run_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def first(self) -> CellRun | None:
        """The run in progress, or the next run."""
        return self.runs[0] if self.runs else None

    def list_ids(self) -> tuple[str, ...]:
        """Return the ids of the remembered, running and waiting executions, the oldest first."""
        return (*self.history.runs, *(run.execution_id for run in self.runs if not run.internal))

    def find(self, execution_id: str) -> CellRun:
        """Return a remembered, running or waiting run; raise ``UnknownExecution`` if there is none with that id."""
        for run in (*self.runs, *self.history.runs.values()):
            if run.execution_id == execution_id:
                return run
        message = f"No execution {execution_id!r} is remembered here{did_you_mean(str(execution_id), self.history.runs)}."
        raise UnknownExecution(message)

    def add(self, run: CellRun) -> None:
        """Append a run, and start its task; raise ``QueueFull`` if too many runs wait, ``Closed`` if the session is ending."""
        self.scope.check_open()
        if len(self.runs) > self.limit:
            raise QueueFull(f"{len(self.runs) - 1} cells wait in session {self.session!r}, its limit: wait for a cell to end.")
        self.runs.append(run)
        self.scope.tasks.start_soon(self._process, run)

    async def wait_for_result(self, run: CellRun, timeout: float | None, *, joined: bool = False) -> ExecutionResult:
        """Wait for a run, ``timeout`` seconds at most; return its result, or the result so far.

        Raises:
            Exception: the internal error that kept the cell from running, to the first caller that waits; or the error of the
                output callback, to its own caller, and not to a caller that ``joined`` the run.
        """
        await run.wait(timeout, joined=joined)
        if (result := self.get_result(run)) is not None:
            return result
        return build_running_result(run, self.session, self.kernels.get_supervisor(run.cell).epoch)

    def get_result(self, run: CellRun) -> ExecutionResult | None:
        """Return the result of a finished run, with its late output."""
        late_outputs = run.execution.late.outputs() if run.execution else ()
        if run.result is not None and late_outputs != run.result.late:
            run.result = replace(run.result, late=late_outputs)
        return run.result if run.done.is_set() else None

    def abort_waiting(self) -> None:
        """Abort the runs that wait in the queue or for approval."""
        for run in self.runs:
            run.queue_scope.cancel()
            run.approval_scope.cancel()

    def abort_unstarted_runs(self) -> None:
        """Abort the runs whose task never began. All tasks must have ended."""
        for run in list(self.runs):
            self._finish(run, self._build_failed_result(run, "The session was closed."))

    async def _process(self, run: CellRun) -> None:
        """Wait for the run's place in the queue, run it and finish it, as its task. An internal error goes to the caller."""
        result, reason = None, "The session ended."
        try:
            refusal = await self.approval.check(run, early=True)
            outcome = refusal if refusal is not None else await self._run_in_order(run)
            if isinstance(outcome, str):
                reason = outcome
                return
            result = outcome
            if not run.internal:
                recorded = run.get_recorded_outputs(result)
                self.dispatch(CellExecuted(self.session, run.masked_cell, result, run.request_id, recorded))
                result = self._add_record_notes(result)
        except Exception as exc:  # noqa: BLE001 - raised to the caller
            run.failure, reason = exc, str(exc)
        finally:
            self._finish(run, self._build_failed_result(run, reason) if result is None else result)

    async def _run_in_order(self, run: CellRun) -> ExecutionResult | str:
        """Run a cell after all earlier cells have ended; return its result, or the reason for not running it."""
        with run.queue_scope:
            await self.run_lock.acquire()
        if run.queue_scope.cancelled_caught:
            return "The session was closed." if self.scope.is_stopping else "Cancelled while it waited in the queue."
        try:
            outcome = await self.runner.run(run)
            return outcome if run.internal or isinstance(outcome, str) else self._add_late_notes(outcome)
        finally:
            self.run_lock.release()

    def _build_failed_result(self, run: CellRun, reason: str) -> ExecutionResult:
        """Return the result of a run that failed or was aborted, and report it to the hooks."""
        was_sent = run.execution is not None or run.in_flight
        build = build_interrupted_result if was_sent else build_aborted_result
        result = mask_result(build(run, self.session, self.kernels.get_supervisor(run.cell).epoch, reason), self.secrets)
        if run.internal:
            return result
        self.dispatch((CellExecuted if was_sent else CellAborted)(self.session, run.masked_cell, result, run.request_id))
        return self._add_record_notes(result)

    def _add_record_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result, with notes if the journal does not contain it, or the notebook lacks earlier cells."""
        result, failure = self.requests.add_journal_note(result), self.notebook_writer.failure
        if failure is None:
            return result
        return replace(result, notes=(*result.notes, f"Not recorded in the notebook yet: {failure}."))

    def _add_late_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Add notes with late output of earlier cells, which is not part of this result."""
        notes = self.report_late_outputs()
        return replace(result, notes=(*result.notes, *notes[-_LATE_NOTES_MAX:])) if notes else result

    def report_late_outputs(self) -> list[str]:
        """Report output of earlier cells since the last call to the hooks; return a note with each cell's."""
        late_executions, notes = self.kernels.take_late_executions(), []
        for run_id, run in self.history.runs.items() if late_executions else ():
            if run.execution is not None and run.execution in late_executions:
                outputs, run.late_cursor, _ = run.execution.late.since(run.late_cursor)
                self.dispatch(LateOutputReported(self.session, run_id, outputs))
                text = apply_returns(output_text(outputs)).rstrip()
                short = cut_middle(text, _LATE_NOTE_BYTES)
                rest = f" wait_for({run_id!r}) gives all of it." if short != text else ""
                notes.append(f"Output of an earlier cell ({run_id}) came late.{rest}\n{short}")
        return notes

    def _finish(self, run: CellRun, result: ExecutionResult) -> None:
        run.finish(result)
        self.runs.remove(run)
        if run.internal:
            run.delete_files()
        else:
            self.history.add(run)
        run.wake_callers()
