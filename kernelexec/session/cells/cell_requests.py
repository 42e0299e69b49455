"""Requests of a cell to its session: answers to `input()`, bytes for a command's streams, its process as another user."""

from __future__ import annotations

import asyncio
import codecs
import logging
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.abc import TaskGroup

from kernelexec.cancellation import await_to_end
from kernelexec.cells import CommandOptions, ShellCell
from kernelexec.errors import EngineFailed
from kernelexec.kernel import CommandRequestMessage, Execution, InputRequestMessage, Kernel
from kernelexec.provisioning import RunningUserCommand, UserCommand
from kernelexec.results import InputRequest
from kernelexec.session.cells.approval import CallbackError, call_user_function
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.text import clean_text

logger = logging.getLogger("kernelexec")
#: The number of input requests of one cell that may wait at once.
_PENDING_MAX = 10
#: The largest piece of a standard input in one message.
_PIECE_BYTES = 256 * 1024
#: How long the processes of a command of another user may take to end once they are killed, in seconds.
_END_SECONDS = 10.0
_NOT_STARTED = 126


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
        try:
            yield
        finally:
            execution.on_input_request = None  # the connection refuses later requests
        tasks.cancel_scope.cancel()  # ``answer_all`` runs until it is cancelled, so the group would never end by itself


@dataclass(slots=True)
class _InputAnswers:
    """The answers to a cell's input requests. After an unanswered request all later requests are refused at once."""

    _run: CellRun
    _kernel: Kernel
    _execution: Execution
    _session: str
    _seconds: float
    _pending: int = 0
    _refusal: str = ""
    _received: asyncio.Queue[InputRequestMessage] = field(default_factory=asyncio.Queue)

    def receive(self, request: InputRequestMessage) -> None:
        """Accept an input request from the connection, or refuse it at once."""
        # a hostile kernel can send requests in a loop; without the limit each would call the user's function
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


@asynccontextmanager
async def serve_command(run: CellRun, kernel: Kernel, execution: Execution, *, cwd: str) -> AsyncIterator[None]:
    """Serve the requests of a running command. A process of another user ends with the block.

    ``cwd`` is the directory of such a process unless the command names a directory.
    """
    cell = run.cell
    if not isinstance(cell, ShellCell) or cell.options is None or run.in_flight:
        yield
        return
    async with anyio.create_task_group() as tasks:
        service = _CommandService(run, cell, cell.options, kernel, execution, cell.work_dir or cwd, tasks)
        execution.on_command_request = service.receive
        try:
            yield
        finally:
            execution.on_command_request = None
            # before the cancellation: ``_run_as_user`` reads the process until its end, and its thread cannot be cancelled
            await await_to_end(service.end())
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class _CommandService:
    """The answers to a command's requests. An untrusted kernel can read the input and send output, no more."""

    _run: CellRun
    _cell: ShellCell
    _options: CommandOptions
    _kernel: Kernel
    _execution: Execution
    _cwd: str
    _tasks: TaskGroup
    _position: int = 0
    _is_started: bool = False
    _is_ending: bool = False
    _running: RunningUserCommand | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, request: CommandRequestMessage) -> None:
        """Answer a request."""
        match request.action:
            case "read":
                self._read(request)
            case "write":
                self._kernel.client.answer_command(request, more=self._run.deliver_bytes(_decode(request.content)))
            case "run" if self._options.owner_runs and not self._is_started:
                self._is_started = True  # here, not in the task: a second request must start no second process
                self._tasks.start_soon(self._run_as_user, request)
            case "end" if not self._is_ending:
                self._is_ending = True  # as above: a flood of requests must not start a thread each
                self._tasks.start_soon(self._end, request)
            case _:  # unknown and forbidden requests get an empty answer too, since the launcher waits for an answer
                self._kernel.client.answer_command(request)

    def _read(self, request: CommandRequestMessage) -> None:
        stdin, end = self._run.streams.stdin, self._position + _PIECE_BYTES
        content = b64encode(stdin[self._position : end]).decode()
        self._kernel.client.answer_command(request, content=content, more=end < len(stdin))
        self._position = end

    async def _run_as_user(self, request: CommandRequestMessage) -> None:
        """Run the cell's command as its user, whatever the kernel asks for."""
        # command, user and variables come from the caller's cell; the kernel's request has no say in them
        code = _NOT_STARTED
        cell, options = self._cell, self._options
        assert options.user is not None
        command = UserCommand(cell.command, options.user, dict(options.env), self._cwd)
        stdin = (cell.stdin or "").encode() if options.stdin_sha256 is None else self._run.streams.stdin
        output = _UserOutput(self._run, self._execution, returns_bytes=options.returns_bytes)
        try:
            self._running = await self._kernel.start_command(command)
            call = partial(self._running.transfer, stdin, output.take_in_thread)
            # a limiter of its own: a long command in anyio's shared limiter would take a thread from everything else
            code = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except EngineFailed as exc:
            output.take("stderr", f"{exc}\n".encode())
        except Exception as exc:
            logger.exception("kernelexec.user_command_failed", extra={"session": self._kernel.label})
            output.take("stderr", f"The command could not be followed: {exc}\n".encode())
        finally:
            output.close()
            self._ended.set()
            self._kernel.client.answer_command(request, exit_code=code)

    async def _end(self, request: CommandRequestMessage) -> None:
        await self.end()
        self._kernel.client.answer_command(request)

    async def end(self) -> None:
        """End the process of another user, if there is one."""
        if not self._is_started or self._ended.is_set():
            return
        with anyio.move_on_after(_END_SECONDS):
            if self._running is not None:
                await anyio.to_thread.run_sync(self._running.kill, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
            await self._ended.wait()
        if self._running is not None and not self._ended.is_set():
            self._running.disconnect()  # ends the transfer's thread although the process lives on


class _UserOutput:
    """The output of a process of another user. The kernel does not see this output."""

    def __init__(self, run: CellRun, execution: Execution, *, returns_bytes: bool) -> None:
        self._run = run
        self._execution = execution
        self._returns_bytes = returns_bytes
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def take_in_thread(self, name: str, content: bytes) -> bool:
        """Take a piece of a stream, in a thread of anyio; return whether to send more."""
        return anyio.from_thread.run_sync(self.take, name, content)

    def take(self, name: str, content: bytes) -> bool:
        """Take a piece of a stream; return whether to send more."""
        if name == "stdout" and self._returns_bytes:
            return self._run.deliver_bytes(content)
        self._publish(name, self._decoders[name].decode(content))
        return True

    def close(self) -> None:
        """Publish incomplete characters at the end of the streams."""
        for name, decoder in self._decoders.items():
            self._publish(name, decoder.decode(b"", final=True))

    def _publish(self, name: str, text: str) -> None:
        if text:
            self._execution.on_output("stream", {"name": name, "text": text}, 0)


def _decode(content: str) -> bytes:
    try:
        return b64decode(content, validate=True)
    except (Error, ValueError):  # a cell sent it
        return b""
