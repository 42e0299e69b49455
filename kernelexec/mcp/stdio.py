"""Server for a single client over stdin and stdout, with a JSON-RPC message per line.

The end of stdin, a closed stdout or a signal ends the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from kernelexec.config import Config
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.imports import import_without_collection
from kernelexec.mcp.logs import make_observers
from kernelexec.mcp.run import Opening, ServerRun
from kernelexec.mcp.server_options import ALL_TOOLS, ServerOptions

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from fastmcp import FastMCP
    from mcp.shared.message import SessionMessage

#: The longest line: the largest cell fits, with every character escaped.
LINE_BYTES = 64 * 1024 * 1024
#: What is read of a longer line: no message begins with it.
OVERLONG = b"\0"
_CHUNK_BYTES = 256 * 1024
_STREAMS = 3
_PARSE_ERROR = -32700
T = TypeVar("T")


async def serve(config: Config, *, options: ServerOptions = ALL_TOOLS) -> signal.Signals | None:
    """Serve until stdin ends or a signal arrives, close everything and return the signal, if any.

    Only the protocol uses the client's streams: for all other code stdout is stderr and stdin is empty.

    Raises:
        IsolationUnavailable: containers are not available; the server did not start.
        InvalidConfig: ``keep_kernels`` is set and kernels cannot outlive the server.
        ServerFailed: see ``ServerRun``.
    """
    opening, executor = Opening(), AsyncExecutor(config=config, hooks=make_observers())
    run = ServerRun(executor, keeps_kernels=options.keep_kernels, opening=opening)
    # Before the libraries are imported: a single line of theirs on stdout would break the protocol.
    transport = StdioTransport(on_end=run.stop.set)

    async def serve_client() -> None:
        import_without_collection("kernelexec.mcp.server")
        from kernelexec.mcp.server import make_server, silence_libraries  # noqa: PLC0415 - takes a second
        from kernelexec.mcp.sessions import SessionService  # noqa: PLC0415 - the same

        silence_libraries()
        sessions = SessionService(executor, options=options, clients=run.clients)
        run.release_calls = sessions.release_calls
        server = make_server(sessions, opening=opening)
        opening.begin_serving()
        await _run_protocol(server, transport)

    return await run.run(serve_client)


async def _run_protocol(server: FastMCP, transport: StdioTransport) -> None:
    # fastmcp 4.1 serves stdio only with threads that a signal cannot wake. Its protocol server accepts any pair of streams,
    # but has no public name.
    protocol = server._mcp_server  # noqa: SLF001
    async with server._lifespan_manager(), anyio.create_task_group() as tasks:  # noqa: SLF001 - as its run_stdio_async
        received, sent = transport.open_streams(tasks)
        await protocol.run(received, sent, protocol.create_initialization_options())
        tasks.cancel_scope.cancel()  # otherwise the group would wait for the reader, which blocks until the client's next line


class StdioTransport:
    """Owner of the streams at descriptors 0 and 1. For all other code stdout is stderr and stdin is empty.

    Args:
        on_end: called in the event loop when stdin ends or stdout is closed.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        # Copies are not inheritable (PEP 446), so no kernel or command keeps the client's streams open or writes to them.
        self._in, self._out = _take_standard_streams()
        self._on_end = on_end
        # A thread for each direction: the reader nearly always blocks, and a slow client must not stop the reader.
        self._reader, self._writer = BlockingWorker("kernelexec reads"), BlockingWorker("kernelexec writes")
        self._write_lock = asyncio.Lock()

    def open_streams(
        self, tasks: TaskGroup
    ) -> tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]:
        """Return streams of received messages and of messages to send."""
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - only where MCP is served

        # Without buffers: a line is read when the protocol has taken the message before, so requests do not pile up here.
        coming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, going = anyio.create_memory_object_stream[SessionMessage](0)
        tasks.start_soon(self._read, coming)
        tasks.start_soon(self._write, going)
        return received, sent

    async def _read(self, coming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - see open
        from mcp.types import jsonrpc_message_adapter  # noqa: PLC0415

        lines = LineReader(self._in)
        async with coming:
            while (line := await self._reader.call(lines.read_line)) is not None:
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    await self._write_line(make_parse_error(line))
                    continue
                with suppress(anyio.BrokenResourceError):  # the protocol has ended; only the end of stdin matters now
                    await coming.send(SessionMessage(message))
        self._on_end()

    async def _write(self, going: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with going:
            async for message in going:
                await self._write_line(message.message.model_dump_json(by_alias=True, exclude_unset=True))

    async def _write_line(self, line: str) -> None:
        async with self._write_lock:
            try:
                # The escape of a lone surrogate, such as \ud800, is an escape of JSON too.
                await self._writer.call(_write_all, self._out, line.encode("utf-8", "backslashreplace") + b"\n")
            except OSError:  # EPIPE: Python ignores SIGPIPE
                self._on_end()


class LineReader:
    """Reader of lines from a descriptor. A line over the limit is read to its end, and is empty but for ``OVERLONG``."""

    def __init__(self, fd: int, limit: int = LINE_BYTES) -> None:
        self._fd = fd
        self._limit = limit
        self._buffer = b""

    def read_line(self) -> bytes | None:
        """Read the next line, blocking; return None at the end or after an error. An unfinished last line is dropped."""
        pieces, size = [self._buffer], len(self._buffer)
        while b"\n" not in pieces[-1]:
            try:
                piece = _retry_until_ready(self._fd, select.POLLIN, os.read, _CHUNK_BYTES)
            except OSError:
                return None
            if not piece:
                return None
            size += len(piece)
            # Memory stays bounded, but the line must be read to its end: the next message follows.
            pieces = [*pieces, piece] if size <= self._limit else [piece]
        head, _, self._buffer = pieces.pop().partition(b"\n")
        # Its beginning and end alone may make another message, with a part of a cell's code left out.
        return OVERLONG if size - len(self._buffer) > self._limit + 1 else b"".join((*pieces, head))


class BlockingWorker:
    """Daemon thread for blocking calls in order. The exit of the process does not wait for the thread."""

    def __init__(self, name: str) -> None:
        # Executors of the standard library and anyio's threads would be joined at the exit, which a blocked read would hold up.
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in the thread and return the result; cancellation does not stop a running function."""
        answer: Future[T] = Future()
        self._calls.put((answer, function, args))
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        while True:
            answer, function, args = self._calls.get()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(function(*args))
                except Exception as exc:  # noqa: BLE001 - raised in the caller
                    answer.set_exception(exc)


def make_parse_error(line: bytes) -> str:
    """Return the JSON-RPC error for an invalid line, with the request's id if known."""
    message: object = None
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
    number = message.get("id") if isinstance(message, dict) else None
    reason = "a JSON-RPC message must be UTF-8 without lone surrogates, one object per line, nested at most a hundred deep"
    error = {"code": _PARSE_ERROR, "message": f"Invalid line: {reason}, and have at most {LINE_BYTES} bytes."}
    return json.dumps({"jsonrpc": "2.0", "id": number if isinstance(number, int | str) else None, "error": error})


def _take_standard_streams() -> tuple[int, int]:
    """Return copies of stdin and stdout above 2; stdin is empty from now on, and stdout is stderr.

    A closed standard descriptor becomes ``/dev/null``, since the next opened file would get its number.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) < _STREAMS:
        pass
    taken = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return taken


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[_retry_until_ready(fd, select.POLLOUT, os.write, view) :]


def _retry_until_ready(fd: int, event: int, call: Callable[[int, Any], T], argument: object) -> T:
    """Read or write, waiting with ``poll`` if another process has made the shared stream non-blocking."""
    while True:
        try:
            return call(fd, argument)
        except BlockingIOError:
            # O_NONBLOCK belongs to the open file description, which other processes share: clearing the flag could break them.
            poll = select.poll()
            poll.register(fd, event)
            poll.poll()
