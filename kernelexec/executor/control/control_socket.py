"""The socket of an open executor, for other processes of the user to see the sessions and run cells in them.

A unix socket in the executor's private directory takes a single request per connection: see ``control_client``. A confined
kernel of the same user can reach the socket but cannot read files there, so a file next to the socket holds the key.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, SocketListener
from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import CapacityReached, CheckpointRefused, InvalidRequest, KernelexecError, UnknownSession
from kernelexec.executor.control.control_client import ANSWER_SECONDS, KEY_BYTES, READY, REQUEST_BYTES
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY
from kernelexec.results import ExecutionResult, Progress
from kernelexec.results.json_values import JsonConvertible
from kernelexec.session import AsyncSession
from kernelexec.session.cells.queue import calling_client, iterate_outputs
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint
from kernelexec.session.lifecycle import find_first_exception, short_turns
from kernelexec.text import clean, escape_line
from kernelexec.workspace.safe_files import replace_file

logger = logging.getLogger("kernelexec")
_NEWEST, _END_CURSOR, _CLIENT_CHARS, _LINE_CHARS = 20, 2**62, 200, 80
_Answers = AsyncGenerator[Mapping[str, Any], None]
#: Connections at the same time that have not sent the key, and clients that have.
KEYLESS_MAX, CLIENTS_MAX = 16, 200
#: How long a client may take to send the key, in seconds.
KEY_SECONDS = 5.0
#: Connections that wait to be accepted: a client waits for those before its own. While there are more, it tries again.
BACKLOG = 64
#: How long the socket accepts nothing after a failed attempt, such as without a free descriptor, in seconds.
_PAUSE_SECONDS = 1.0
#: How long it accepts nothing after too many connections without the key: their attempts cost the sessions little, in seconds.
_FLOOD_PAUSE_SECONDS = 0.001
#: Errors of a stream whose peer disconnects, is silent or sends too much.
PEER_ERRORS = (
    *(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
    *(anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError),
)


class Sessions(Protocol):
    """The sessions of an executor."""

    def sessions(self) -> tuple[str, ...]:
        """Return the names of the open sessions."""

    def open_session(self, name: str) -> AsyncSession | None:
        """Return an open session."""

    def close_session(self, name: str) -> Coroutine[Any, Any, None]:
        """Close a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommands:
    """The operator's commands for a server: ``restart`` stops the server without the kernels; None if they cannot be kept."""

    stop: Callable[[], None]
    restart: Callable[[], None] | None = None
    clients: Mapping[str, str] = field(default_factory=dict)
    """The client of each session, as the operator sees it."""


