"""The submission of a cell to the queue, or to the execution of the same request."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from kernelexec.cells import Cell
from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.policy.decisions import Approver
from kernelexec.results import ExecutionResult, OnInput
from kernelexec.session.cells.approval import check_callables
from kernelexec.session.cells.cell_run import CellRun, OnOutput
from kernelexec.session.cells.idempotency import RequestIds, refresh_state
from kernelexec.session.context import SessionContext


@dataclass(frozen=True, slots=True)
class SubmittedCell:
    """A cell in the queue from the view of one caller. ``joined`` marks the run of an earlier call with the same request."""

    context: SessionContext
    run: CellRun
    seconds: float | None
    joined: bool = False

    async def get_result(self) -> ExecutionResult:
        """Wait for the result, or return the result so far after ``seconds``."""
        result = await self.context.queue.wait_for_result(self.run, self.seconds, joined=self.joined)
        return refresh_state(result, self.context.kernels.get_supervisor(self.run.cell)) if self.joined else result


class CellSubmitter:
    """The entry of one session's cells to its queue."""

    def __init__(self, context: SessionContext, requests: RequestIds) -> None:
        self._context = context
        self._requests = requests

    async def submit(
        self,
        cell: Cell,
        timeout: float | None,
        wait: float | None,
        on_output: OnOutput | None,
        request_id: str | None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
    ) -> SubmittedCell:
        """Submit a cell, or join the execution of the same request."""
        context = self._context
        context.scope.check_open()
        self._requests.check(request_id)
        budget = context.config.budgets.timeout if timeout is None else check_seconds(timeout, "timeout")
        wait_seconds = None if wait is None else check_seconds(wait, "wait")
        if on_output is not None and (not callable(on_output) or inspect.iscoroutinefunction(on_output)):
            message = f"on_output={on_output!r} must be a plain function of one output, not a coroutine function."
            raise InvalidRequest(message)
        check_callables((), approver, on_input)
        run = CellRun(
            cell,
            timeout=budget,
            on_output=on_output,
            request_id=request_id,
            isolation=context.isolation,
            approver=approver,
            on_input=on_input,
        )
        run.masked_cell = context.masking.mask_cell(cell)
        if request_id is None:
            context.queue.add(run)
            return SubmittedCell(context, run, wait_seconds)
        submitted = await self._requests.submit_once(request_id, run, context.queue.add, context.kernels.get_supervisor(cell))
        return SubmittedCell(context, submitted, wait_seconds, joined=submitted is not run)

    @contextmanager
    def report_refusals(self, kind: Literal["code", "command"], source: object, request_id: object) -> Iterator[None]:
        """Report errors that refuse a cell to the hooks, with masked secrets."""
        try:
            yield
        except (InvalidRequest, Refused) as exc:
            self._context.dispatch(self._context.masking.make_refusal(kind, source, exc, request_id))
            raise
