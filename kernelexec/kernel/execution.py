"""One request under way in a kernel: what it printed, whether it has ended, and what is still missing of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from kernelexec.kernel.crash_output import unsent
from kernelexec.kernel.input_request import OnQuestion
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector

#: How an execution ended: reply and idle came; one of them never did; the kernel died; the kernel hung up.
End = Literal["complete", "incomplete", "died", "disconnected"]

#: How long after one half of the end (idle or reply) the other one may take while nothing else comes, in seconds.
HALF_END_PATIENCE = 1.0


_UNREAD = {protocol.METADATA_KEY: "unread"}


def unread(reply: dict[str, Any]) -> bool:
    """Whether a reply came that was too large to be read."""
    return reply == _UNREAD


class Execution:
    """One ``execute_request``. Its waiting may be given up and taken up again: the cell does not notice.

    It ends when idle (iopub) AND reply (shell) are there. A cell can forge either; a forged idle alone ends nothing, and
    where one of them never comes the execution ends as ``incomplete``, which claims nothing about the state. ``heard_at`` says
    when something came on iopub at all, by the loop's clock: what floods it may keep the idle waiting.
    """

    def __init__(self, msg_id: str, collector: Collector, late: Collector, heard_at: Callable[[], float]) -> None:
        self.msg_id = msg_id
        self._heard_at = heard_at
        self.late = late
        self._collector = self._own = collector
        self.end: End | None = None
        self.reply: dict[str, Any] | None = None
        self.reply_metadata: dict[str, Any] = {}
        self.asked: bool = False
        self.ended = asyncio.Event()
        self.heard = 0
        self.lingers = False
        self._left_out_bytes = 0
        self.on_question: OnQuestion | None = None
        """Who is told of what the cell asks by `input()`, if anybody is."""
        self._turning = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._left = 0.0
        self._idle = False
        self._half_at = 0.0
        self._patience: asyncio.TimerHandle | None = None

    async def wait_for_turn(self, seconds: float) -> None:
        """Wait until the execution ended or somebody asked for its interruption, so many seconds at most, for all who wait.

        What is ``paused`` does not count.
        """
        self._timer = asyncio.get_running_loop().call_later(seconds, self._turning.set)
        try:
            await self._turning.wait()
        finally:
            self._timer.cancel()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time within is not the cell's: it waits for somebody's answer."""
        loop = asyncio.get_running_loop()
        if not self._pauses and self._timer is not None:
            self._left = self._timer.when() - loop.time()
            self._timer.cancel()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and self._timer is not None and not self._turning.is_set():
                self._timer = loop.call_later(self._left, self._turning.set)

    @property
    def asks_exit(self) -> bool:
        """Whether the cell asked the kernel to exit, as ``exit()`` does."""
        payload = (self.reply or {}).get("payload")
        items = payload if isinstance(payload, list) else []
        return any(isinstance(item, dict) and item.get("source") == "ask_exit" and not item.get("keepkernel") for item in items)

    def ask_interrupt(self) -> None:
        """Wake whoever watches this execution, so that it is interrupted."""
        self.asked = True
        self._turning.set()

    def saw_output(self, msg_type: str, content: dict[str, Any], dropped_bytes: int) -> None:
        """Take an iopub message; after the end it counts as late, unless the execution lingers."""
        target = self._collector
        self.heard += 1
        if dropped_bytes:
            target.drop(dropped_bytes)
        target.feed(msg_type, content)

    def saw_last_words(self, content: bytes) -> None:
        """Take what the launcher had written down before its process died, as far as it did not arrive."""
        if self.end in (None, "disconnected"):  # of a container's death the news may come after the end of its connection
            own = self._own
            for lost, name, text in unsent(content, self.msg_id, own.received_bytes + self._left_out_bytes):
                if lost:
                    own.drop(lost, outputs=0)
                    text = f"\n[... {lost} bytes were lost with the kernel ...]\n{text}"  # noqa: PLW2901 - the text to show
                own.feed("stream", {"name": name, "text": text})

    def saw_gap(self, said: dict[str, Any]) -> None:
        """Take note of output that the launcher could not keep for a new owner."""
        messages, text_bytes, other_bytes = (_count(said.get(name)) for name in ("messages", "text_bytes", "other_bytes"))
        if text_bytes:
            told = f"\n[... {text_bytes} bytes of output were not kept when the kernel changed its owner ...]\n"
            self._collector.drop(text_bytes, outputs=0)
            self._collector.feed("stream", {"name": "stdout", "text": told})
            self._left_out_bytes += text_bytes - len(told)
        if other_bytes:
            self._collector.drop(other_bytes, outputs=messages)

    def saw_idle(self) -> None:
        """Take the iopub half of the end."""
        self._idle = True
        self._half_ended()

    def saw_unread_reply(self) -> None:
        """Take note that a reply came, of which nothing is known."""
        self.saw_reply(dict(_UNREAD), {})

    def saw_reply(self, content: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Take the shell half of the end; the last reply before it counts: the true one comes after any forged one."""
        if self.end is None:
            self.reply, self.reply_metadata = content, metadata
            self._half_ended()

    def finish(self, end: End) -> None:
        """End now; the first end counts."""
        if self.end is not None:
            return
        self.end = end
        if not self.lingers:
            self._part()
        if self._patience is not None:
            self._patience.cancel()
        self.ended.set()
        self._turning.set()

    def settle(self) -> None:
        """Linger no longer: whatever comes now is late."""
        self.lingers = False
        if self.end is not None:
            self._part()

    def _part(self) -> None:
        """Part from what came in time: it is its cell's, and held no longer than that is remembered."""
        if self._collector is self.late:
            return
        self._own.settle()
        self._collector = self.late
        if self.end != "disconnected":  # else the last words of a dead kernel may still belong to it
            self._own = self.late

    def _half_ended(self) -> None:
        if self._idle and self.reply is not None:
            self.finish("complete")
        elif self._patience is None and self.end is None:
            self._half_at = asyncio.get_running_loop().time()
            self._be_patient()

    def _be_patient(self) -> None:
        loop = asyncio.get_running_loop()
        left = max(self._half_at, self._heard_at()) + HALF_END_PATIENCE - loop.time()
        if left <= 0:
            self.finish("incomplete")
        else:
            self._patience = loop.call_later(left, self._be_patient)


def _count(value: object) -> int:
    return min(value, 2**62) if isinstance(value, int) and value > 0 else 0
