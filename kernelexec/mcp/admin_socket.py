"""Commands of the operator for a running server, sent from another terminal: list, interrupt, close, run a cell, stop.

A unix socket in the executor's private directory takes one request per connection: one line of JSON, answered by lines of
JSON. A confined kernel of the same user can reach the socket but cannot read files there, so a file next to it holds the key.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidRequest, KernelexecError, UnknownSession
from kernelexec.executor import AsyncExecutor
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY
from kernelexec.results import ExecutionResult, output_text
from kernelexec.session import AsyncSession
from kernelexec.text import clean
from kernelexec.workspace.safe_files import replace_file

_REQUEST_BYTES = 16 * 1024 * 1024
_WAIT_SECONDS, _POLL_SECONDS, _NEWEST, _END_CURSOR = 10.0, 0.2, 20, 2**62
#: Errors of a stream whose peer disconnects, is silent or sends too much.
_LEFT = (
    *(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
    *(anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError),
)


class AdminSocket:
    """Socket for one server; its ``stop`` event is set when the operator stops the server.

    ``clients`` has the client of each session. ``on_restart`` stops the server without ending its kernels; None if they
    cannot be kept.
    """

    def __init__(
        self,
        executor: AsyncExecutor,
        stop: anyio.Event,
        clients: Mapping[str, str],
        on_restart: Callable[[], None] | None = None,
    ) -> None:
        self._executor = executor
        self._clients = clients
        self._stop = stop
        self._on_restart = on_restart
        self._key = secrets.token_hex(32)

    async def serve(self) -> None:
        """Answer requests until cancelled; the server runs without the socket if it cannot be created."""
        directory = self._executor.directory
        with suppress(OSError):
            replace_file(directory / CONTROL_KEY, self._key.encode(), mode=0o600)
            async with await anyio.create_unix_listener(directory / CONTROL, mode=0o600) as listener:
                await listener.serve(self._handle_connection)

    async def _handle_connection(self, stream: ByteStream) -> None:
        with suppress(*_LEFT):
            async with stream:
                await self._handle_request(stream)

    async def _handle_request(self, stream: ByteStream) -> None:
        with anyio.fail_after(_WAIT_SECONDS):
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _REQUEST_BYTES)
        try:
            request = json.loads(line)
            if not hmac.compare_digest(str(request.pop("key")).encode(), self._key.encode()):
                return
            async with aclosing(self._run_request(**request)) as replies:
                async for reply in replies:
                    await _send(stream, reply)
        except KernelexecError as exc:
            await _send(stream, {"error": str(exc)})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            await _send(stream, {"error": "Invalid request: this server may have another version of kernelexec."})

    async def _run_request(self, do: str, session: str = "", code: str = "") -> AsyncGenerator[Mapping[str, Any]]:
        """Run a request and yield its replies as they arrive."""
        if do == "look":
            sessions = [self._executor.open_session(name) for name in self._executor.sessions()]
            rows = [await _describe_session(opened) for opened in sessions if opened is not None]
            yield {"sessions": [row | {"client": self._clients.get(row["name"], "")} for row in rows]}
        elif do == "stop":
            yield {"stopping": True}
            self._stop.set()
        elif do == "restart":
            if self._on_restart is None:
                raise InvalidRequest("the kernels of this server end with it, since no next server could adopt them.")
            yield {"stopping": True}
            self._on_restart()
        elif do == "close":
            await self._executor.close_session(session)
            yield {"closed": session}
        elif do == "interrupt":
            result = await self._find_session(session).interrupt()
            yield {"interrupted": None if result is None else result.execution_id}
        elif do == "execute":
            async with aclosing(self._stream_cell(self._find_session(session), code)) as replies:
                async for reply in replies:
                    yield reply
        else:
            raise InvalidRequest(f"{do!r:.100} is not a command of this server.")

    async def _stream_cell(self, session: AsyncSession, code: str) -> AsyncGenerator[Mapping[str, Any]]:
        """Run a cell; yield its output as it arrives, then its result. If the client disconnects, interrupt the cell."""
        begun = await session.execute(code, wait=SHORTEST_TIMEOUT)
        if begun.status != "running":
            yield {"output": output_text(begun.outputs)}
            yield {"result": _summarize_result(begun)}
            return
        result, cursor = None, 0
        try:
            while result is None:
                progress = await session.wait_for(begun.execution_id, cursor=cursor, wait=_POLL_SECONDS)
                cursor, result = progress.cursor, progress.result
                if progress.outputs:
                    yield {"output": output_text(progress.outputs)}
            yield {"result": _summarize_result(result)}
        finally:
            if result is None:
                with anyio.move_on_after(_WAIT_SECONDS, shield=True):
                    await session.interrupt(begun.execution_id)

    def _find_session(self, name: str) -> AsyncSession:
        session = self._executor.open_session(name)
        if session is None:
            raise UnknownSession(f"No session {name!r:.100} is open in this server.")
        return session


async def _describe_session(session: AsyncSession) -> dict[str, Any]:
    """Describe a session, with the cells that run or wait, newest last."""
    newest = session.executions()[-_NEWEST:]
    progresses = [await session.wait_for(execution_id, cursor=_END_CURSOR, wait=SHORTEST_TIMEOUT) for execution_id in newest]
    return {
        "name": session.name,
        "workspace": str(session.workspace),
        "kernel_epoch": session.kernel_epoch,
        "busy": session.busy,
        "running": [progress.execution_id for progress in progresses if progress.result is None],
    }


def _summarize_result(result: ExecutionResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if name not in ("outputs", "late")}


async def _send(stream: ByteStream, reply: Mapping[str, Any]) -> None:
    await stream.send(json.dumps(clean(dict(reply))).encode() + b"\n")
