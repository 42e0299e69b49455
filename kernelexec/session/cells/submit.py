"""A cell on its way: it takes its place, or joins the request that was sent before, and its result is waited for."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

from kernelexec.cells import Cell
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.events import Event
from kernelexec.policy.decisions import Approver
from kernelexec.results import ExecutionResult, OnInput
from kernelexec.session.cells.approval import check_callables
from kernelexec.session.cells.cell_run import OnOutput, Turn
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.cells.queue import Queue
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.lifecycle import Life


class Sending(Secrecy):
    """The part of a session by which cells are sent."""

    name: str
    isolation: str
    life: Life
    _config: Config
    _kernels: Kernels
    _queue: Queue
    _requests: Requests
    _tell: Callable[[Event], None]

    async def _submit(
        self,
        cell: Cell,
        timeout: float | None,
        wait: float | None,
        on_output: OnOutput | None,
        request_id: str | None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
    ) -> Callable[[], Awaitable[ExecutionResult]]:
        """Send a cell, or find the one that this request sent before; what waits for its result comes back."""
        self.life.check_open()
        self._requests.check(request_id)
        budget = self._config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        patience = None if wait is None else seconds(wait, "wait")
        if on_output is not None and (not callable(on_output) or inspect.iscoroutinefunction(on_output)):
            message = f"on_output={on_output!r}: it is a plain function of one output, not a coroutine function."
            raise InvalidRequest(message)
        check_callables((), approver, on_input)
        turn = Turn(
            cell,
            timeout=budget,
            on_output=on_output,
            request_id=request_id,
            isolation=self.isolation,
            approver=approver,
            on_input=on_input,
        )
        turn.shown = self._masked_cell(cell)
        found = await self._requests.admit(turn, self._queue.add, self._kernels.of(cell))
        return partial(self._outcome, turn, found, patience)

    async def _outcome(self, turn: Turn, found: Turn | ExecutionResult, patience: float | None) -> ExecutionResult:
        if isinstance(found, ExecutionResult):
            return found
        result = await self._queue.outcome(found, patience, joined=found is not turn)
        return result if found is turn else self._requests.as_of_now(result, self._kernels.of(turn.cell))

    @contextmanager
    def _refusals_told(self, kind: Literal["code", "command"], source: object, request_id: object) -> Iterator[None]:
        """Have the hooks told of what is refused within."""
        try:
            yield
        except (InvalidRequest, Refused) as exc:
            self._tell(self._refused(kind, source, exc, request_id))
            raise
