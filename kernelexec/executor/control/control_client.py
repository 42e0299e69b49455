"""Requests to the control socket of an executor in another process, found by the name of a session.

A connection carries a single request, in lines. The client sends the key, then the request. The owner answers the key by
``READY`` or an error, then the request. A connection closed before ``READY`` has asked for nothing: the client may try again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec import errors
from kernelexec.errors import CheckpointRefused, InvalidRequest, KernelexecError, OwnerEnded, UnknownSession, did_you_mean
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY, LiveSession, list_live_sessions
from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from kernelexec.results.json_values import read_list
from kernelexec.workspace.directory import find_names
from kernelexec.workspace.safe_files import read_regular

# The lines of a connection:
#     client  KEY
#             {"do": "execute", "client": "process 12 (agent.py)", "session": "a", "code": "1", ...}
#     owner   {"ready": true}
#             {"progress": {...}}, any number of times
#             {"result": {...}}, or another answer, or {"error": "...", "kind": "UnknownSession"}

#: The longest request, and the longest answer, in bytes.
REQUEST_BYTES, _ANSWER_BYTES = 16 * 2**20, 512 * 2**20
#: How long a client may take to send its request, and a server to answer one that no cell holds up, in seconds.
ANSWER_SECONDS = 30.0
#: The longest key, in bytes.
KEY_BYTES = 200
#: How often a client connects until its key is read, while other processes take the socket's connections.
_ATTEMPTS_MAX = 100
READY: Mapping[str, Any] = {"ready": True}
#: Requests that wait for a cell or its end.
_SLOW = frozenset({"execute", "execute_command", "interrupt", "close", "checkpoint", "restore", "undo", "branch", "promote"})
_LISTED = 10


def find_session(name: str | None, *, process: int | None = None) -> LiveSession:
    """Return the open session of this user with a NAME, NAME@PROCESS or NAME@PROCESS.EXECUTOR; by default the only session.

    Raises:
        UnknownSession: no session matches; the message lists the open sessions.
        InvalidRequest: several sessions match.
    """
    return select_session(name, list_live_sessions(runtime_bases()), process=process)


def select_session(name: str | None, sessions: Sequence[LiveSession], *, process: int | None = None) -> LiveSession:
    """Return the session of a name or address among others; raise as ``find_session``."""
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{name!r:.100} is no name of a session: it must be text.")
    if not sessions:
        raise UnknownSession("You have no open session on this machine: sessions end with the process that opened them.")
    wanted, _, pid = (name or "").partition("@")
    pid = pid or ("" if process is None else str(process))
    names = find_names(wanted, (session.name for session in sessions))
    matches = [session for session in sessions if name is None or session.name in names]
    if pid:
        matches = [session for session in matches if session.address.endswith(f"@{pid}") or str(session.pid) == pid]
    listed = ", ".join(islice((_short_address(session, sessions) for session in matches or sessions), _LISTED))
    if not matches:
        known = [*(session.name for session in sessions), *(_short_address(session, sessions) for session in sessions)]
        message = f"No open session {name!r}{did_you_mean(str(name), known)}: must be one of {listed}."
        raise UnknownSession(message)
    if len(matches) > 1:
        which = "sessions are open" if name is None else f"sessions are named {name!r}"
        message = f"{len(matches)} {which}: choose one of {listed}."
        raise InvalidRequest(message)
    return matches[0]


def _short_address(session: LiveSession, sessions: Sequence[LiveSession]) -> str:
    """Return NAME@PROCESS, with the executor if the process has several sessions of the name."""
    twins = sum((other.name, other.pid) == (session.name, session.pid) for other in sessions)
    return f"{session.name}@{session.pid}" if twins == 1 else session.address


class ControlClient:
    """A client of an executor, by the executor's private directory and process."""

    def __init__(self, root: Path, pid: int) -> None:
        self._root = root
        self._pid = pid

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
        """Return the answer to a request with a single answer; raise as ``request``."""
        async with await self.connect(do, **arguments) as stream:
            return await self.receive(stream, do)

    async def request(self, do: str, **arguments: Any) -> AsyncGenerator[dict[str, Any], None]:  # noqa: ANN401 - JSON types
        """Yield the answers to a request as they arrive; closing the generator ends the request.

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
        """Connect until the owner has read the key; in a flood of connections the owner closes some before."""
        for _ in range(_ATTEMPTS_MAX):
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
        raise OwnerEnded(f"Process {self._pid} accepts no requests: it has closed {_ATTEMPTS_MAX} connections.")

    async def _send(self, connection: ByteStream, stream: BufferedByteReceiveStream, content: bytes) -> bool:
        """Send the key and the request; return whether the owner has read the key, or raise the owner's error."""
        try:
            await connection.send(content)
            answer = _decode(await stream.receive_until(b"\n", _ANSWER_BYTES))
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
        if answer != READY:
            raise _read_error(answer) if "error" in answer else self._not_understood()
        return True

    async def receive(self, received: BufferedByteReceiveStream, do: str) -> dict[str, Any]:
        """Return the next answer to a request. The end of the connection answers ``close``: the owner may have ended."""
        try:
            with anyio.fail_after(None if do in _SLOW else ANSWER_SECONDS):
                line = await received.receive_until(b"\n", _ANSWER_BYTES)
            answer = _decode(line)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, OSError) as exc:
            if do == "close":
                return {}
            raise OwnerEnded(f"Process {self._pid} ended during the call, or its session was closed.") from exc
        except (TimeoutError, anyio.DelimiterNotFound, ValueError) as exc:
            raise self._not_understood() from exc
        if "error" in answer:
            raise _read_error(answer)
        return answer

    def _not_understood(self) -> OwnerEnded:
        return OwnerEnded(f"Process {self._pid} does not answer as this version of kernelexec expects.")


def _decode(line: bytes) -> dict[str, Any]:
    """Decode an answer; raise ``ValueError`` if invalid."""
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("no object")  # noqa: TRY004 - as of other invalid lines
    return answer


def _encode(request: dict[str, Any]) -> bytes:
    try:
        return json.dumps(request).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"An argument cannot be sent to another process: {exc}.") from exc


def _read_error(answer: Mapping[str, Any]) -> KernelexecError:
    """Return the error of an answer, of the same class if ``errors`` has this class."""
    kind = getattr(errors, str(answer.get("kind")), None)
    known = kind if isinstance(kind, type) and issubclass(kind, KernelexecError) else KernelexecError
    error = known(str(answer["error"]))
    if isinstance(error, CheckpointRefused) and isinstance(obstacles := answer.get("obstacles"), dict):
        error.obstacles = {kind: tuple(read_list(names)) for kind, names in obstacles.items()}
    return error
