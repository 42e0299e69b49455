"""Answers to a cell's `input()`, from the callback of its caller, outside of the cell's own time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from kernelexec.kernel import Execution, InputRequestMessage, Kernel
from kernelexec.results import InputRequest
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.user_callbacks import CallFailed, called
from kernelexec.text import clean_text

logger = logging.getLogger("kernelexec")
#: How many input requests of a cell's threads may wait at once.
_PENDING_MAX = 10


@asynccontextmanager
async def answer_input_requests(
    run: Turn, kernel: Kernel, execution: Execution, *, session: str, seconds: float
) -> AsyncIterator[None]:
    """Answer the input requests of a cell while it runs. Each may take ``seconds``, which do not count as the cell's."""
    if run.on_input is None:
        yield
        return
    answers = _Answers(run, kernel, execution, session, seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers.answer_all)
        execution.on_input_request = answers.receive
        yield
        execution.on_input_request = None
        tasks.cancel_scope.cancel()


class _Answers:
    """The answers to one cell. After a request that was not answered in time no other is asked: a cell could wait for ever."""

    def __init__(self, run: Turn, kernel: Kernel, execution: Execution, session: str, seconds: float) -> None:
        self._run = run
        self._kernel = kernel
        self._execution = execution
        self._session = session
        self._seconds = seconds
        self._pending = 0
        self._given_up = ""
        self._received: asyncio.Queue[InputRequestMessage] = asyncio.Queue()

    def receive(self, question: InputRequestMessage) -> None:
        """Take an input request from the connection; refuse it at once if it must not be asked."""
        refusal = self._given_up or ("too many questions wait" if self._pending >= _PENDING_MAX else "")
        if refusal:
            self._kernel.client.answer(question, None, refusal)
            return
        self._pending += 1
        self._received.put_nowait(question)

    async def answer_all(self) -> None:
        """Answer all requests, concurrently, until this is cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                tasks.start_soon(self._answer, await self._received.get())

    async def _answer(self, question: InputRequestMessage) -> None:
        """Ask the callback, and pass its answer to the kernel."""
        text: str | None = None
        try:
            with self._execution.paused():
                text, refusal = await self._ask(question)
        finally:
            self._pending -= 1
        self._kernel.client.answer(question, text, refusal)

    async def _ask(self, question: InputRequestMessage) -> tuple[str | None, str]:
        request = InputRequest(self._run.execution_id, self._session, clean_text(question.prompt), question.password)
        try:
            with anyio.fail_after(self._seconds):
                answer = await called(self._run.on_input, request)
        except TimeoutError:
            self._given_up = f"nobody answered within {self._seconds:g} s"
            return None, self._given_up
        except CallFailed as exc:
            if not isinstance(exc.__cause__, EOFError):
                logger.exception("kernelexec.on_input_failed", extra={"session": self._session})
            return None, str(exc).removeprefix("EOFError: ")
        if answer is None:
            return None, "there is no answer"
        return (
            (clean_text(answer), "") if isinstance(answer, str) else (None, f"the answer was {answer!r:.100}, which is no text")
        )
