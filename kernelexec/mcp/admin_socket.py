"""What the person who runs a server does to it from another terminal: look, interrupt, close, run a cell, stop.

A unix socket in the executor's private directory answers one request each: a line of JSON, and lines of JSON back. A confined
kernel of the same user could reach a socket, but reads no file there: so the file beside it holds the key to it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
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

_REQUEST_BYTES = 16 * 1024 * 1024
_PATIENCE, _STEP, _TOLD, _FURTHEST = 10.0, 0.2, 20, 2**62

#: What becomes of a stream whose other side leaves, or says too much.
_LEFT = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound)


class Control:
    """Answers for one server; ``over`` is set where it is to stop."""

    def __init__(self, executor: AsyncExecutor, over: anyio.Event) -> None:
        self._executor = executor
        self._over = over
        self._key = secrets.token_hex(32)

    async def serve(self) -> None:
        """Answer until it is cancelled. Where no socket can be made there, the server does without."""
        place = self._executor.directory / CONTROL
        with suppress(OSError):
            fd = os.open(self._executor.directory / CONTROL_KEY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(self._key)
            async with await anyio.create_unix_listener(place, mode=0o600) as listener:
                await listener.serve(self._answered)

    async def _answered(self, stream: ByteStream) -> None:
        with suppress(
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.DelimiterNotFound,
        ):
            async with stream:
                await self._answer(stream)

    async def _answer(self, stream: ByteStream) -> None:
        with anyio.move_on_after(_PATIENCE) as waiting:
            line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _REQUEST_BYTES)
        if waiting.cancelled_caught:
            return
        try:
            asked = json.loads(line)
            if not hmac.compare_digest(str(asked.pop("key")).encode(), self._key.encode()):
                return
            async with aclosing(self._done(**asked)) as told:
                async for said in told:
                    await _send(stream, said)
        except KernelexecError as exc:
            await _send(stream, {"error": str(exc)})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            await _send(stream, {"error": "The request makes no sense to this server: is it of another version?"})

    async def _done(self, do: str, session: str = "", code: str = "") -> AsyncGenerator[Mapping[str, Any]]:
        """Do what is asked for; what there is to say of it, as it comes."""
        if do == "look":
            names = self._executor.sessions()
            yield {"sessions": [await _row(one) for name in names if (one := self._executor.open_session(name)) is not None]}
        elif do == "stop":
            yield {"stopping": True}
            self._over.set()
        elif do == "close":
            await self._executor.close_session(session)
            yield {"closed": session}
        elif do == "interrupt":
            result = await self._found(session).interrupt()
            yield {"interrupted": None if result is None else result.execution_id}
        elif do == "execute":
            async with aclosing(self._executed(self._found(session), code)) as told:
                async for said in told:
                    yield said
        else:
            message = f"{do!r:.100} is nothing that a server does."
            raise InvalidRequest(message)

    async def _executed(self, session: AsyncSession, code: str) -> AsyncGenerator[Mapping[str, Any]]:
        """What a cell puts out, as it comes, then its result. Who leaves amid it has interrupted it."""
        begun = await session.execute(code, wait=SHORTEST_TIMEOUT)
        if begun.status != "running":
            yield {"output": output_text(begun.outputs)}
            yield {"result": _result(begun)}
            return
        found, cursor = None, 0
        try:
            while found is None:
                progress = await session.wait_for(begun.execution_id, cursor=cursor, wait=_STEP)
                cursor, found = progress.cursor, progress.result
                if progress.outputs:
                    yield {"output": output_text(progress.outputs)}
            yield {"result": _result(found)}
        finally:
            if found is None:
                with anyio.move_on_after(_PATIENCE, shield=True):
                    await session.interrupt(begun.execution_id)

    def _found(self, name: str) -> AsyncSession:
        session = self._executor.open_session(name)
        if session is None:
            message = f"No session {name!r:.100} is open in this server."
            raise UnknownSession(message)
        return session


async def _row(session: AsyncSession) -> dict[str, Any]:
    """What is said of a session: which cells run or wait, the newest last."""
    newest = session.executions()[-_TOLD:]
    seen = [await session.wait_for(one, cursor=_FURTHEST, wait=SHORTEST_TIMEOUT) for one in newest]
    return {
        "name": session.name,
        "workspace": str(session.workspace),
        "kernel_epoch": session.kernel_epoch,
        "busy": session.busy,
        "running": [one.execution_id for one in seen if one.result is None],
    }


def _result(result: ExecutionResult) -> dict[str, Any]:
    return {name: said for name, said in result.to_dict().items() if name not in ("outputs", "late")}


async def _send(stream: ByteStream, said: Mapping[str, Any]) -> None:
    await stream.send(json.dumps(clean(dict(said))).encode() + b"\n")
