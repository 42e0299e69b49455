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

from kernelexec.control.protocol import ANSWER_BYTES, ANSWER_SECONDS, KEY_BYTES, REQUEST_BYTES, read_error
from kernelexec.errors import InvalidRequest, OwnerEnded
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY
from kernelexec.workspace.safe_files import read_regular

#: Requests that wait for a cell or its end.
_SLOW = frozenset({"execute", "execute_command", "interrupt", "close"})


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
        stream = await self.connect(do, **arguments)
        async with stream:
            return await self.receive(BufferedByteReceiveStream(stream), do)

    async def request(self, do: str, **arguments: Any) -> AsyncGenerator[dict[str, Any], None]:  # noqa: ANN401 - JSON types
        """Yield the answers to a request as they arrive; close the generator to end it.

        Raises:
            OwnerEnded: the process has ended, or accepts no requests.
            KernelexecError: any error of the session's own calls.
        """
        stream = await self.connect(do, **arguments)
        async with stream:
            received = BufferedByteReceiveStream(stream)
            while True:
                answer = await self.receive(received, do)
                yield answer
                if "result" in answer:
                    return

    async def connect(self, do: str, **arguments: Any) -> ByteStream:  # noqa: ANN401 - JSON types
        """Send a request; return the connection, which the caller closes."""
        try:
            key = read_regular(self._root / CONTROL_KEY, KEY_BYTES).decode("ascii")
            request = {"key": key, "do": do, "client": f"process {os.getpid()} ({Path(sys.argv[0]).name})", **arguments}
            line = _encode(request)
            if len(line) > REQUEST_BYTES:
                raise InvalidRequest(f"The request has {len(line)} bytes; the limit is {REQUEST_BYTES}.")
            with anyio.fail_after(ANSWER_SECONDS):
                stream = await anyio.connect_unix(self._root / CONTROL)
                await stream.send(line)
        except (OSError, TimeoutError, UnicodeDecodeError, anyio.BrokenResourceError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc) or "it does not answer"
            raise OwnerEnded(f"Process {self._pid} has ended, or accepts no requests: {reason}.") from exc
        return stream

    async def receive(self, received: BufferedByteReceiveStream, do: str) -> dict[str, Any]:
        """Return the next answer to a request."""
        try:
            with anyio.fail_after(None if do in _SLOW else ANSWER_SECONDS):
                line = await received.receive_until(b"\n", ANSWER_BYTES)
            answer: dict[str, Any] = json.loads(line)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, OSError) as exc:
            raise OwnerEnded(f"Process {self._pid} ended during the call, or its session was closed.") from exc
        except (TimeoutError, anyio.DelimiterNotFound, ValueError) as exc:
            raise OwnerEnded(f"Process {self._pid} does not answer as this version of kernelexec expects.") from exc
        if "error" in answer:
            raise read_error(answer)
        return answer
