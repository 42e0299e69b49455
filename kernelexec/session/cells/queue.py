"""The queue of a session: a running cell, waiting cells in order, and the newest finished runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.cells import Cell
from kernelexec.config.types import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidRequest, QueueFull, Refused, UnknownExecution, did_you_mean
from kernelexec.events import CellAborted, CellExecuted, LateOutputReported
from kernelexec.results import ExecutionResult, Output, Progress, output_text
from kernelexec.rules.policy.decisions import check_callables
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.idempotency import refresh_state
from kernelexec.session.cells.result_builder import build_aborted_result, build_interrupted_result, build_running_result
from kernelexec.session.cells.result_cache import check_cacheable
from kernelexec.session.cells.runner import CellRunner, RunContext
from kernelexec.session.kernels.supervisor import KernelSupervisor
from kernelexec.session.notebook_writer import NotebookWriter
from kernelexec.text import apply_returns, cut_middle

logger = logging.getLogger("kernelexec")
#: The client in another process that makes the current call; None for the owner.
calling_client: ContextVar[str | None] = ContextVar("calling_client", default=None)
_interrupts: ContextVar[bool] = ContextVar("interrupts", default=False)
#: The limits for the output of all remembered executions of a session, in bytes: in memory, and in spill files.
MEMORY_BYTES_MAX, SPILLED_BYTES_MAX = 64 * 1024 * 1024, 1024 * 1024 * 1024
#: The finished executions that a session remembers.
_REMEMBERED_MAX = 100
_LATE_NOTES_MAX, _LATE_NOTE_BYTES = 3, 2000


@contextmanager
def interrupting_cells() -> Iterator[None]:
    """Interrupt a cell of this block, or remove a waiting cell, if the caller is cancelled. Otherwise cells go on."""
    token = _interrupts.set(True)
    try:
        yield
    finally:
        _interrupts.reset(token)


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


@dataclass(frozen=True, slots=True)
class SubmittedCell:
    """A caller's view of a cell in the queue. ``joined`` marks the run of an earlier call with the same request."""

    queue: CellQueue
    run: CellRun
    joined: bool = False

    async def wait(self, seconds: float | None = None) -> ExecutionResult:
        """Wait for the result, or return the result so far after ``seconds``; see ``interrupting_cells``.

        Raises:
            Exception: an internal error, raised to the first waiting caller only; or an error of the caller's own output
                callback, never raised to a caller that ``joined`` the run.
        """
        try:
            await self.run.wait(seconds, joined=self.joined)
        except asyncio.CancelledError:
            if _interrupts.get() and not self.joined:
                self.run.request_interrupt()
                # the block promises that nothing runs on: leave only when the cell has ended, whatever else cancels
                await await_to_end(self.run.done.wait())
            raise
        context, result = self.queue.context, self.queue.get_result(self.run)
        supervisor = context.kernels.get_supervisor(self.run.cell)
        if result is None:
            return build_running_result(self.run, context.name, supervisor.epoch)
        return refresh_state(result, supervisor) if self.joined else result

    def progress(self, cursor: int = 0) -> Progress:
        """Return the status of the cell, and its outputs since ``cursor``."""
        run, queue = self.run, self.queue
        outputs, position, missed_outputs = run.collector.since(cursor) if run.collector else ((), 0, 0)
        queue_position = queue.runs.index(run) if run in queue.runs else 0
        result = queue.get_result(run)
        status = "running" if result is None else result.status
        remark = run.execution.remark if run.execution is not None and result is None else ""
        return Progress(run.execution_id, status, outputs, position, missed_outputs, queue_position, result, remark)


