"""The connection to a kernel: three channels, and the routing of each message to its execution."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from kernelexec.config import MIB
from kernelexec.errors import KernelConnectionFailed, KernelError, KernelNotAnswering
from kernelexec.kernel.execution import HOLD_SECONDS_MAX, CommandRequestMessage, End, Execution, InputRequestMessage
from kernelexec.kernel.wire.channels import Channel, Connector
from kernelexec.kernel.wire.messages import Message, MessageSession
from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector
from kernelexec.provisioning import RuntimeDirectory

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore

_SUBSCRIBE_ALL = [b"\x01"]
_CHANNELS = {"iopub": b"SUB", "shell": b"DEALER", "control": b"DEALER"}
#: Number of executions kept for their late output.
_EXECUTIONS_MAX = 200
#: Messages of the launcher that belong to no execution, and their keys in the metadata of replies.
_LAUNCHER_REPORTS = {protocol.MEMORY: "memory", protocol.OBSTACLES: "obstacles", protocol.PROGRAM: "program"}
#: How long a welcome may take before its absence is worked around, and how long the rest of a broken connection may take.
_WELCOME_SECONDS, _DRAIN_SECONDS = 0.05, 0.5
#: How long output may follow a reply on the other channel.
_QUIET_SECONDS = 0.2
#: Number of replies without new output that end the wait for a cell's output, and the time limit of that wait in seconds.
_SILENT_ROUNDS, _SETTLE_SECONDS = 2, 10.0
#: How long to wait for more output of a kernel that has published after a reply before, in seconds: on a busy machine its
#: publishing thread can lag behind its answering thread.
_LATE_SECONDS = 0.3
_VISITOR_MESSAGE_BYTES = 16 * MIB


class KernelClient:
    """A client of a kernel. There is no stdin channel: input requests come on iopub, as messages of their cell."""

    def __init__(self, key: bytes, identity: bytes, limit_bytes: int, on_metadata: Callable[[dict[str, Any]], None]) -> None:
        self.session = MessageSession(key)
        self._quiet = asyncio.Event()
        """Set when the kernel has become idle after a request other than a cell."""
        self._publishes_late = False
        """Whether the kernel has published output of a cell after its reply: see ``wait_until_quiet``."""
        self._identity = identity
        self._limit = limit_bytes
        self._on_metadata = on_metadata
        self._channels: dict[str, Channel] = {}
        self._heard = asyncio.Event()
        self._executions: dict[str, Execution] = {}
        self._resumed: dict[str, Execution] = {}
        """Executions of another owner, by the msg_id of the request for their output."""
        self._replays_awaited: dict[str, asyncio.Event] = {}
        """Events set when the launcher begins to publish the output of such an execution again."""
        self._visitor: str | None = None
        """The msg_id of the running cell of another client."""
        self._visited_at = 0.0
        """The end of the last such cell, or the beginning of the present one."""
        self._visits = 0
        """The number of cells of other clients not yet returned by ``take_visits``."""
        self.foreign_events = 0
        """A count of events of other clients: the beginning of each cell, and the end of each request."""
        self._replies: dict[str, asyncio.Future[dict[str, Any] | None]] = {}
        self._is_finished = False
        self._is_closing = False
        self._request_handlers: dict[str, Callable[[dict[str, Any], Execution | None], None]] = {
            protocol.COMMAND: self._on_command_request,
            protocol.INPUT: self._on_input_request,
        }

    async def connect(self, connector: Connector, *, only: str | None = None) -> None:
        """Open the channels and wait for the subscription of iopub. The caller bounds the wait.

        Args:
            connector: opens the sockets.
            only: name of the only channel to open; None opens all.

        Raises:
            KernelConnectionFailed: a socket is not the kernel's.
        """
        deliver = {"iopub": self._on_iopub, "shell": self._on_shell, "control": self._on_control}
        for name, kind in _CHANNELS.items():
            if only is None or name == only:
                identity = b"" if kind == b"SUB" else self._identity
                make = partial(Channel, kind, identity, self._limit, deliver[name], self._on_lost)
                self._channels[name] = await connector.connect(name, make)
        if "iopub" in self._channels:
            self._channels["iopub"].send(_SUBSCRIBE_ALL)
            await self._await_welcome()

    async def _await_welcome(self) -> None:
        """Wait for the welcome on iopub, or for the messages of a `kernel_info_request` where no welcome comes.

        The welcome can get stuck in the kernel although the subscription is in force (ipykernel 7.4 misses an edge of its
        socket).
        """
        patience = _WELCOME_SECONDS
        while not self._heard.is_set():
            with anyio.move_on_after(patience):
                await self._heard.wait()
                return
            self._channels["shell"].send(self.session.pack("kernel_info_request", {})[1])
            patience = min(1.0, patience * 2)

    def submit(
        self,
        code: str,
        collector: Collector,
        late: Collector,
        *,
        counted: bool = True,
        msg_id: str | None = None,
        asks: bool = False,
    ) -> Execution:
        """Send a cell: see ``Kernel.submit``. The execution is registered before the request is sent."""
        content = {
            "code": code,
            "silent": False,
            "store_history": counted,
            "user_expressions": {},
            "allow_stdin": asks,
            "stop_on_error": False,
        }
        msg_id, frames = self.session.pack("execute_request", content, msg_id=msg_id)
        execution = self._register(msg_id, collector, late)
        if self._visitor is not None:
            execution.hold()
        # Registered above: output that arrived between the send and the registration would have no owner.
        try:
            self._channels["shell"].send(frames)
        except KernelConnectionFailed:  # the connection's end ends the execution too, which certainly does not begin
            execution.has_begun = False
            if self._is_finished:
                execution.finish("disconnected")
        return execution

    def _register(self, msg_id: str, collector: Collector, late: Collector) -> Execution:
        iopub = self._channels["iopub"]
        execution = self._executions[msg_id] = Execution(msg_id, collector, late, lambda: iopub.heard_at)
        while len(self._executions) > _EXECUTIONS_MAX:
            del self._executions[next(iter(self._executions))]
        return execution

    @property
    def is_disconnected(self) -> bool:
        """Whether the kernel has closed a connection."""
        return any(channel.is_closed for channel in self._channels.values())

    @property
    def is_overrun(self) -> bool:
        """Whether a connection was dropped because the kernel left its messages unread."""
        return any(channel.is_overrun for channel in self._channels.values())

    async def resume(self, msg_id: str, collector: Collector, late: Collector, *, patience: float) -> Execution | None:
        """Continue an execution of another owner, with all output; return None if the kernel has a newer execution.

        The reply may come at any time. Output counts from the launcher's `REPLAY_BEGIN` on, after which all output is
        published again.

        Raises:
            KernelNotAnswering: the kernel does not answer within ``patience`` seconds.
        """
        execution = self._register(msg_id, collector, late)
        begins = self._replays_awaited[msg_id] = asyncio.Event()
        is_newest: object = None
        try:
            with anyio.move_on_after(patience):
                is_newest = await self._ask_newest(execution)
                # Control can overtake shell: the dead owner's request may still be on its way. A reply on shell shows that
                # the kernel has read everything sent there before.
                if is_newest is False and await self.is_responsive(patience):
                    is_newest = await self._ask_newest(execution)
                if is_newest is True:
                    await begins.wait()
                    return execution
        finally:
            if not begins.is_set():
                del self._executions[msg_id], self._replays_awaited[msg_id]
        if is_newest is False:
            return None
        raise KernelNotAnswering("The kernel did not say what became of the cell that it was running for another owner.")

    async def _ask_newest(self, execution: Execution) -> object:
        """Ask the launcher whether an execution is the newest; if so, the launcher publishes all output again."""
        msg_id = uuid.uuid4().hex
        self._resumed[msg_id] = execution
        content = {"msg_id": execution.msg_id}
        reply = await self.request("control", protocol.RESUME_REQUEST, content, patience=math.inf, msg_id=msg_id)
        return reply.get("known") if reply is not None else None

    async def request(
        self, channel: str, msg_type: str, content: dict[str, Any], *, patience: float, msg_id: str | None = None
    ) -> dict[str, Any] | None:
        """Send a request on ``shell`` or ``control`` and return the content of the reply; None if ``patience`` seconds pass.

        Return None at once if the kernel has ended or is disconnected. A reply too large to be read is empty.
        """
        if self._is_finished or self.is_disconnected:
            return None
        msg_id, frames = self.session.pack(msg_type, content, msg_id=msg_id)
        reply: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._replies[msg_id] = reply
        try:
            with suppress(KernelError, KeyError), anyio.move_on_after(patience):
                self._channels[channel].send(frames)
                return await reply
        finally:
            del self._replies[msg_id]
        return None

    async def is_responsive(self, patience: float) -> bool:
        """Return whether the kernel answers on the shell channel within ``patience`` seconds."""
        return await self.request("shell", "kernel_info_request", {}, patience=patience) is not None

    async def wait_until_quiet(self, execution: Execution, patience: float) -> bool:
        """Return whether the kernel answers after a cell, each time within ``patience`` seconds.

        A kernel without our launcher is asked again until no more output of the cell arrives between the answers. Some
        kernels (deno 2.9) report the end of a cell before they have published all its output.
        """
        if not execution.keeps_late_output:
            return await self.is_responsive(patience)
        is_responsive = False
        with anyio.move_on_after(_SETTLE_SECONDS):
            count, silent, since = execution.output_count, 0, anyio.current_time()
            while silent < _SILENT_ROUNDS or (self._publishes_late and anyio.current_time() < since + _LATE_SECONDS):
                # The reply comes on shell, output on iopub. The idle of the same request comes on iopub too, behind all
                # output published before it. A kernel that sends no idle costs _QUIET_SECONDS a round.
                self._quiet.clear()
                is_responsive = await self.is_responsive(patience)
                if not is_responsive:
                    break
                with anyio.move_on_after(_QUIET_SECONDS):
                    await self._quiet.wait()
                silent += 1
                if count != execution.output_count:
                    count, silent, since, self._publishes_late = execution.output_count, 0, anyio.current_time(), True
                elif self._publishes_late:
                    await anyio.sleep(_LATE_SECONDS / 10)
        return is_responsive

    async def enter(self, cwd: str | None, environment: Mapping[str, str | None], *, patience: float) -> bool:
        """Change the directory and the environment of an idle kernel; return whether this worked within ``patience`` seconds.

        Without ``cwd`` the kernel stays in its directory, and only variables with new values are set.
        """
        content = {"cwd": cwd, "environment": dict(environment)}
        reply = await self.request("control", protocol.ENTER_REQUEST, content, patience=patience)
        return reply is not None and reply.get("status") == "ok"

    def answer(self, request: InputRequestMessage, text: str | None, reason: str = "") -> None:
        """Answer an input request of a cell. A ``text`` of None refuses, for the ``reason``."""
        self.send_nowait(protocol.INPUT_REQUEST, name=request.name, text=text, why=reason)

    def answer_command(self, request: CommandRequestMessage, **answer: Any) -> None:  # noqa: ANN401 - JSON types
        """Answer a request of a command; an empty answer ends the requested part."""
        self.send_nowait(protocol.COMMAND_REQUEST, name=request.name, **answer)

    def mask(self, secrets: SecretStore) -> None:
        """Mask secrets in all later messages of the kernel."""
        self.session.secrets = secrets

    def send_nowait(self, msg_type: str, **content: Any) -> None:  # noqa: ANN401
        """Send a message on the control channel without waiting for a reply; do nothing if the connection is gone."""
        with suppress(KernelConnectionFailed, KeyError):
            self._channels["control"].send(self.session.pack(msg_type, content)[1])

    def on_crash_output(self, content: bytes) -> None:
        """Hand unsent output of a dead kernel to the executions that had not ended."""
        for execution in self._executions.values():
            execution.on_crash_output(content)

    def finish(self, end: End) -> None:
        """End every running execution, and every wait for a reply."""
        self._is_finished = True
        for reply in filter(lambda waiting: not waiting.done(), self._replies.values()):
            reply.set_result(None)
        for execution in self._executions.values():
            execution.finish(end)

    async def wait_drained(self) -> None:
        """Wait for a bounded time until the kernel has closed every channel and all its messages are read."""
        with anyio.move_on_after(_DRAIN_SECONDS):
            for channel in self._channels.values():
                await channel.closed.wait()

    def close(self) -> None:
        """Drop the connection."""
        self._is_closing = True
        for channel in self._channels.values():
            channel.abort()

    def _on_iopub(self, multipart: Multipart) -> None:
        message = self.session.read(multipart)
        if message is None:
            return
        self._heard.set()
        if (key := _LAUNCHER_REPORTS.get(message.msg_type)) is not None:  # during any cell, another client's too
            self._on_metadata({protocol.METADATA_KEY: {"token": message.content.get("token"), key: message.content}})
            return
        execution = self._executions.get(message.parent_id)
        if (answer := self._request_handlers.get(message.msg_type)) is not None:
            answer(message.content, execution if execution is not None and execution.end is None else None)
            return
        # REPLAY_BEGIN and REPLAY_GAP have our resume request as their parent, repeated messages the cell. Messages of the cell
        # before REPLAY_BEGIN are dropped, since the replay repeats them.
        if (resumed := self._resumed.get(message.parent_id)) is not None:
            self._on_replay(resumed, message)
            return
        if message.parent_id in self._replays_awaited:
            return
        if message.msg_type == "execute_input":
            self._on_begin(execution, message.parent_id)
        if message.msg_type == "status" or execution is None:
            if message.content.get("execution_state") == "idle":
                self._on_idle(execution, message.parent_id)
        else:
            execution.on_output(message.msg_type, message.content, message.dropped_bytes)

    def _on_begin(self, execution: Execution | None, msg_id: str) -> None:
        """Note the beginning of a cell of ours, or of another client, for which our cells wait."""
        if execution is not None:
            execution.release(is_running=True)
        elif not msg_id.startswith(self.session.session_id):  # else a request of ours
            self._visitor, self._visited_at = msg_id, time.monotonic()
            self._visits += 1
            self.foreign_events += 1
            for each in self._executions.values():
                each.hold()

    @property
    def last_visit(self) -> float:
        """When a cell of another client last ran, on the monotonic clock; now while such a cell runs, for an hour at most."""
        now = time.monotonic()
        return self._visited_at if self._visitor is None else min(now, self._visited_at + HOLD_SECONDS_MAX)

    def take_visits(self) -> int:
        """Return the number of cells of other clients since the last call."""
        visits, self._visits = self._visits, 0
        return visits

    def _on_idle(self, execution: Execution | None, msg_id: str) -> None:
        """Note the end of a request: an execution, another request of ours, or a request of another client."""
        self._quiet.set() if execution is None else execution.on_idle()
        if execution is None and msg_id and not msg_id.startswith(self.session.session_id):
            self.foreign_events += 1
        if msg_id == self._visitor:
            self._visitor, self._visited_at = None, time.monotonic()
            for each in self._executions.values():
                each.release()

    def _on_input_request(self, content: dict[str, Any], execution: Execution | None) -> None:
        """Hand an input request to the running execution's callback; refuse without a callback."""
        request = InputRequestMessage.of(content)
        if execution is not None and execution.on_input_request is not None:
            execution.on_input_request(request)
        else:
            self.answer(request, None, "no client can answer")

    def _on_command_request(self, content: dict[str, Any], execution: Execution | None) -> None:
        """Hand a request of a command to the running execution's callback; end the requested part without a callback."""
        request = CommandRequestMessage.of(content)
        if execution is not None and execution.on_command_request is not None:
            execution.on_command_request(request)
        else:
            self.answer_command(request)

    def _on_replay(self, execution: Execution, message: Message) -> None:
        """Take a report on a replay: the beginning, with the reply so far, or a gap."""
        if message.msg_type == protocol.REPLAY_GAP:
            execution.on_gap(message.content)
        elif (
            message.msg_type == protocol.REPLAY_BEGIN
            and (begins := self._replays_awaited.pop(execution.msg_id, None)) is not None
        ):
            reply, metadata = message.content.get("reply"), message.content.get("metadata")
            if not message.whole or reply == {}:
                execution.on_unread_reply()
            elif isinstance(reply, dict) and isinstance(metadata, dict):
                self._on_metadata(metadata)
                execution.on_reply(reply, metadata)
            begins.set()

    def _on_shell(self, multipart: Multipart) -> None:
        message = self.session.read(multipart)
        if message is None or self._take_reply(message):
            return
        if (execution := self._executions.get(message.parent_id)) and message.msg_type == "execute_reply":
            if message.whole:
                self._on_metadata(message.metadata)
                execution.on_reply(message.content, message.metadata)
            else:
                execution.on_unread_reply()

    def _on_control(self, multipart: Multipart) -> None:
        if (message := self.session.read(multipart)) is not None:
            self._take_reply(message)

    def _take_reply(self, message: Message) -> bool:
        """Hand a reply to its waiting request; return whether there is such a request."""
        reply = self._replies.get(message.parent_id)
        if reply is not None and not reply.done():
            reply.set_result(message.content)
        return reply is not None

    def _on_lost(self, channel: Channel, _reason: str) -> None:
        # A dying kernel's sockets close before its exit is reported: the delay lets `died` come first. A channel that is not
        # registered yet was a failed try to connect.
        if channel in self._channels.values() and not self._is_closing:
            asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.finish, "disconnected")


async def request_once(runtime: RuntimeDirectory, msg_type: str, content: dict[str, Any], *, patience: float) -> dict[str, Any]:
    """Send a control request to a kernel of another process, and return the content of the reply.

    The request has a connection and an identity of its own, so that the owner and its cells notice nothing.

    Raises:
        KernelNotAnswering: the kernel is gone, or does not answer within ``patience`` seconds.
    """
    connection = runtime.read_connection()
    if connection is None:
        raise KernelNotAnswering("The kernel is gone: its connection file cannot be read.")
    # A second client with the owner's identity would get the owner's replies.
    client = KernelClient(connection.key, secrets.token_hex(16).encode(), _VISITOR_MESSAGE_BYTES, lambda _: None)
    reply = None
    try:
        with anyio.move_on_after(patience):
            await client.connect(Connector(connection, None, is_serving=True), only="control")
            reply = await client.request("control", msg_type, content, patience=patience)
    except KernelConnectionFailed as exc:
        raise KernelNotAnswering(f"The kernel cannot be reached: {exc}.") from exc
    finally:
        client.close()
    if reply is None:
        message = f"The kernel did not answer within {patience:.1f} s: it may hold the interpreter's lock in C code."
        raise KernelNotAnswering(message)
    return reply
