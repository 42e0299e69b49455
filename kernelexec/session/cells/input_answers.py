"""Answers to a cell's `input()` from the caller's function, outside of the cell's own time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from kernelexec.kernel import Execution, InputRequestMessage, Kernel
from kernelexec.results import InputRequest
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.user_functions import CallbackError, call_user_function
from kernelexec.text import clean_text

logger = logging.getLogger("kernelexec")
#: The number of input requests of one cell that may wait at once.
_PENDING_MAX = 10


@asynccontextmanager
async def answer_input_requests(
    run: CellRun, kernel: Kernel, execution: Execution, *, session: str, seconds: float
) -> AsyncIterator[None]:
    """Answer the input requests of a cell while it runs. Each may take ``seconds``, which do not count as the cell's."""
    if run.on_input is None:
        yield
        return
    answers = _InputAnswers(run, kernel, execution, session, seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers.answer_all)
        execution.on_input_request = answers.receive
        yield
        execution.on_input_request = None
        tasks.cancel_scope.cancel()


class _InputAnswers:
    """The answers to one cell's input requests: after one without an answer in time all others are refused at once."""

    def __init__(self, run: CellRun, kernel: Kernel, execution: Execution, session: str, seconds: float) -> None:
        self._run = run
        self._kernel = kernel
        self._execution = execution
        self._session = session
        self._seconds = seconds
        self._pending = 0
        self._refusal = ""
        self._received: asyncio.Queue[InputRequestMessage] = asyncio.Queue()

    def receive(self, request: InputRequestMessage) -> None:
        """Accept an input request from the connection, or refuse it at once."""
        refusal = self._refusal or ("too many input requests wait" if self._pending >= _PENDING_MAX else "")
        if refusal:
            self._kernel.client.answer(request, None, refusal)
            return
        self._pending += 1
        self._received.put_nowait(request)

    async def answer_all(self) -> None:
        """Answer all requests concurrently until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                tasks.start_soon(self._answer, await self._received.get())

    async def _answer(self, request: InputRequestMessage) -> None:
        """Call the callback, and send its answer to the kernel."""
        text: str | None = None
        try:
            with self._execution.pause_budget():
                text, refusal = await self._ask(request)
        finally:
            self._pending -= 1
        self._kernel.client.answer(request, text, refusal)

    async def _ask(self, request: InputRequestMessage) -> tuple[str | None, str]:
        input_request = InputRequest(self._run.execution_id, self._session, clean_text(request.prompt), request.password)
        try:
            with anyio.fail_after(self._seconds):
                answer = await call_user_function(self._run.on_input, input_request)
        except TimeoutError:
            self._refusal = f"there was no answer within {self._seconds:g} s"
            return None, self._refusal
        except CallbackError as exc:
            if not isinstance(exc.__cause__, EOFError):
                logger.exception("kernelexec.on_input_failed", extra={"session": self._session})
            return None, str(exc).removeprefix("EOFError: ")
        if answer is None:
            return None, "there is no answer"
        return (clean_text(answer), "") if isinstance(answer, str) else (None, f"the answer must be text, not {answer!r:.100}")
