"""The submission of a cell: it joins the queue, or the execution of the same request, and the caller waits for its result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from kernelexec.cells import Cell
from kernelexec.config import seconds
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.policy.decisions import Approver
from kernelexec.results import ExecutionResult, OnInput
from kernelexec.session.cells.approval import check_callables
from kernelexec.session.cells.cell_run import OnOutput, Turn
from kernelexec.session.cells.idempotency import Requests, refresh_state
from kernelexec.session.context import SessionContext


@dataclass(frozen=True, slots=True)
class SubmittedCell:
    """A cell in the queue, as one caller sees it. ``joined`` marks the run of an earlier call with the same request."""

    context: SessionContext
    run: Turn
    seconds: float | None
    joined: bool = False

    async def result(self) -> ExecutionResult:
        """Return the result, or the result so far once ``seconds`` have passed."""
        result = await self.context.queue.outcome(self.run, self.seconds, joined=self.joined)
        return refresh_state(result, self.context.kernels.of(self.run.cell)) if self.joined else result


class CellSubmission:
    """Submits the cells of one session."""

    def __init__(self, context: SessionContext, requests: Requests) -> None:
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
        """Submit a cell, or find the execution of the same request."""
        context = self._context
        context.scope.check_open()
        self._requests.check(request_id)
        budget = context.config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        patience = None if wait is None else seconds(wait, "wait")
        if on_output is not None and (not callable(on_output) or inspect.iscoroutinefunction(on_output)):
            message = f"on_output={on_output!r} must be a plain function of one output, not a coroutine function."
            raise InvalidRequest(message)
        check_callables((), approver, on_input)
        run = Turn(
            cell,
            timeout=budget,
            on_output=on_output,
            request_id=request_id,
            isolation=context.isolation,
            approver=approver,
            on_input=on_input,
        )
        run.shown = context.masking.cell(cell)
        if request_id is None:
            context.queue.add(run)
            return SubmittedCell(context, run, patience)
        submitted = await self._requests.submit_once(request_id, run, context.queue.add, context.kernels.of(cell))
        return SubmittedCell(context, submitted, patience, joined=submitted is not run)

    @contextmanager
    def report_refusals(self, kind: Literal["code", "command"], source: object, request_id: object) -> Iterator[None]:
        """Report errors that refuse a cell to the hooks, with secrets masked."""
        try:
            yield
        except (InvalidRequest, Refused) as exc:
            self._context.dispatch(self._context.masking.refusal(kind, source, exc, request_id))
            raise
