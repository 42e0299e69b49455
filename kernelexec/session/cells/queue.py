"""The cells of one session: one runs, the others wait in order, and the newest finished ones are remembered."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from kernelexec.config import Capacity
from kernelexec.errors import QueueFull
from kernelexec.events import CellAborted, CellExecuted, Event
from kernelexec.results import ExecutionResult
from kernelexec.secrets import SecretStore
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.history import FinishedExecutions
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.masking import sealed
from kernelexec.session.cells.result_builder import aborted_result, interrupted_result, running_result
from kernelexec.session.cells.runner import Runner
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.lifecycle import Life

_LATE_NOTES_MAX = 3


class Queue:
    """Gives each run of a cell a task in the session's scope, and lets them run one at a time."""

    def __init__(
        self,
        session: str,
        capacity: Capacity,
        life: Life,
        *,
        kernels: Kernels,
        approval: Permission,
        runner: Runner,
        requests: Requests,
        secrets: SecretStore | None,
        tell: Callable[[Event], None],
    ) -> None:
        self.order = asyncio.Lock()
        self.turns: list[Turn] = []
        self._history = FinishedExecutions(capacity.results)
        self._session = session
        self._limit = capacity.queue
        self._life = life
        self._kernels = kernels
        self._approval = approval
        self._runner = runner
        self._requests = requests
        self._secrets = secrets
        self._dispatch = tell

    @property
    def first(self) -> Turn | None:
        """The run that is in progress, or the next one."""
        return self.turns[0] if self.turns else None

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the remembered, running and waiting executions, the oldest first."""
        return (*self._history.ids(), *(run.execution_id for run in self.turns if not run.own))

    def find(self, execution_id: str) -> Turn:
        """Return a remembered, running or waiting run.

        Raises:
            UnknownExecution: there is none of that id.
        """
        return self._history.find(execution_id, self.turns)

    def add(self, run: Turn) -> None:
        """Append a run, and start its task.

        Raises:
            QueueFull: too many wait.
            Closed: the session ends.
        """
        self._life.check_open()
        if len(self.turns) > self._limit:
            message = f"{len(self.turns) - 1} cells wait in session {self._session!r}, its limit: wait for one to end."
            raise QueueFull(message)
        self.turns.append(run)
        self._life.tasks.start_soon(self._process, run)

    async def outcome(self, run: Turn, patience: float | None, *, joined: bool = False) -> ExecutionResult:
        """Wait for a run, ``patience`` seconds at most; return its result, or the result so far.

        Raises:
            Exception: the error of this side that kept the cell from running, to the first caller that asks; or the error of
                the output callback, to the caller that gave it, and not to one that ``joined`` its run.
        """
        await run.wait(patience, joined=joined)
        return self.result(run) or running_result(run, self._session, self._kernels.of(run.cell).epoch)

    def result(self, run: Turn) -> ExecutionResult | None:
        """Return the result of a finished run, with its late output."""
        late = run.execution.late.outputs() if run.execution else ()
        if run.result is not None and late != run.result.late:
            run.result = dataclasses.replace(run.result, late=late)
        return run.result if run.done.is_set() else None

    def abort_waiting(self) -> None:
        """Abort the runs that wait, for their turn or for a decision."""
        for run in self.turns:
            run.waiting.cancel()
            run.deciding.cancel()

    def end(self) -> None:
        """Finish the runs whose task never began. No task runs any more."""
        for run in list(self.turns):
            self._finish(run, self._failed_result(run, "The session was closed."))

    def forget(self) -> None:
        """Forget all finished runs, and delete their files."""
        self._history.clear()

    async def _process(self, run: Turn) -> None:
        """Wait for the run's turn, run it and finish it, as its task. An error of this side goes to the caller."""
        result, reason = None, "The session ended."
        try:
            refusal = await self._approval.check(run, early=True)
            outcome = refusal if refusal is not None else await self._run_in_order(run)
            if isinstance(outcome, str):
                reason = outcome
                return
            result = outcome
            if not run.own:
                self._dispatch(CellExecuted(self._session, run.shown, result, run.request_id))
                result = self._requests.noted(result)
        except Exception as exc:  # noqa: BLE001 - given to the caller
            run.failure, reason = exc, str(exc)
        finally:
            self._finish(run, result or self._failed_result(run, reason))

    async def _run_in_order(self, run: Turn) -> ExecutionResult | str:
        """Run a cell once all earlier ones have ended; return its result, or the reason why it did not run."""
        with run.waiting:
            await self.order.acquire()
        if run.waiting.cancelled_caught:
            return "The session was closed." if self._life.ending else "Cancelled while it waited for its turn."
        try:
            outcome = await self._runner.run(run)
            return outcome if run.own or isinstance(outcome, str) else self._with_late_notes(outcome)
        finally:
            self.order.release()

    def _failed_result(self, run: Turn, reason: str) -> ExecutionResult:
        """Return the result of a run that has none of its own, after the hooks have got it."""
        was_sent = run.execution is not None or run.in_flight
        build = interrupted_result if was_sent else aborted_result
        result = sealed(build(run, self._session, self._kernels.of(run.cell).epoch, reason), self._secrets)
        if run.own:
            return result
        self._dispatch((CellExecuted if was_sent else CellAborted)(self._session, run.shown, result, run.request_id))
        return self._requests.noted(result)

    def _with_late_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Add notes about the earlier cells that have printed since: their output is not part of this result."""
        late = self._kernels.take_late()
        if not late:
            return result
        ids = [run_id for run_id in self._history.ids() if self._history.find(run_id, ()).execution in late]
        notes = (f"Output of an earlier cell came late: wait_for({run_id!r}) gives it." for run_id in ids[-_LATE_NOTES_MAX:])
        return dataclasses.replace(result, notes=(*result.notes, *notes))

    def _finish(self, run: Turn, result: ExecutionResult) -> None:
        run.conclude(result)
        self.turns.remove(run)
        if run.own:
            run.forget()
        else:
            self._history.add(run)
        run.answer()
