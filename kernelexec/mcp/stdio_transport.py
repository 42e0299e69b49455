"""The process's own stdin and stdout, taken from everybody else: one JSON-RPC message a line, each within bounds."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.abc import TaskGroup

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

#: The longest line that is read: the largest cell, every character of it escaped, fits.
LINE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_STREAMS = 3
_PARSE_ERROR = -32700
T = TypeVar("T")


class Wire:
    """Takes over descriptors 0 and 1. What others write to stdout then goes to stderr; what they read is empty.

    Args:
        on_end: called in the event loop when nothing more can be read, or nobody reads what is written.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._in = _taken(0, os.open(os.devnull, os.O_RDONLY))
        self._out = _taken(1, os.dup(2))
        self._on_end = on_end
        self._reading, self._writing = Worker("kernelexec reads"), Worker("kernelexec writes")
        self._turn = asyncio.Lock()

    def open(
        self, tasks: TaskGroup
    ) -> tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]:
        """The messages that come, and where to put those that go."""
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - only where MCP is served

        coming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, going = anyio.create_memory_object_stream[SessionMessage](0)
        tasks.start_soon(self._read, coming)
        tasks.start_soon(self._write, going)
        return received, sent

    async def _read(self, coming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 - see open
        from mcp.types import jsonrpc_message_adapter  # noqa: PLC0415

        lines = Lines(self._in)
        async with coming:
            while (line := await self._reading.call(lines.next)) is not None:
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    await self._put(refusal(line))
                    continue
                with suppress(anyio.BrokenResourceError):
                    await coming.send(SessionMessage(message))
        self._on_end()

    async def _write(self, going: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with going:
            async for found in going:
                await self._put(found.message.model_dump_json(by_alias=True, exclude_unset=True))

    async def _put(self, line: str) -> None:
        async with self._turn:
            try:
                await self._writing.call(_write_all, self._out, line.encode("utf-8", "backslashreplace") + b"\n")
            except OSError:
                self._on_end()


class Lines:
    """Reads lines from a descriptor; of one that is longer than the limit only the beginning is kept."""

    def __init__(self, fd: int, limit: int = LINE_BYTES) -> None:
        self._fd = fd
        self._limit = limit
        self._rest = b""

    def next(self) -> bytes | None:
        """The next line, blocking; None at the end, or where nothing can be read any more."""
        pieces, size = [self._rest], len(self._rest)
        while b"\n" not in pieces[-1]:
            try:
                piece = _patiently(self._fd, select.POLLIN, os.read, _CHUNK_BYTES)
            except OSError:
                return None
            if not piece:
                return None
            if size <= self._limit or b"\n" in piece:
                pieces.append(piece)
            size += len(piece)
        head, _, self._rest = pieces.pop().partition(b"\n")
        return b"".join((*pieces, head))


class Worker:
    """Makes blocking calls, one after another, in a thread that nobody waits for when the process ends."""

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., T], *args: object) -> T:
        """What the function returns or raises. Cancelling this does not end the function."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.put((answer, function, args))
        return await answer

    def _work(self) -> None:
        while True:
            answer, function, args = self._asked.get()
            found, failure = None, None
            try:
                found = function(*args)
            except Exception as exc:  # noqa: BLE001 - raised where it was called
                failure = exc
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                answer.get_loop().call_soon_threadsafe(_settle, answer, found, failure)


def _settle(answer: asyncio.Future[Any], found: object, failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(found)


def refusal(line: bytes) -> str:
    """The answer to a line that is no message, with its id where it can be told."""
    found: object = None
    with suppress(ValueError, RecursionError):
        found = json.loads(line) if len(line) < LINE_BYTES else None
    number = found.get("id") if isinstance(found, dict) else None
    why = "it is no JSON-RPC message: UTF-8 without lone surrogates, one object a line, nested a hundred deep at most"
    error = {"code": _PARSE_ERROR, "message": f"This line could not be read: {why}, {LINE_BYTES} bytes at most."}
    return json.dumps({"jsonrpc": "2.0", "id": number if isinstance(number, int | str) else None, "error": error})


def _taken(fd: int, instead: int) -> int:
    """The stream that a standard descriptor is, under a number of our own; the descriptor itself becomes ``instead``."""
    low = []
    while (own := os.dup(fd)) < _STREAMS:  # another one of them is closed, and its number free
        low.append(own)
    os.dup2(instead, fd)
    for each in (instead, *low):
        os.close(each)
    return own


def _write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[_patiently(fd, select.POLLOUT, os.write, view) :]


def _patiently(fd: int, event: int, call: Callable[[int, Any], T], argument: object) -> T:
    """Read or write, also where whoever shares the stream has made it non-blocking."""
    while True:
        try:
            return call(fd, argument)
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, event)
            poll.poll()
