"""What a cell asks by `input()` is answered by whoever sent it, in their own time; where nobody answers, it hears so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from kernelexec.kernel import Execution, Kernel, Question
from kernelexec.results import InputRequest
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.user_callbacks import CallFailed, called
from kernelexec.text import clean_text

logger = logging.getLogger("kernelexec")
#: How many questions of a cell's threads may wait at once.
_PENDING_MAX = 10


@asynccontextmanager
async def answering(turn: Turn, kernel: Kernel, execution: Execution, *, session: str, patience: float) -> AsyncIterator[None]:
    """Have the questions of a cell answered while it runs; each may take ``patience`` seconds, which are not the cell's."""
    if turn.on_input is None:
        yield
        return
    answers = _Answers(turn, kernel, execution, session, patience)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers.give_all)
        execution.on_question = answers.hear
        yield
        execution.on_question = None
        tasks.cancel_scope.cancel()


class _Answers:
    """Those of one cell. Once a question was not answered in time no other is asked: a cell could wait for ever."""

    def __init__(self, turn: Turn, kernel: Kernel, execution: Execution, session: str, patience: float) -> None:
        self._turn = turn
        self._kernel = kernel
        self._execution = execution
        self._session = session
        self._patience = patience
        self._pending = 0
        self._given_up = ""
        self._heard: asyncio.Queue[Question] = asyncio.Queue()

    def hear(self, question: Question) -> None:
        """Note a question, called by the connection; what is not to be asked hears at once why."""
        why = self._given_up or ("too many questions wait" if self._pending >= _PENDING_MAX else "")
        if why:
            self._kernel.answer(question, None, why)
            return
        self._pending += 1
        self._heard.put_nowait(question)

    async def give_all(self) -> None:
        """Ask whatever is heard, each beside the others, until this is cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                tasks.start_soon(self._give, await self._heard.get())

    async def _give(self, question: Question) -> None:
        """Ask, and hand the answer on."""
        self._turn.asked_input = True
        text: str | None = None
        try:
            with self._execution.paused():
                text, why = await self._asked(question)
        finally:
            self._pending -= 1
        self._kernel.answer(question, text, why)

    async def _asked(self, question: Question) -> tuple[str | None, str]:
        request = InputRequest(self._turn.execution_id, self._session, clean_text(question.prompt), question.password)
        try:
            with anyio.fail_after(self._patience):
                said = await called(self._turn.on_input, request)
        except TimeoutError:
            self._given_up = f"nobody answered within {self._patience:g} s"
            return None, self._given_up
        except CallFailed as exc:
            if not isinstance(exc.__cause__, EOFError):
                logger.exception("kernelexec.on_input_failed", extra={"session": self._session})
            return None, str(exc).removeprefix("EOFError: ")
        if said is None:
            return None, "there is no answer"
        return (clean_text(said), "") if isinstance(said, str) else (None, f"the answer was {said!r:.100}, which is no text")
