"""The cells of one session: one runs, the others wait in order, and of those that have ended the newest are remembered."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

import anyio

from kernelexec.config import Capacity
from kernelexec.errors import QueueFull
from kernelexec.events import CellAborted, CellExecuted, Event
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.history import Memory
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.result_builder import broke_off, never_ran, snapshot
from kernelexec.session.cells.runner import Runner
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.lifecycle import Life

_LATE_TOLD = 3


class Queue:
    """Gives each turn a task of the session's life, and lets them run one at a time."""

    def __init__(
        self,
        session: str,
        capacity: Capacity,
        life: Life,
        *,
        kernels: Kernels,
        runner: Runner,
        requests: Requests,
        tell: Callable[[Event], None],
    ) -> None:
        self.order = asyncio.Lock()
        self.turns: list[Turn] = []
        self._memory = Memory(capacity.results)
        self._session = session
        self._limit = capacity.queue
        self._life = life
        self._kernels = kernels
        self._runner = runner
        self._requests = requests
        self._tell = tell

    @property
    def first(self) -> Turn | None:
        """The turn that runs, or the one that will."""
        return self.turns[0] if self.turns else None

    def ids(self) -> tuple[str, ...]:
        """The ids of the remembered, running and waiting turns, the oldest first."""
        return (*self._memory.ids(), *(turn.execution_id for turn in self.turns if not turn.own))

    def find(self, execution_id: str) -> Turn:
        """A remembered, running or waiting turn.

        Raises:
            UnknownExecution: none of them.
        """
        return self._memory.find(execution_id, self.turns)

    def add(self, turn: Turn) -> None:
        """Put a turn at the end.

        Raises:
            QueueFull: too many wait.
            Closed: the session ends.
        """
        self._life.check_open()
        if len(self.turns) > self._limit:
            message = f"{len(self.turns) - 1} cells wait in session {self._session!r}, its limit: wait for one to end."
            raise QueueFull(message)
        self.turns.append(turn)
        self._life.tasks.start_soon(self._run, turn)

    async def outcome(self, turn: Turn, patience: float | None, *, joined: bool = False) -> ExecutionResult:
        """The turn's result, or the result so far after ``patience`` seconds; what its own side failed with is raised.

        What the callback raised is not raised to who ``joined`` a turn that another call had asked for.
        """
        if patience is None:
            await self._answered(turn, joined=joined)
        else:
            with anyio.move_on_after(patience):
                await self._answered(turn, joined=joined)
        if turn.objection is not None and not joined:
            objection, turn.objection = turn.objection, None
            raise objection
        if turn.failure is not None:  # to who asks first; others have the result that says it
            failure, turn.failure = turn.failure, None
            raise failure
        return self.result(turn) or snapshot(turn, self._session, self._kernels.of(turn.cell).epoch)

    @staticmethod
    async def _answered(turn: Turn, *, joined: bool) -> None:
        await (turn.done if joined else turn.answered).wait()
        if turn.objection is None:
            await turn.done.wait()

    def result(self, turn: Turn) -> ExecutionResult | None:
        """The result of a turn that is done, with what came late."""
        late = turn.execution.late.outputs() if turn.execution else ()
        if turn.result is not None and late != turn.result.late:
            turn.result = dataclasses.replace(turn.result, late=late)
        return turn.result if turn.done.is_set() else None

    def let_none_begin(self) -> None:
        """Abort the turns that wait, for their turn or for a decision."""
        for turn in self.turns:
            turn.waiting.cancel()
            turn.deciding.cancel()

    def end(self) -> None:
        """Let go of turns whose task never began. No task runs any more."""
        for turn in list(self.turns):
            self._conclude(turn, self._broken(turn, "The session was closed."))
            turn.answer()

    def forget(self) -> None:
        """Forget all that is remembered, and delete what is kept of it on disk."""
        self._memory.clear()

    async def _run(self, turn: Turn) -> None:
        """The turn's task: wait for the order, run, conclude. Never raises: a failure belongs to who asked."""
        result, why = None, "The session ended."
        try:
            if (refused := self._runner.refuses(turn)) is not None:
                why = refused
                return
            with turn.waiting:
                await self.order.acquire()
            if turn.waiting.cancelled_caught:
                why = "The session was closed." if self._life.ending else "Cancelled while it waited for its turn."
                return
            try:
                if not turn.in_flight:
                    turn.clock.turn = time.monotonic()
                outcome = await self._runner.run(turn)
                if isinstance(outcome, str):
                    why = outcome
                    return
                result = outcome if turn.own else self._with_late_told(outcome)
            finally:
                self.order.release()
            if not turn.own:
                self._tell(CellExecuted(self._session, turn.shown, result, turn.request_id))
                result = self._requests.noted(result)
        except Exception as exc:  # noqa: BLE001 - given to who asked
            turn.failure, why = exc, str(exc)
        finally:
            self._conclude(turn, result or self._broken(turn, why))
            turn.answer()

    def _broken(self, turn: Turn, why: str) -> ExecutionResult:
        """The result of a turn that never came to its own, which the hooks are told too."""
        sent = turn.execution is not None or turn.in_flight
        broken = broke_off if sent else never_ran
        result = self._runner.sealed(broken(turn, self._session, self._kernels.of(turn.cell).epoch, why))
        if turn.own:
            return result
        self._tell((CellExecuted if sent else CellAborted)(self._session, turn.shown, result, turn.request_id))
        return self._requests.noted(result)

    def _with_late_told(self, result: ExecutionResult) -> ExecutionResult:
        """Have a result say which earlier cells' output came meanwhile: it is not among its own."""
        late = self._kernels.take_late()
        if not late:
            return result
        ids = [turn_id for turn_id in self._memory.ids() if self._memory.find(turn_id, ()).execution in late]
        told = (f"Output of an earlier cell came late: wait_for({turn_id!r}) gives it." for turn_id in ids[-_LATE_TOLD:])
        return dataclasses.replace(result, notes=(*result.notes, *told))

    def _conclude(self, turn: Turn, result: ExecutionResult) -> None:
        turn.conclude(result)
        self.turns.remove(turn)
        if turn.own:
            turn.forget()
        else:
            self._memory.keep(turn)