@dataclass(slots=True)
class CellQueue:
    """The queue of a session's runs. Each run has a task in the session's scope; ``run_lock`` is held by the running cell.

    ``runs`` has the running cell first. asyncio wakes waiters of a lock in their order, so the tasks keep the queue's order.
    """

    context: RunContext
    runner: CellRunner
    history: FinishedExecutions
    notebook_writer: NotebookWriter
    attachments: Attachments
    runs: list[CellRun] = field(default_factory=list)
    run_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def submit(
        self,
        cell: Cell,
        timeout: float | None,
        prepare: Callable[[], Awaitable[None]] | None,
        **options: Any,  # noqa: ANN401 - as for ``make_run``
    ) -> SubmittedCell:
        """Submit a cell, or join the execution of the same request; ``options`` are fields of ``CellRun``.

        ``prepare`` runs after the checks of all arguments.
        """
        context = self.context
        context.scope.check_open()
        budget, by_client = context.choose_timeout(timeout), calling_client.get() is not None
        run = context.make_run(cell, budget, by_client=by_client, **options)
        context.requests.check(run.request_id)
        _check_callback("on_output", run.on_output, "output")
        _check_callback("on_stdout", run.streams.on_stdout, "piece of bytes")
        check_callables((), run.approver, run.on_input)
        if run.uses_cache is not False:
            backend, workspace = context.kernels.backend, context.workspace_path
            check_cacheable(run, context.config, backend, workspace, has_inputs=prepare is not None)
        run.notes += self.attachments.take_notes()
        if prepare is not None:
            await prepare()
        if run.request_id is None:
            return self.add(run)
        supervisor = context.kernels.get_supervisor(cell)
        submitted = await context.requests.submit_once(run.request_id, run, self.add, supervisor)
        return SubmittedCell(self, submitted, joined=submitted is not run)

    @contextmanager
    def report_refusals(self, kind: Literal["code", "command"], source: object, request_id: object) -> Iterator[None]:
        """Report errors that refuse a cell to the hooks, with masked secrets."""
        try:
            yield
        except (InvalidRequest, Refused) as exc:
            self.context.dispatch(self.context.masking.make_refusal(kind, source, exc, request_id))
            raise

    @property
    def first(self) -> CellRun | None:
        """The run in progress, or the next run."""
        return self.runs[0] if self.runs else None

    def list_ids(self) -> tuple[str, ...]:
        """Return the ids of the remembered, running and waiting executions, the oldest first."""
        return (*self.history.runs, *(run.execution_id for run in self.runs if not run.internal))

    def find(self, execution_id: str) -> CellRun:
        """Return a remembered, running or waiting run; an unknown id raises ``UnknownExecution``."""
        self.context.scope.check_caller()
        for run in (*self.runs, *self.history.runs.values()):
            if run.execution_id == execution_id:
                return run
        message = f"No execution {execution_id!r} is remembered here{did_you_mean(str(execution_id), self.history.runs)}."
        raise UnknownExecution(message)

    def add(self, run: CellRun) -> SubmittedCell:
        """Append a run, and start its task; raise ``QueueFull`` if too many runs wait, ``Closed`` if the session is ending."""
        context = self.context
        context.scope.check_open()
        if len(self.runs) > context.config.capacity.queue:
            raise QueueFull(f"{len(self.runs) - 1} cells wait in session {context.name!r}, its limit: wait for a cell to end.")
        self.runs.append(run)
        context.scope.tasks.start_soon(self._process, run)
        return SubmittedCell(self, run)

    def get_result(self, run: CellRun) -> ExecutionResult | None:
        """Return the result of a finished run, with its late output."""
        late_outputs = run.execution.late.outputs() if run.execution else ()
        if run.result is not None and late_outputs != run.result.late:
            run.result = replace(run.result, late=late_outputs)
        return run.result if run.done.is_set() else None

    async def restart_kernels(self, supervisors: Sequence[KernelSupervisor]) -> None:
        """Replace kernels: the running cell's kernel at once, with the loss of the cell; others before their next cells."""
        first_run, kernels = self.first, self.context.kernels
        first_supervisor = kernels.get_supervisor(first_run.cell) if first_run is not None else None
        is_sent = first_run is not None and (first_run.execution is not None or first_run.in_flight)
        for supervisor in supervisors:
            if is_sent and supervisor is first_supervisor:
                await supervisor.kill("request")
            else:
                supervisor.is_restart_pending = True
        if first_run is not None and first_supervisor in supervisors and first_run.collector is not None:
            await first_run.done.wait()
        if self.first is None:
            async with self.context.scope.hold_open(), self.run_lock:
                for supervisor in supervisors:
                    if supervisor.epoch:
                        await supervisor.acquire()

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
        """Wait for the run's turn, run the cell and finish the run, as the run's task. Internal errors go to the caller."""
        result, reason = None, "The session ended."
        try:
            approval = self.context.approval
            # the rules alone decide without a suspension, so the tasks still take ``run_lock`` in the order of submission
            refusal = None if approval.asks else await approval.check(run)
            outcome = refusal if refusal is not None else await self._run_in_order(run)
            if isinstance(outcome, str):
                reason = outcome
                return
            result = outcome
            if not run.internal:
                recorded = run.get_recorded_outputs(result)
                self.context.dispatch(CellExecuted(self.context.name, run.masked_cell, result, run.request_id, recorded))
                result = self._add_record_notes(result)
        except Exception as exc:  # noqa: BLE001 - raised to the caller
            run.failure, reason = exc, str(exc)
        finally:
            # also when the session's scope is cancelled: a run without a result would leave its callers waiting for ever
            self._finish(run, self._build_failed_result(run, reason) if result is None else result)

    async def _run_in_order(self, run: CellRun) -> ExecutionResult | str:
        """Run a cell after the end of all earlier cells; return the result, or a reason for not running."""
        with run.queue_scope:
            await self.run_lock.acquire()  # not ``async with``: the scope must cancel the wait, and not the run after it
        if run.queue_scope.cancelled_caught:
            return "The session was closed." if self.context.scope.is_stopping else "Cancelled while it waited in the queue."
        try:
            outcome = await self.runner.run(run)
            return outcome if run.internal or isinstance(outcome, str) else self._add_late_notes(outcome)
        finally:
            self.run_lock.release()

    def _build_failed_result(self, run: CellRun, reason: str) -> ExecutionResult:
        """Return the result of a failed or aborted run, and report it to the hooks."""
        was_sent, context = run.execution is not None or run.in_flight, self.context
        build = build_interrupted_result if was_sent else build_aborted_result
        epoch = context.kernels.get_supervisor(run.cell).epoch
        result = context.masking.mask_result(build(run, context.name, epoch, reason))
        if run.internal:
            return result
        context.dispatch((CellExecuted if was_sent else CellAborted)(context.name, run.masked_cell, result, run.request_id))
        return self._add_record_notes(result)

    def _add_record_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result, with notes if the journal does not contain it, or the notebook lacks earlier cells."""
        result, failure = self.context.requests.add_journal_note(result), self.notebook_writer.failure
        if failure is None:
            return result
        return replace(result, notes=(*result.notes, f"Not recorded in the notebook yet: {failure}."))

    def _add_late_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Add notes with late output of earlier cells. Late output is not part of this result."""
        notes = self.report_late_outputs()
        return replace(result, notes=(*result.notes, *notes[-_LATE_NOTES_MAX:])) if notes else result

    def report_late_outputs(self) -> list[str]:
        """Report the late output since the last call to the hooks; return a note for each cell with late output."""
        notes = []
        for run_id, run in self.history.runs.items():
            outputs, run.late_cursor, _ = run.execution.late.since(run.late_cursor) if run.execution else ((), 0, 0)
            if outputs:
                self.context.dispatch(LateOutputReported(self.context.name, run_id, outputs))
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


