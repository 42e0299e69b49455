"""A request under way in a kernel: output, input requests, and the end, which needs both idle and the reply."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.launcher import protocol
from kernelexec.launcher.protocol import CRASH_HALF_BYTES, CRASH_KEY_BYTES, CRASH_OPEN_LENGTH, CRASH_RECORD
from kernelexec.outputs import Collector
from kernelexec.text import clean_text

#: How an execution ended: with reply and idle; with only one of the two; by the kernel's death; by a closed connection.
End = Literal["complete", "incomplete", "died", "disconnected"]

#: How long the second half of the end (idle or reply) may take after the first while nothing else comes, in seconds.
HALF_END_PATIENCE = 1.0

#: How long the clock of a cell may stand for cells of other clients, in seconds. The kernel alone reports those cells, so a
#: hostile one can make them up; a person's cell takes no longer as a rule.
HOLD_SECONDS_MAX = 3600.0

_UNREAD = {protocol.METADATA_KEY: "unread"}
#: How much of the name of a request is repeated in its answer; the launcher's names are shorter.
NAME_CHARS = 64
_PROMPT_CHARS = 20_000


def is_unread(reply: dict[str, Any]) -> bool:
    """Return whether a reply arrived but was too large to be read."""
    return reply == _UNREAD


class Execution:
    """One ``execute_request``. A caller may stop waiting and wait again: the cell does not notice.

    The execution ends when both idle (iopub) and reply (shell) are there. A cell can forge either. A forged idle alone ends
    nothing. If the other half never comes the execution ends as ``incomplete``, which claims nothing about the state.

    Args:
        msg_id: id of the request.
        collector: takes output up to the end.
        late: takes output after the end.
        heard_at: returns the time of the newest iopub message by the loop's clock; a flood of messages may delay the idle.
    """

    def __init__(self, msg_id: str, collector: Collector, late: Collector, heard_at: Callable[[], float]) -> None:
        self.msg_id = msg_id
        self._heard_at = heard_at
        self.late = late
        self._collector = self._own = collector
        self.end: End | None = None
        self.reply: dict[str, Any] | None = None
        self.reply_metadata: dict[str, Any] = {}
        self.is_interrupt_requested = False
        """Whether a caller requested the interruption of the cell."""
        self.ended = asyncio.Event()
        self.has_begun = True
        """Whether the cell may have begun: False if the kernel certainly ended before."""
        self.output_count = 0
        """The number of iopub messages with output, late messages included."""
        self.keeps_late_output = False
        """Whether output after the end belongs to the cell's result, until `settle`."""
        self._left_out_bytes = 0
        self.on_input_request: OnInputRequest | None = None
        """Takes the cell's input requests; None refuses them."""
        self.on_command_request: OnCommandRequest | None = None
        """Takes the requests of a command with a part at the owner."""
        self._turn = asyncio.Event()
        """Set at the end, at a request to interrupt, and at the end of the time of `wait_for_turn`."""
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._remaining_seconds = math.inf
        """The rest of the cell's time while its clock is stopped."""
        self.is_held = False
        """Whether the cell waits in the kernel for a cell of another client."""
        self._stands = False
        """Whether the clock stands therefore."""
        self._hold_limit: asyncio.TimerHandle | None = None
        self.is_in_compiled_code = False
        """Whether the cell's time is over and a call into compiled code has not returned yet."""
        self._is_running = False
        self._idle = False
        self._half_end_time = 0.0
        """The time of the first half of the end, by the loop's clock."""
        self._patience: asyncio.TimerHandle | None = None

    async def wait_for_turn(self, seconds: float) -> None:
        """Wait until the execution has ended or an interrupt was requested, for at most ``seconds`` of the cell's clock.

        The clock stands within ``pause_budget``, and while a cell of another client runs (``HOLD_SECONDS_MAX``).
        """
        self._remaining_seconds = seconds
        self._start_clock()
        try:
            await self._turn.wait()
        finally:
            self._stop_clock()

    @contextmanager
    def pause_budget(self) -> Iterator[None]:
        """Stop the cell's clock while the cell waits for an answer."""
        self._pause()
        try:
            yield
        finally:
            self._go_on()

    def hold(self) -> None:
        """Stop the clock while a cell of another client runs in the kernel, unless this cell has begun; for an hour at most."""
        if not (self.is_held or self._is_running or self.end):
            if self._hold_limit is None:
                self._hold_limit = asyncio.get_running_loop().call_later(HOLD_SECONDS_MAX, self._end_hold)
            self.is_held = True
            if not self._hold_limit.cancelled():
                self._stands = True
                self._pause()

    def release(self, *, is_running: bool = False) -> None:
        """Start the clock again when the other client's cell has ended, or when this cell ``is_running``.

        No message can stop the clock of a running cell any more.
        """
        self._is_running |= is_running
        self.is_held = False
        if self._stands:
            self._stands = False
            self._go_on()

    def _end_hold(self) -> None:
        """Start the clock of a cell that may be held still, and let no message stop it any more."""
        if self._hold_limit is not None:
            self._hold_limit.cancel()
        if self._stands:
            self._stands = False
            self._go_on()

    # Pauses nest: an input request can be open while a cell of another client runs. The clock runs at zero pauses only.
    def _pause(self) -> None:
        self._pauses += 1
        self._stop_clock()

    def _go_on(self) -> None:
        self._pauses -= 1
        self._start_clock()

    def _start_clock(self) -> None:
        if not (self._pauses or self._turn.is_set() or math.isinf(self._remaining_seconds)):
            self._timer = asyncio.get_running_loop().call_later(self._remaining_seconds, self._turn.set)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._remaining_seconds = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
            self._timer = None

    @property
    def remark(self) -> str:
        """A sentence part on the reason why the cell waits, if the output does not show it; else an empty text."""
        if self.is_held:
            return "it waits for a cell of another client of its kernel"
        return "its time is over, and a call into compiled code is waited for" if self.is_in_compiled_code else ""

    @property
    def asks_exit(self) -> bool:
        """Whether the cell asked the kernel to exit, as ``exit()`` does."""
        payload = (self.reply or {}).get("payload")
        items = payload if isinstance(payload, list) else []
        return any(isinstance(item, dict) and item.get("source") == "ask_exit" and not item.get("keepkernel") for item in items)

    def ask_interrupt(self) -> None:
        """Wake the watching task, which then interrupts the cell."""
        self.is_interrupt_requested = True
        self._turn.set()

    def on_output(self, msg_type: str, content: dict[str, Any], dropped_bytes: int) -> None:
        """Take an iopub message; after the end a message counts as late, unless the execution keeps late output."""
        target = self._collector
        self.output_count += 1
        if dropped_bytes:
            target.count_missing(dropped_bytes)
        target.feed(msg_type, content)

    def on_crash_output(self, content: bytes) -> None:
        """Take the launcher's crash file, and add output lost with the process."""
        if self.end in (None, "disconnected"):  # a container's death may be reported after the end of its connection
            # Offsets in the file count the bytes that the cell wrote. Bytes that a takeover left out were written, but
            # never received here.
            self.has_begun = self.output_count > 0 or self.reply is not None or has_begun(content, self.msg_id)
            own = self._own
            for lost, name, text in undelivered_output(content, self.msg_id, own.received_bytes + self._left_out_bytes):
                if lost:
                    own.count_missing(lost, outputs=0)
                    text = f"\n[... {lost} bytes were lost with the kernel ...]\n{text}"  # noqa: PLW2901 - the text to show
                own.feed("stream", {"name": name, "text": text})

    def on_gap(self, content: dict[str, Any]) -> None:
        """Note output lost at a change of owner: too much for the launcher to keep."""
        messages, text_bytes, other_bytes = (_count(content.get(name)) for name in ("messages", "text_bytes", "other_bytes"))
        if text_bytes:
            notice = f"\n[... {text_bytes} bytes of output were not kept when the kernel changed its owner ...]\n"
            self._collector.count_missing(text_bytes, outputs=0)
            self._collector.feed("stream", {"name": "stdout", "text": notice})
            self._left_out_bytes += text_bytes - len(notice)  # the collector has counted the notice as received text
        if other_bytes:
            self._collector.count_missing(other_bytes, outputs=messages)

    def on_idle(self) -> None:
        """Take the iopub half of the end."""
        self._idle = True
        self._half_ended()

    def on_unread_reply(self) -> None:
        """Note the arrival of an unreadable reply."""
        self.on_reply(dict(_UNREAD), {})

    def on_reply(self, content: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Take the shell half of the end. The last reply before the end counts: forged replies come before the true one."""
        if self.end is None:
            self.reply, self.reply_metadata = content, metadata
            self._half_ended()

    def forget_reply(self) -> None:
        """Drop the kernel's reply, which may be large; the result has the relevant parts."""
        self.reply, self.reply_metadata = {}, {}

    def finish(self, end: End) -> None:
        """End now; the first end counts."""
        if self.end is not None:
            return
        self.end = end
        if not self.keeps_late_output:
            self._end_half()
        for timer in (self._patience, self._hold_limit):
            if timer is not None:
                timer.cancel()
        self.ended.set()
        self._turn.set()

    def settle(self) -> None:
        """Stop keeping late output for the result; later output goes to the late collector."""
        self.keeps_late_output = False
        if self.end is not None:
            self._end_half()

    def _end_half(self) -> None:
        """Release held-back output into the cell's result, and direct later output to the late collector."""
        if self._collector is self.late:
            return
        self._own.flush(is_last=True)
        self._collector = self.late
        if self.end != "disconnected":  # else `on_crash_output` may still add text of a dead kernel to the result
            self._own = self.late

    def _half_ended(self) -> None:
        if self._idle and self.reply is not None:
            self.finish("complete")
        elif self._patience is None and self.end is None:
            self._half_end_time = asyncio.get_running_loop().time()
            self._be_patient()

    def _be_patient(self) -> None:
        # Runs again as long as messages come: the missing half may be queued behind a flood of output.
        loop = asyncio.get_running_loop()
        left = max(self._half_end_time, self._heard_at()) + HALF_END_PATIENCE - loop.time()
        if left <= 0:
            self.finish("incomplete")
        else:
            self._patience = loop.call_later(left, self._be_patient)


def _count(value: object) -> int:
    # The kernel chose the number, and Python's integers have no bound.
    return min(value, 2**62) if isinstance(value, int) and value > 0 else 0


@dataclass(frozen=True, slots=True)
class InputRequestMessage:
    """An input request of a cell, under a name chosen by the kernel."""

    name: str
    prompt: str
    password: bool

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """Read a message of any content, within bounds."""
        name, prompt = (_text(content, key) for key in ("name", "prompt"))
        return cls(clean_text(name[:NAME_CHARS]), prompt[:_PROMPT_CHARS], content.get("password") is True)


@dataclass(frozen=True, slots=True)
class CommandRequestMessage:
    """A request of a command to its owner, under a name chosen by the kernel."""

    name: str
    action: str
    content: str
    """Bytes in base64."""

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """Read a message of any content; the connection bounds its size."""
        name, action, text = (_text(content, key) for key in ("name", "action", "content"))
        return cls(clean_text(name[:NAME_CHARS]), action[:NAME_CHARS], text)


def _text(content: dict[str, Any], key: str) -> str:
    """Return a field if it is text: the text of anything else could be larger than the message, or be nested too deep."""
    value = content.get(key)
    return value if isinstance(value, str) else ""


OnInputRequest = Callable[[InputRequestMessage], None]
OnCommandRequest = Callable[[CommandRequestMessage], None]


def has_begun(content: bytes, msg_id: str) -> bool:
    """Return whether a cell may have begun: False if the file names other cells only."""
    keys = [key for key, _ in _halves(content) if key]
    return not keys or msg_id.encode()[:CRASH_KEY_BYTES] in keys


def undelivered_output(content: bytes, msg_id: str, received_bytes: int) -> list[tuple[int, str, str]]:
    """Return the text of a cell after its first ``received_bytes``, in pieces: bytes lost before, name of the stream, text.

    ``content`` has the format of the crash file in ``launcher/protocol``. The kernel may write anything there, so the
    content is used as text only.
    """
    # Two halves, which the launcher fills in turn:
    #   half:    key (cell's msg_id, padded with NUL) | record | record | ... | NULs
    #   record:  stderr, length, offset | text
    # The last record of a half may still be open: its length is CRASH_OPEN_LENGTH, and only NULs follow its text.
    own_key = msg_id.encode()[:CRASH_KEY_BYTES]
    records = sorted(record for key, half in _halves(content) if key == own_key for record in _records(half))
    pieces = []
    for offset, name, text in records:
        lost = max(0, offset - received_bytes)
        missing = text[max(0, received_bytes - offset) :].decode("utf-8", "ignore")
        received_bytes = max(received_bytes, offset + len(text))
        if missing:
            pieces.append((lost, name, missing))
    return pieces


def _halves(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the complete halves of a file, each with the key of its cell; an unused half has an empty key."""
    for start in range(0, len(content) - CRASH_HALF_BYTES + 1, CRASH_HALF_BYTES):
        half = content[start : start + CRASH_HALF_BYTES]
        yield half[:CRASH_KEY_BYTES].rstrip(b"\0"), half


def _records(half: bytes) -> list[tuple[int, str, bytes]]:
    records: list[tuple[int, str, bytes]] = []
    position = CRASH_KEY_BYTES
    while position + CRASH_RECORD.size <= len(half):
        stderr, length, offset = CRASH_RECORD.unpack_from(half, position)
        position += CRASH_RECORD.size
        text = half[position:].rstrip(b"\0") if length == CRASH_OPEN_LENGTH else half[position : position + length]
        if not text or (length != CRASH_OPEN_LENGTH and len(text) < length):
            break
        records.append((offset, "stderr" if stderr else "stdout", text))
        position += len(text)
        if length == CRASH_OPEN_LENGTH:
            break
    return records
