"""Requests to the control socket of an executor in another process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec.control.protocol import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    ATTEMPTS_MAX,
    KEY_BYTES,
    READY,
    REQUEST_BYTES,
    read_error,
)
from kernelexec.errors import InvalidRequest, OwnerEnded
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY
from kernelexec.workspace.safe_files import read_regular

#: Requests that wait for a cell or its end.
_SLOW = frozenset({"execute", "execute_command", "interrupt", "close", "checkpoint", "restore", "undo", "branch", "promote"})


def _encode(request: dict[str, Any]) -> bytes:
    try:
        return json.dumps(request).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"An argument cannot be sent to another process: {exc}.") from exc


class ControlClient:
    """The way to one executor, by its private directory and its process."""

    def __init__(self, root: Path, pid: int) -> None:
        self._root = root
        self._pid = pid

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
        """Return the one answer to a request; raise as ``request``."""
        async with await self.connect(do, **arguments) as stream:
            return await self.receive(stream, do)

    async def request(self, do: str, **arguments: Any) -> AsyncGenerator[dict[str, Any], None]:  # noqa: ANN401 - JSON types
        """Yield the answers to a request as they arrive; close the generator to end it.

        Raises:
            OwnerEnded: the process has ended, or accepts no requests.
            KernelexecError: any error of the session's own calls.
        """
        async with await self.connect(do, **arguments) as stream:
            while True:
                answer = await self.receive(stream, do)
                yield answer
                if "result" in answer:
                    return

    async def connect(self, do: str, **arguments: Any) -> BufferedByteReceiveStream:  # noqa: ANN401 - JSON types
        """Send a request; return the connection, which the caller closes."""
        line = _encode({"do": do, "client": f"process {os.getpid()} ({Path(sys.argv[0]).name})", **arguments})
        if len(line) > REQUEST_BYTES:
            raise InvalidRequest(f"The request has {len(line)} bytes; the limit is {REQUEST_BYTES}.")
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                return await self._connect_with_key(line)
        except (OSError, TimeoutError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc) or "it does not answer"
            raise OwnerEnded(f"Process {self._pid} has ended, or accepts no requests: {reason}.") from exc

    async def _connect_with_key(self, line: bytes) -> BufferedByteReceiveStream:
        """Connect until the owner has read the key; it closes connections early while others open many."""
        for _ in range(ATTEMPTS_MAX):
            key = read_regular(self._root / CONTROL_KEY, KEY_BYTES)
            connection = await anyio.connect_unix(self._root / CONTROL)
            stream = BufferedByteReceiveStream(connection)
            try:
                is_ready = await self._send(connection, stream, key + b"\n" + line)
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise
            if is_ready:
                return stream
            await stream.aclose()
        raise OwnerEnded(f"Process {self._pid} accepts no requests: it has closed {ATTEMPTS_MAX} connections.")

    async def _send(self, connection: ByteStream, stream: BufferedByteReceiveStream, content: bytes) -> bool:
        """Return whether the owner has read the key; raise the error that it answers instead."""
        try:
            await connection.send(content)
            answer = _decode(await stream.receive_until(b"\n", ANSWER_BYTES))
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
        if answer != READY:
            raise read_error(answer) if "error" in answer else self._not_understood()
        return True

    async def receive(self, received: BufferedByteReceiveStream, do: str) -> dict[str, Any]:
        """Return the next answer to a request; the end of the connection is one to ``close``, after which an owner may end."""
        try:
            with anyio.fail_after(None if do in _SLOW else ANSWER_SECONDS):
                line = await received.receive_until(b"\n", ANSWER_BYTES)
            answer = _decode(line)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, OSError) as exc:
            if do == "close":
                return {}
            raise OwnerEnded(f"Process {self._pid} ended during the call, or its session was closed.") from exc
        except (TimeoutError, anyio.DelimiterNotFound, ValueError) as exc:
            raise self._not_understood() from exc
        if "error" in answer:
            raise read_error(answer)
        return answer

    def _not_understood(self) -> OwnerEnded:
        return OwnerEnded(f"Process {self._pid} does not answer as this version of kernelexec expects.")


def _decode(line: bytes) -> dict[str, Any]:
    """Return an answer; raise ``ValueError`` if it is none."""
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("no object")  # noqa: TRY004 - as of other invalid lines
    return answer
