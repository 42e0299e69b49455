"""The kernel's way out: nothing honest is lost and nothing grows without bound.

ipykernel publishes on a socket that drops what a slow reader does not take, from queues without an end. Here the socket
blocks instead, the queues are bounded, and whoever writes too fast waits: a cell that floods runs at its reader's speed.
What nobody has to wait for is sent by the thread that made it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import zmq
from ipykernel.iostream import IOPubThread
from ipykernel.thread import CONTROL_THREAD_NAME

from ..ipython.shell_channel import NOBLOCK, send_frames, waiting
from ..processes import fork_flag
from .crash_buffer import LastWords
from .pipe_reader import Children, Inlet
from .published import Gap, Tape
from .zmq_flush import Sending

if TYPE_CHECKING:
    from .streams import Stream

_SENDING_MAX = 64  # messages that libzmq holds: what is queued there delays an interrupt
_QUEUE_BYTES = 8 * 1024 * 1024
_MESSAGE_BYTES = 4096  # what a small message costs while it waits
_FLUSH_SECONDS = 0.2


def block_instead_of_dropping(socket: zmq.Socket[bytes]) -> None:
    """Make an XPUB socket keep what its subscriber is too slow for. Call it before the socket is bound."""
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.SNDHWM, _SENDING_MAX)


class Publisher(IOPubThread):
    """ipykernel's iopub thread with a bounded queue. The control thread never waits for it: interrupts must get through.

    Who holds ``wire`` may use the socket; it is taken before ``lock``.
    """

    def __init__(self, socket: Any, pipe: bool = False, session: Any = False) -> None:  # noqa: FBT001, FBT002 - ipykernel's
        self.wire = threading.RLock()
        self.lock = threading.RLock()  # a signal handler may print while its thread holds it
        self.room = threading.Condition(self.lock)
        self.pieces: list[tuple[Stream | None, Any, list[str]]] = []  # text, and calls that send other messages
        self.last_stream: Stream | None = None
        self.last_parent: Any = None
        self.last_texts: list[str] = []
        self.pending_chars = 0
        self.flushing = False
        self.publishing: int | None = None
        """The thread that publishes what was pending, if one does."""
        self.between_cells = True
        self.holds_next = False
        """Whether the next message waits for the one after it, which comes at once: two sent as one wake who reads once."""
        self._held: list[Any] | None = None
        self.words = LastWords(None)
        self.sending = Sending()
        self.tape: Tape | None = None
        self.text_bytes = 0
        self.streams: dict[str, Stream] = {}
        self.inlet = Inlet()
        self.children = Children(self.inlet, self._take_from_child)
        self._queued_bytes = 0
        self._woken = self._armed = False
        self._main = threading.main_thread().ident
        self._bare: Any = super(zmq.Socket, socket) if isinstance(socket, zmq.Socket) else socket
        super().__init__(socket, pipe=pipe, session=session)

    @property
    def may_block(self) -> bool:
        """Whether the calling thread may wait for this one."""
        current = threading.current_thread()
        return self.thread.is_alive() and current is not self.thread and current.name != CONTROL_THREAD_NAME

    @property
    def publishes_here(self) -> bool:
        """Whether the calling thread publishes what was pending."""
        return self.publishing == threading.get_ident()

    def send_multipart(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Send a message, or queue it behind what is pending, and wait while the queue is full."""
        if fork_flag.forked:  # none of the locks may be taken in a child
            with suppress(ValueError, LookupError, TypeError):
                self.children.write_message(list(map(bytes, msg)))
            return
        if not self.publishes_here and (threading.get_ident() == self._main or self.may_block):
            if kwargs.get("copy", True) and self._send_now(msg):
                return
        elif threading.current_thread().name != CONTROL_THREAD_NAME:
            self._really_send(msg, *args, **kwargs)
            return
        self._queue(msg, *args, **kwargs)

    def _queue(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        size = _MESSAGE_BYTES + sum(len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in msg)

        def send() -> None:
            try:
                self._really_send(msg, *args, **kwargs)
            finally:
                with self.room:
                    self._queued_bytes -= size
                    self.room.notify_all()

        with self.room:
            while self._queued_bytes and self._queued_bytes + size > _QUEUE_BYTES and self.may_block:
                self.room.wait()
            self._queued_bytes += size
            self.last_stream = self.last_parent = None
            self.pieces.append((None, send, []))
        self.schedule(self.flush_text)

    def _send_now(self, msg: list[Any]) -> bool:
        """Send a message from the calling thread, if nothing is pending and nobody has to wait.

        No handler of a signal, which may raise anything, runs between the frames: they are sent by one call of C code.
        """
        if self._queued_bytes:
            return False
        with self.wire:
            if self.pieces or self.closed:
                return False
            if self.holds_next and self._held is None:
                self._held, self.holds_next = msg, False
                return True
            try:
                if self._held is not None:
                    send_frames(self._bare, self._held, NOBLOCK)
                    self._held = None
                send_frames(self._bare, msg, NOBLOCK)
            except zmq.Again:
                return False
            if self.tape is not None:
                self.tape.add(msg, self.text_bytes)
            self._mind_subscriptions()
            return True

    def _really_send(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        with self.wire:
            if self._held is not None:
                held, self._held = self._held, None
                super()._really_send(held)
            if self.tape is not None:
                self.tape.add(msg, self.text_bytes)
            super()._really_send(msg, *args, **kwargs)
            self._mind_subscriptions()

    def replay(self, tape: Tape, request: Any) -> None:
        """Send again what a cell published, after a word that it begins. Runs in this thread: what is new comes after it."""
        with self.wire:
            reply, metadata = tape.reply or (None, None)
            self.session.send(self, "kernelexec_tape", {"reply": reply, "metadata": metadata}, parent=request)
            for item in tape:
                if isinstance(item, Gap):
                    self.session.send(self, "kernelexec_gap", vars(item), parent=request)
                else:
                    super()._really_send(item)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Have a function called in this thread; one wake-up serves all that wait."""
        if not self.thread.is_alive():
            f()
            return
        self._events.append(f)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._handle_event, None)
            except RuntimeError:  # the process ends, and the loop was closed
                return
            except BaseException:  # of a signal's handler: the next call wakes it
                self._woken = False
                raise

    def _handle_event(self, msg: Any) -> None:
        self._woken = False
        super()._handle_event(msg)

    def _setup_event_pipe(self) -> None:
        """A loop can be woken without the sockets, one for each thread, that ipykernel has and looks after every 10 s."""
        io_loop: Any = self.io_loop
        self._loop: asyncio.AbstractEventLoop = io_loop.asyncio_loop

    async def _run_event_pipe_gc(self) -> None:
        """See above."""

    def _take_from_child(self, stream: str, parent: Any, text: str) -> None:
        if stream in self.streams:
            self.streams[stream].queue(self, parent, text, text.encode("utf-8", "backslashreplace"))

    def _setup_xpub_listener(self) -> None:
        self.io_loop.add_handler(self.socket, lambda *_: self._welcome(), self.io_loop.READ)

    def _mind_subscriptions(self) -> None:
        """Sending takes the sign that a subscription has come: look for one, or its welcome gets stuck."""
        if self.socket is not None and waiting(self.socket):
            self.schedule(self._welcome)

    def _welcome(self) -> None:
        """Greet new subscribers. Runs in this thread."""
        with self.wire:
            while self.socket is not None and waiting(self.socket):
                self._handle_subscription(self.socket.recv_multipart(zmq.NOBLOCK))

    def begin_piece(self, stream: Stream, parent: Any, text: str) -> None:
        """Text of another stream or cell than before. Call it with the lock."""
        self.last_stream, self.last_parent, self.last_texts = stream, parent, [text]
        self.pieces.append((stream, parent, self.last_texts))

    def flush_soon(self) -> None:
        """Have what is pending published in a moment. One that is begun serves all cells that print meanwhile."""
        if not self._armed:
            self.schedule(lambda: self.io_loop.call_later(_FLUSH_SECONDS, self._flush_armed))
            self._armed = True  # last, for a signal's handler may raise before

    def _flush_armed(self) -> None:
        self._armed = False
        self.flush_text()

    def flush_text(self) -> None:
        """Publish what is pending in one order: text of both streams, and messages between.

        Runs in this thread; between cells, where no signal's handler raises, in that of the cells too.
        """
        with self.wire:
            before = self.publishing
            try:
                with self.room:
                    self.publishing = threading.get_ident()  # said before nothing is pending any more
                    pieces, self.pieces, self.pending_chars, self.flushing = self.pieces, [], 0, False
                    self.last_stream = self.last_parent = None
                    self.room.notify_all()
                for stream, parent, texts in pieces:
                    with suppress(Exception):  # one message's fault must not cost the others
                        parent() if stream is None else stream.publish("".join(texts), parent)
            finally:
                self.publishing = before