def _check_callback(name: str, function: object, argument: str) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        raise InvalidRequest(f"{name}={function!r} must be a plain function of one {argument}, not a coroutine function.")


async def iterate_outputs(
    execute: Callable[..., Awaitable[ExecutionResult]],
    wait_for: Callable[..., Coroutine[Any, Any, Progress]],
    on_begin: Callable[[ExecutionResult], object] = lambda _: None,
) -> AsyncGenerator[Output | ExecutionResult, None]:
    """Yield a cell's outputs on arrival, then the result. Output missed by a slow caller is in the result.

    Args:
        execute: submits the cell; takes ``wait`` and ``on_output``.
        wait_for: returns the outputs since a cursor.
        on_begin: called after the submission, with the result so far.
    """
    changed = asyncio.Event()
    with anyio.CancelScope(shield=True):  # a cell that is submitted is known to the caller
        begun = await execute(wait=SHORTEST_TIMEOUT, on_output=lambda _: changed.set())
        on_begin(begun)
    ending = asyncio.ensure_future(wait_for(begun.execution_id))
    ending.add_done_callback(lambda _: changed.set())
    cursor = 0
    try:
        while True:
            changed.clear()  # before the look, so that an output between the look and the wait wakes the wait
            progress = await wait_for(begun.execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)
            for output in progress.outputs:
                yield output
            if progress.result is not None:
                yield progress.result
                return
            cursor = progress.cursor
            await changed.wait()
    finally:
        ending.cancel()


class Attachments:
    """The attached clients of a session. The owner's next result names new clients, and counts the clients' cells."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._held: dict[object, str] = {}
        self._new: dict[str, None] = {}
        self._cells: dict[str, int] = {}
        self._returned: dict[str, None] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """The attached clients, the oldest first."""
        return tuple(dict.fromkeys(self._held.values()))

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Count a client as attached within the block."""
        hold, extra = object(), {"session": self._session, "client": client}
        self._held[hold], self._new[client] = client, None
        logger.info("kernelexec.client_attached", extra=extra)
        try:
            yield
        finally:
            del self._held[hold]
            logger.info("kernelexec.client_detached", extra=extra)

    def note_return(self, client: str) -> None:
        """Note a client's return to an earlier state of the session."""
        self._returned[client] = None

    def take_notes(self) -> list[str]:
        """Count a client's cell; for the owner's cell, return the notes about clients since the owner's last cell."""
        if (client := calling_client.get()) is not None:
            self._cells[client] = self._cells.get(client, 0) + 1
            return []
        notes = [f"{name} has attached to this session: its cells run in turn with yours." for name in self._new]
        for name, count in self._cells.items():
            notes.append(f"{count} cell{'s' * (count > 1)} of {name} ran here since your last one.")
        notes += [f"{name} has gone back to an earlier state of this session." for name in self._returned]
        self._new, self._cells, self._returned = {}, {}, {}
        return notes