class ControlSocket:
    """The socket of an executor, in the private ``directory``; ``get_commands`` returns a server's commands, None elsewhere."""

    def __init__(self, sessions: Sessions, directory: Path, get_commands: Callable[[], ServerCommands | None]) -> None:
        self._sessions = sessions
        self._directory = directory
        self._get_commands = get_commands
        self._key = secrets.token_hex(32)
        self._connections = ControlConnections(self._key)

    async def serve(self) -> None:
        """Answer requests until cancelled; if the socket cannot be created, the executor runs without it."""
        with suppress(OSError):
            # The key comes first: a client that finds the socket reads it.
            replace_file(self._directory / CONTROL_KEY, self._key.encode(), mode=0o600)
            listener = await SocketListener.from_socket(_bind(self._directory / CONTROL))
            await self._connections.serve(listener, self._handle_connection)

    async def _handle_connection(self, stream: ByteStream) -> None:
        """Answer a client; no failure here ends the executor."""
        try:
            async with stream:
                received = BufferedByteReceiveStream(stream)
                if await self._connections.receive_key(received):
                    with self._connections.hold_client() as has_room:
                        await self._handle_request(stream, received, has_room=has_room)
        except* PEER_ERRORS:
            pass
        except* Exception:
            logger.exception("kernelexec.control_request_failed")

    async def _handle_request(self, stream: ByteStream, received: BufferedByteReceiveStream, *, has_room: bool) -> None:
        try:
            if not has_room:
                raise CapacityReached(f"{CLIENTS_MAX} clients use the sessions of this process: end one first.")
            await _send(stream, READY)
            with anyio.fail_after(ANSWER_SECONDS):
                line = await received.receive_until(b"\n", REQUEST_BYTES)
            request = json.loads(line)
            client = escape_line(str(request.pop("client", "another process"))[:_CLIENT_CHARS])
            calling_client.set(client)  # this task has a context of its own
            async with anyio.create_task_group() as tasks:
                # A client sends nothing after its request: anything more ends the request, too.
                tasks.start_soon(_wait_for_end, received, tasks.cancel_scope)
                async with aclosing(self._answer(client, **request)) as answers:
                    async for answer in answers:
                        await _send(stream, answer)
                tasks.cancel_scope.cancel()
        except* KernelexecError as group:
            await _send(stream, _describe_error(find_first_exception(group)))
        except* (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # of the request, or our own mistakes
            logger.exception("kernelexec.control_request_failed")
            message = "The request failed: this process may have another version of kernelexec. Its log has the reason."
            await _send(stream, {"error": message})

    def _answer(self, client: str, /, do: str, session: str = "", **arguments: Any) -> _Answers:  # noqa: ANN401 - JSON
        """Return the answers to a request, as they arrive."""
        match do:
            case "look":
                return self._look()
            case "stop" | "restart":
                return self._stop(keeps_kernels=do == "restart")
            case "attach":
                return _attach(self._find(session), client)
            case "execute" | "execute_command":
                opened = self._find(session)
                return _run_cell(opened, partial(getattr(opened, do), **arguments))
            case "interrupt" | "variables" | "close":
                return self._call(do, session, arguments)
            case "checkpoint" | "checkpoints" | "drop_checkpoint" | "restore" | "undo" | "branch" | "promote":
                return _use_checkpoints(self._find(session), client, do, arguments)
        raise InvalidRequest(f"{do!r:.100} is not a request that this process knows.")

    async def _look(self) -> _Answers:
        sessions = [self._sessions.open_session(name) for name in self._sessions.sessions()]
        rows = [await _describe_session(opened) for opened in sessions if opened is not None]
        commands = self._get_commands()
        clients = {} if commands is None else commands.clients
        for row in rows:
            row["client"] = clients.get(row["name"]) or row["client"]
        yield {"sessions": rows, "serves": commands is not None}

    async def _stop(self, *, keeps_kernels: bool) -> _Answers:
        if (commands := self._get_commands()) is None:
            raise InvalidRequest(
                "this process is no server of kernelexec, but a program with sessions: end it as you began it."
            )
        call = commands.restart if keeps_kernels else commands.stop
        if call is None:
            raise InvalidRequest("the kernels of this server end with it, since no next server could adopt them.")
        yield {"stopping": True}  # the answer comes first: the call ends this connection, too
        call()

    async def _call(self, do: str, name: str, arguments: Mapping[str, Any]) -> _Answers:
        session = self._find(name)
        if do == "close":
            await self._sessions.close_session(name)
            yield {"closed": name}
        elif do == "interrupt":
            result = await session.interrupt(**arguments)
            yield {"interrupted": None if result is None else result.execution_id}
        else:
            yield {"variables": (await session.variables(**arguments)).to_dict()}

    def _find(self, name: str) -> AsyncSession:
        session = self._sessions.open_session(name) if isinstance(name, str) else None
        if session is None:
            raise UnknownSession(f"No session {name!r:.100} is open in this process.")
        return session


def _bind(path: Path) -> socket.socket:
    """Return a new listening socket. A thread could outlive the executor, and bind in a directory under removal."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        listening.bind(str(path))
        path.chmod(0o600)  # before anybody can connect
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


async def _attach(session: AsyncSession, client: str) -> _Answers:
    """Attach a client until the connection ends; the owner's next result reports the attachment."""
    with session.attachments.hold(client):
        yield {"attached": await _describe_session(session)}
        await session.scope.stopped.wait()


async def _use_checkpoints(session: AsyncSession, client: str, do: str, arguments: Mapping[str, Any]) -> _Answers:
    """Make, list or drop checkpoints, go back to an earlier state, or open or promote a branch."""
    match do:
        case "checkpoint":
            yield {"checkpoint": (await session.checkpoint(**arguments)).to_dict()}
        case "checkpoints":
            yield {"checkpoints": [checkpoint.to_dict() for checkpoint in await session.checkpoints()]}
        case "drop_checkpoint":
            wanted = AsyncCheckpoint.from_dict(arguments["checkpoint"])
            for checkpoint in await session.checkpoints():
                if (checkpoint.number, checkpoint.lineage) == (wanted.number, wanted.lineage):
                    await checkpoint.drop()
            yield {"dropped": True}
        case "branch":
            if "n" in arguments:
                raise InvalidRequest("An attached session opens one branch at a call, without `n`.")
            branch = await session.branch(**arguments)
            yield {"branch": {"name": branch.name, "workspace": str(branch.workspace)}}
        case "promote":
            yield {"restored": (await session.promote(**arguments)).to_dict()}
        case _:
            if isinstance(saved := arguments.get("saved"), dict):
                arguments = {**arguments, "saved": AsyncCheckpoint.from_dict(saved)}
            went_back = await (session.undo(**arguments) if do == "undo" else session.restore(**arguments))
            session.attachments.note_return(client)
            yield {"restored": went_back.to_dict()}


async def _run_cell(session: AsyncSession, execute: Callable[..., Any]) -> _Answers:
    """Run a cell; yield outputs as they arrive, then the result. If the client disconnects, the cell is interrupted."""
    begun: list[ExecutionResult] = []
    has_ended = False
    try:
        async with aclosing(iterate_outputs(execute, session.wait_for, on_begin=begun.append)) as outputs:
            async for output in outputs:
                has_ended = isinstance(output, ExecutionResult)
                if isinstance(output, ExecutionResult):
                    yield {"result": output}
                else:
                    yield {"progress": Progress("", "running", (output,), 0)}
    finally:
        if begun and not has_ended:
            with anyio.move_on_after(ANSWER_SECONDS, shield=True):  # this request is cancelled, the interrupt must not be
                await session.interrupt(begun[0].execution_id)


async def _describe_session(session: AsyncSession) -> dict[str, Any]:
    """Describe a session, with the running and waiting cells, newest last."""
    names = session.executions()[-_NEWEST:]
    cursors = [_END_CURSOR] * (len(names) - 1) + [0]  # of the newest one the output too
    progresses = [
        await session.wait_for(name, cursor=cursor, wait=SHORTEST_TIMEOUT) for name, cursor in zip(names, cursors, strict=False)
    ]
    newest = progresses[-1] if progresses else None
    text = "" if newest is None else newest.text if newest.result is None else newest.result.text
    return {
        "name": session.name,
        "workspace": str(session.workspace),
        "isolation": session.isolation,
        "kernel_epoch": session.kernel_epoch,
        "busy": session.busy,
        "running": [progress.execution_id for progress in progresses if progress.result is None],
        "client": ", ".join(session.attachments.clients),
        "output": _last_line(text),
    }


def _last_line(text: str) -> str:
    lines = text.rstrip().rsplit("\n", 1)
    return escape_line(lines[-1][-_LINE_CHARS:])


async def _wait_for_end(received: BufferedByteReceiveStream, scope: anyio.CancelScope) -> None:
    """Cancel the request's scope when the client disconnects."""
    with suppress(*PEER_ERRORS):
        await received.receive()
    scope.cancel()


async def _send(stream: ByteStream, answer: Mapping[str, Any]) -> None:
    """Send an answer, encoded in a thread: outputs may be large, and other sessions go on meanwhile."""
    await stream.send(await anyio.to_thread.run_sync(_encode, answer))


def _encode(answer: Mapping[str, Any]) -> bytes:
    with short_turns():
        plain = {key: item.to_dict() if isinstance(item, JsonConvertible) else item for key, item in answer.items()}
        return json.dumps(clean(plain)).encode() + b"\n"


class ControlConnections:
    """The open connections of a socket; ``key`` is the first line of every client.

    Any process of this user may connect, a confined kernel included. Only few connections may be without the key, for a short
    time, so clients with the key get through while others hold as many connections as possible.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._keyless: dict[anyio.CancelScope, None] = {}  # the oldest first
        self._clients = 0

    async def serve(self, listener: SocketListener, handle: Callable[[ByteStream], Coroutine[None, None, None]]) -> None:
        """Accept connections until cancelled; ``handle`` must handle all failures of a connection."""
        async with listener, anyio.create_task_group() as tasks:
            while True:
                try:
                    stream = await listener.accept()
                except anyio.BrokenResourceError:
                    logger.warning("kernelexec.control_accept_failed", exc_info=True)
                    await anyio.sleep(_PAUSE_SECONDS)
                    continue
                tasks.start_soon(handle, stream)
                if len(self._keyless) >= KEYLESS_MAX:
                    await anyio.sleep(_FLOOD_PAUSE_SECONDS)

    async def receive_key(self, received: BufferedByteReceiveStream) -> bool:
        """Return whether a new connection sends the key within 5 s, and before 16 newer connections wait without it."""
        line = b""  # no key, also after a cancellation by a newer connection
        with anyio.move_on_after(KEY_SECONDS) as scope, self._hold_keyless(scope):
            line = await received.receive_until(b"\n", KEY_BYTES)
        return hmac.compare_digest(line, self._key)

    @contextmanager
    def hold_client(self) -> Iterator[bool]:
        """Count a client with the key for the duration of the block; yield whether there is room."""
        self._clients += 1
        try:
            yield self._clients <= CLIENTS_MAX
        finally:
            self._clients -= 1

    @contextmanager
    def _hold_keyless(self, scope: anyio.CancelScope) -> Iterator[None]:
        if len(self._keyless) >= KEYLESS_MAX:
            oldest = next(iter(self._keyless))
            del self._keyless[oldest]
            oldest.cancel()
        self._keyless[scope] = None
        try:
            yield
        finally:
            self._keyless.pop(scope, None)


def _describe_error(exc: KernelexecError) -> dict[str, Any]:
    """Return an error as an answer."""
    obstacles = {"obstacles": exc.obstacles} if isinstance(exc, CheckpointRefused) else {}
    return {"error": str(exc), "kind": type(exc).__name__, **obstacles}
