"""The one connection to a kernel: three channels, and every message given to the execution that it belongs to."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from kernelexec.errors import KernelConnectionFailed, KernelError, KernelNotAnswering
from kernelexec.kernel.execution import End, Execution
from kernelexec.kernel.input_request import Question
from kernelexec.kernel.wire.channels import Channel
from kernelexec.kernel.wire.connect import Dialing
from kernelexec.kernel.wire.masked_session import MaskedWire
from kernelexec.kernel.wire.messages import Message, Wire, cell
from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector

_SUBSCRIBE_ALL = [b"\x01"]
_CHANNELS = {"iopub": b"SUB", "shell": b"DEALER", "control": b"DEALER"}
_REMEMBERED = 200  # so many executions, for what comes late
_SAID = {protocol.MEMORY: "memory", protocol.PROGRAM: "program"}
#: How long a welcome may take before its absence is worked around, and how long the rest of a broken connection may take.
_WELCOME_SECONDS, _DRAIN_SECONDS = 0.05, 0.5


class Link:
    """Speaks with one kernel. There is no stdin channel: what a cell asks comes on iopub, with the cell that it belongs to."""

    def __init__(self, key: bytes, identity: bytes, limit_bytes: int, on_metadata: Callable[[dict[str, Any]], None]) -> None:
        self.control_answered = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set when the kernel has said that it is idle after a request that is no cell."""
        self.wire: Wire | MaskedWire = Wire(key)
        self._identity = identity
        self._limit = limit_bytes
        self._on_metadata = on_metadata
        self._channels: dict[str, Channel] = {}
        self._heard = asyncio.Event()
        self._executions: dict[str, Execution] = {}
        self._late: dict[str, Execution] = {}
        self._resumed: dict[str, Execution] = {}
        self._without_tape: dict[str, asyncio.Event] = {}
        self._answers: dict[str, asyncio.Future[dict[str, Any] | None]] = {}
        self._closing = False

    async def connect(self, dialing: Dialing, *, only: str | None = None) -> None:
        """Open the channels (``only`` one of them) and wait until iopub reaches us. The caller bounds the wait.

        Raises:
            KernelConnectionFailed: a socket is not what it should be.
        """
        deliver = {"iopub": self._on_iopub, "shell": self._on_shell, "control": self._on_control}
        for name, kind in _CHANNELS.items():
            if only is None or name == only:
                identity = b"" if kind == b"SUB" else self._identity
                make = partial(Channel, kind, identity, self._limit, deliver[name], self._on_lost)
                self._channels[name] = await dialing.connect(name, make)
        if "iopub" in self._channels:
            self._channels["iopub"].send(_SUBSCRIBE_ALL)
            await self._await_welcome()

    async def _await_welcome(self) -> None:
        """Wait for the kernel's welcome on iopub, or for the traces of a request where no welcome comes.

        It can get stuck in the kernel (ipykernel 7.4 misses an edge of its socket), though the subscription is in force.
        """
        patience = _WELCOME_SECONDS
        while not self._heard.is_set():
            with anyio.move_on_after(patience):
                await self._heard.wait()
                return
            self._channels["shell"].send(self.wire.pack("kernel_info_request", {})[1])
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
        """Send a cell. It is registered before it is sent, so that nothing of it can be missed.

        ``msg_id`` is how the kernel knows it; nothing else may have been sent under it. See ``messages.cell``.

        Raises:
            KernelConnectionFailed: the connection is gone; nothing was sent.
        """
        content = cell(code, counted=counted, asks=asks)
        msg_id, frames = self.wire.pack("execute_request", content, msg_id=msg_id)
        execution = self._begun(msg_id, collector, late)
        self._channels["shell"].send(frames)
        return execution

    def _begun(self, msg_id: str, collector: Collector, late: Collector) -> Execution:
        iopub = self._channels["iopub"]
        execution = self._executions[msg_id] = Execution(msg_id, collector, late, lambda: iopub.heard_at)
        while len(self._executions) > _REMEMBERED:
            del self._executions[next(iter(self._executions))]
        return execution

    @property
    def hung_up(self) -> bool:
        """Whether the kernel has closed a connection."""
        return any(channel.gone for channel in self._channels.values())

    async def resume(self, msg_id: str, collector: Collector, late: Collector, *, patience: float) -> Execution | None:
        """Take up an execution that another owner had sent; None where the kernel's newest one is another.

        Its reply may come at any time. Its output counts from the launcher's word on that it publishes all of it anew.

        Raises:
            KernelNotAnswering: it does not answer within ``patience`` seconds.
        """
        execution = self._begun(msg_id, collector, late)
        begun = self._without_tape[msg_id] = asyncio.Event()
        known: object = None
        try:
            with anyio.move_on_after(patience):
                known = await self._is_newest(execution)
                if known is False and await self.answers(patience):  # what was just sent has come by now
                    known = await self._is_newest(execution)
                if known is True:
                    await begun.wait()
                    return execution
        finally:
            if not begun.is_set():
                del self._executions[msg_id], self._without_tape[msg_id]
        if known is False:
            return None
        raise KernelNotAnswering("The kernel did not say what became of the cell that it was running for another owner.")

    async def _is_newest(self, execution: Execution) -> object:
        """Whether the kernel's launcher says that this is its newest execution; then it publishes all of it anew."""
        asked = uuid.uuid4().hex
        self._resumed[asked] = execution
        content = {"msg_id": execution.msg_id}
        said = await self.ask("control", protocol.RESUME_REQUEST, content, patience=math.inf, msg_id=asked)
        return said.get("known") if said is not None else None

    async def ask(
        self, channel: str, msg_type: str, content: dict[str, Any], *, patience: float, msg_id: str | None = None
    ) -> dict[str, Any] | None:
        """The content of the reply to a request on ``shell`` or ``control``; None if it does not come in ``patience`` seconds.

        A reply that was too large to be read is an empty one.
        """
        msg_id, frames = self.wire.pack(msg_type, content, msg_id=msg_id)
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._answers[msg_id] = answer
        try:
            with suppress(KernelError, KeyError), anyio.move_on_after(patience):
                self._channels[channel].send(frames)
                return await answer
        finally:
            del self._answers[msg_id]
        return None

    async def answers(self, patience: float) -> bool:
        """Whether the kernel answers on the channel that runs cells, within ``patience`` seconds."""
        return await self.ask("shell", "kernel_info_request", {}, patience=patience) is not None

    def control(self, msg_type: str, **content: Any) -> None:  # noqa: ANN401
        """Send a request on the control channel; what it brings about is seen by its effect, not by its reply."""
        self.control_answered.clear()
        self.tell(msg_type, **content)

    def tell(self, msg_type: str, **content: Any) -> None:  # noqa: ANN401
        """Send a message on the control channel that nobody waits for."""
        with suppress(KernelConnectionFailed, KeyError):
            self._channels["control"].send(self.wire.pack(msg_type, content)[1])

    def hear_last_words(self, content: bytes) -> None:
        """Give what a dead kernel had left to say to the executions that had not ended."""
        for execution in self._executions.values():
            execution.saw_last_words(content)

    def take_late(self) -> list[Execution]:
        """Executions that have ended, and of which output came since the last call."""
        late, self._late = self._late, {}
        return list(late.values())

    def finish(self, end: End) -> None:
        """End every execution that has not ended, and the waiting for every answer."""
        for answer in filter(lambda waiting: not waiting.done(), self._answers.values()):
            answer.set_result(None)
        for execution in self._executions.values():
            execution.finish(end)

    async def drained(self) -> None:
        """Wait until the kernel's side has closed every channel and all it sent is read, for a bounded time."""
        with anyio.move_on_after(_DRAIN_SECONDS):
            for channel in self._channels.values():
                await channel.closed.wait()

    def close(self) -> None:
        """Drop the connection."""
        self._closing = True
        for channel in self._channels.values():
            channel.abort()

    def _on_iopub(self, multipart: Multipart) -> None:
        message = self.wire.read(multipart)
        if message is None:
            return
        self._heard.set()
        if (said := _SAID.get(message.msg_type)) is not None:  # by whichever cell, another client's too
            self._on_metadata({protocol.METADATA_KEY: {"token": message.content.get("token"), said: message.content}})
            return
        execution = self._executions.get(message.parent_id)
        if message.msg_type == protocol.INPUT:
            self._on_question(Question.of(message.content), execution)
            return
        if (resumed := self._resumed.get(message.parent_id)) is not None:
            self._on_tape(resumed, message)
            return
        if message.parent_id in self._without_tape:
            return
        if message.msg_type == "status" or execution is None:
            if message.content.get("execution_state") == "idle":
                self.quiet.set() if execution is None else execution.saw_idle()
        else:
            if execution.end is not None and not execution.lingers:
                self._late[execution.msg_id] = execution
            execution.saw_output(message.msg_type, message.content, message.dropped_bytes)

    def _on_question(self, question: Question, execution: Execution | None) -> None:
        """Tell who answers what a cell asks; where nobody does, it hears so."""
        if execution is not None and execution.on_question is not None and execution.end is None:
            execution.on_question(question)
        else:
            self.tell(protocol.INPUT_REQUEST, **question.answered(None, "nobody is there to answer"))

    def _on_tape(self, execution: Execution, message: Message) -> None:
        """What the launcher says of an execution that it publishes anew: that it begins, how it ended, what is missing."""
        if message.msg_type == protocol.REPLAY_GAP:
            execution.saw_gap(message.content)
        elif (
            message.msg_type == protocol.REPLAY_BEGIN and (begun := self._without_tape.pop(execution.msg_id, None)) is not None
        ):
            reply, metadata = message.content.get("reply"), message.content.get("metadata")
            if not message.whole or reply == {}:
                execution.saw_unread_reply()
            elif isinstance(reply, dict) and isinstance(metadata, dict):
                self._on_metadata(metadata)
                execution.saw_reply(reply, metadata)
            begun.set()

    def _on_shell(self, multipart: Multipart) -> None:
        message = self.wire.read(multipart)
        if message is None or self._is_answer(message):
            return
        if (execution := self._executions.get(message.parent_id)) and message.msg_type == "execute_reply":
            if message.whole:
                self._on_metadata(message.metadata)
                execution.saw_reply(message.content, message.metadata)
            else:
                execution.saw_unread_reply()

    def _on_control(self, multipart: Multipart) -> None:
        """A reply on control says that the control thread runs, no more."""
        message = self.wire.read(multipart)
        if message is not None and not self._is_answer(message):
            self.control_answered.set()

    def _is_answer(self, message: Message) -> bool:
        """Whether a message is what somebody waits for; if so they have it."""
        answer = self._answers.get(message.parent_id)
        if answer is not None and not answer.done():
            answer.set_result(message.content)
        return answer is not None

    def _on_lost(self, channel: Channel, _reason: str) -> None:
        if channel in self._channels.values() and not self._closing:
            asyncio.get_running_loop().call_later(_DRAIN_SECONDS, self.finish, "disconnected")
