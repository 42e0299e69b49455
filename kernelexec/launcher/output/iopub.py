"""The iopub thread, which publishes streams and other messages without losing messages or growing queues without bound.

ipykernel publishes from unbounded queues on a socket that drops messages for a slow reader. Here the socket blocks instead,
queues are bounded and a fast writer waits: a flooding cell runs at the reader's speed. A thread sends its own message at once
if no other message is pending, past pyzmq's layers, which take five times as long. Text keeps its order and its cell, and is
bounded.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import zmq
from ipykernel.iostream import IOPubThread
from ipykernel.thread import CONTROL_THREAD_NAME

from .. import owner
from ..protocol import REPLAY_BEGIN, REPLAY_GAP
from .captured_output import ForkedOutput, PipeReader
from .kept_output import CrashBuffer, Gap, PublishedMessages

if TYPE_CHECKING:
    from .streams import OutputStream

SENDING_MAX = 64  # messages that libzmq holds: a longer queue delays an interrupt
_QUEUE_BYTES = 8 * 1024 * 1024
_MESSAGE_BYTES = 4096  # the cost of a small message in the queue
_FLUSH_SECONDS = 0.2
#: As integers: an operation on zmq's enums costs 2 µs.
_EVENTS, _READABLE, _MORE, NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.SNDMORE), int(zmq.NOBLOCK)
_TASKS = "/proc/self/task"
_IO_THREAD_NAME = "ZMQbg/IO"
_AT_REST = b"S"
_PATIENCE_SECONDS, _LOOK_SECONDS = 0.25, 0.0002
#: Seconds of a pause, and between two pauses, where the system does not show the state of threads.
_PAUSE_SECONDS, _REST_SECONDS = 0.003, 0.05


class Publisher(IOPubThread):
    """ipykernel's iopub thread with a bounded queue. The control thread never waits, since interrupts must get through.

    The holder of ``socket_lock`` may use the socket. ``socket_lock`` is taken before ``lock``.
    """

    def __init__(self, socket: Any, pipe: bool = False, session: Any = False) -> None:  # noqa: FBT001, FBT002 - ipykernel's
        self.socket_lock = threading.RLock()
        self.lock = threading.RLock()  # re-entrant: a signal handler may print while its thread holds the lock
        self.queue_condition = threading.Condition(self.lock)
        self.pieces: list[tuple[OutputStream | None, Any, list[str]]] = []  # text, and calls that send other messages
        self.last_stream: OutputStream | None = None
        self.last_parent: Any = None
        self.last_texts: list[str] = []
        self.pending_chars = 0
        self.flushing = False
        self.publishing: int | None = None
        """The thread that publishes the pending messages, if any."""
        self.between_cells = True
        """Whether no cell runs, so no signal handler raises in the main thread."""
        self.holds_next_message = False
        """Whether the next message waits for the following message, so the reader wakes up once for both."""
        self._held_message: list[Any] | None = None
        self.crash_buffer = CrashBuffer(None)
        self.io_threads = IOThreads()
        self.published: PublishedMessages | None = None
        self.text_bytes = 0
        self.streams: dict[str, OutputStream] = {}
        self.pipes = PipeReader()
        self.forked_output = ForkedOutput(self.pipes, self._take_from_child)
        self._queued_bytes = 0
        self._is_woken = self._is_armed = False
        self._main = threading.main_thread().ident
        self._bare: Any = super(zmq.Socket, socket) if isinstance(socket, zmq.Socket) else socket
        super().__init__(socket, pipe=pipe, session=session)

    def leave(self) -> None:
        """Close all resources except the event loop, in a copy of this process."""
        self.pipes.close()
        self.crash_buffer.close()

    def resume(self, socket: Any) -> None:
        """Publish on another socket, in a copy of this process without its threads."""
        atexit.unregister(self.stop)
        background_socket = self.background_socket  # the same object: ipykernel's displays refer to it
        self.__init__(socket, session=self.session)  # type: ignore[misc]  # its locks and its loop are the other process's
        self.background_socket = background_socket
        self.start()

    @property
    def may_block(self) -> bool:
        """Whether the calling thread may wait for this thread."""
        current = threading.current_thread()
        return self.thread.is_alive() and current is not self.thread and current.name != CONTROL_THREAD_NAME

    @property
    def publishes_here(self) -> bool:
        """Whether the calling thread publishes the pending messages."""
        return self.publishing == threading.get_ident()

    def send_multipart(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Send a message, or queue the message behind pending messages. Wait while the queue is full."""
        if owner.is_forked_child:  # none of the locks may be taken in a child
            with suppress(ValueError, LookupError, TypeError):
                self.forked_output.write_message(list(map(bytes, msg)))
            return
        if not self.publishes_here and (threading.get_ident() == self._main or self.may_block):
            if kwargs.get("copy", True) and self._send_now(msg):
                return
        elif threading.current_thread().name != CONTROL_THREAD_NAME:
            self._really_send(msg, *args, **kwargs)
            return
        # Also all messages of the control thread: a thread that holds the socket may wait for a slow reader.
        self._queue(msg, *args, **kwargs)

    def _queue(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        size = _MESSAGE_BYTES + sum(len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in msg)

        def send() -> None:
            try:
                self._really_send(msg, *args, **kwargs)
            finally:
                with self.queue_condition:
                    self._queued_bytes -= size
                    self.queue_condition.notify_all()

        with self.queue_condition:
            # An empty queue takes a message of any size, which could otherwise never be sent.
            while self._queued_bytes and self._queued_bytes + size > _QUEUE_BYTES and self.may_block:
                self.queue_condition.wait()
            self._queued_bytes += size
            self.last_stream = self.last_parent = None
            self.pieces.append((None, send, []))
        self.schedule(self.flush_text)

    def _send_now(self, msg: list[Any]) -> bool:
        """Send a message from the calling thread if no message is pending and the socket has room. Return the success.

        A single call of C code sends all frames, so no signal handler, which may raise, runs between them.
        """
        if self._queued_bytes:
            return False
        with self.socket_lock:
            if self.pieces or self.closed:
                return False
            if self.holds_next_message and self._held_message is None:
                self._held_message, self.holds_next_message = msg, False
                return True
            # The held message first. If only this one has room, the new message is queued, and the order stays.
            try:
                if self._held_message is not None:
                    send_frames(self._bare, self._held_message, NOBLOCK)
                    self._held_message = None
                send_frames(self._bare, msg, NOBLOCK)
            except zmq.Again:
                return False
            if self.published is not None:
                self.published.add(msg, self.text_bytes)
            self._check_subscriptions()
            return True

    def _really_send(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        with self.socket_lock:
            if self._held_message is not None:
                message, self._held_message = self._held_message, None
                super()._really_send(message)
            if self.published is not None:
                self.published.add(msg, self.text_bytes)
            super()._really_send(msg, *args, **kwargs)
            self._check_subscriptions()

    def find_messages(self, msg_id: Any) -> PublishedMessages | None:
        """Return the kept messages of a cell, or None if the cell is not the newest."""
        return self.published if self.published is not None and self.published.msg_id == msg_id else None

    def replay(self, messages: PublishedMessages, request: Any) -> None:
        """Send the kept messages of a cell behind ``REPLAY_BEGIN``. Runs in this thread, so new messages come later."""
        with self.socket_lock:
            reply, metadata = messages.reply or (None, None)
            self.session.send(self, REPLAY_BEGIN, {"reply": reply, "metadata": metadata}, parent=request)
            for item in messages:
                if isinstance(item, Gap):
                    self.session.send(self, REPLAY_GAP, vars(item), parent=request)
                else:
                    super()._really_send(item)

    def schedule(self, f: Callable[[], Any]) -> None:
        """Call a function in this thread. A single wake-up serves all waiting calls."""
        if not self.thread.is_alive():
            f()
            return
        # Appended first: a thread that has just cleared the flag finds the call, and a later wake-up finds nothing to do.
        self._events.append(f)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._handle_event, None)
            except RuntimeError:  # the process ends, and the loop was closed
                return
            except BaseException:  # from a signal handler: the next call wakes the thread
                self._is_woken = False
                raise

    def _handle_event(self, msg: Any) -> None:
        self._is_woken = False
        super()._handle_event(msg)

    def _setup_event_pipe(self) -> None:
        """Leave out ipykernel's sockets, one for each thread, for waking up the loop. asyncio wakes the loop itself."""
        io_loop: Any = self.io_loop
        self._loop: asyncio.AbstractEventLoop = io_loop.asyncio_loop

    async def _run_event_pipe_gc(self) -> None:
        """Do nothing: there are no sockets of ended threads."""

    def _take_from_child(self, stream: str, text: str) -> None:
        if stream in self.streams:
            self.streams[stream].take(text)

    def _setup_xpub_listener(self) -> None:
        self.io_loop.add_handler(self.socket, lambda *_: self._welcome(), self.io_loop.READ)

    def _check_subscriptions(self) -> None:
        """Look for a subscription after sending. Sending clears the socket's event, so the welcome would be late."""
        if self.socket is not None and has_message(self.socket):
            self.schedule(self._welcome)

    def _welcome(self) -> None:
        """Welcome new subscribers. Runs in this thread."""
        with self.socket_lock:
            while self.socket is not None and has_message(self.socket):
                self._handle_subscription(self.socket.recv_multipart(zmq.NOBLOCK))

    def begin_piece(self, stream: OutputStream, parent: Any, text: str) -> None:
        """Start text of another stream or cell. Call this with the lock."""
        self.last_stream, self.last_parent, self.last_texts = stream, parent, [text]
        self.pieces.append((stream, parent, self.last_texts))

    def flush_soon(self) -> None:
        """Publish pending messages within ``_FLUSH_SECONDS``. A single timer serves all prints meanwhile."""
        if not self._is_armed:
            self.schedule(lambda: self.io_loop.call_later(_FLUSH_SECONDS, self._flush_armed))
            self._is_armed = True  # last, since a signal handler may raise before

    def _flush_armed(self) -> None:
        self._is_armed = False
        self.flush_text()

    def flush_text(self) -> None:
        """Publish the pending text of both streams and other messages, in order.

        Runs in this thread. Between cells, when no signal handler raises, it runs in the main thread too.
        """
        with self.socket_lock:
            before = self.publishing
            try:
                with self.queue_condition:
                    # Set while messages are still pending: ``OutputStream.flush`` must see the one or the other.
                    self.publishing = threading.get_ident()
                    pieces, self.pieces, self.pending_chars, self.flushing = self.pieces, [], 0, False
                    self.last_stream = self.last_parent = None
                    self.queue_condition.notify_all()
                for stream, parent, texts in pieces:
                    with suppress(Exception):  # one message's fault must not cost the others
                        parent() if stream is None else stream.publish("".join(texts), parent)
            finally:
                self.publishing = before


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message has arrived. The question clears the socket's event, so the message must be read now."""
    bare: Any = super(zmq.Socket, socket)  # pyzmq's own layer takes five times as long
    return bool(bare.get(_EVENTS) & _READABLE)


def send_frames(bare: Any, frames: list[Any], flags: int = 0) -> None:
    """Send the frames of a message in a single call of C code, without a signal handler in between, which may raise."""
    # Half a message would be continued by the first frame of the next. ``deque`` drives ``map`` without Python code.
    deque(map(bare.send, frames, [flags | _MORE] * (len(frames) - 1) + [flags]), maxlen=0)


class IOThreads:
    """libzmq's I/O threads. Sending a message wakes up a thread, which sleeps once the system has the message."""

    def __init__(self, tasks: str = _TASKS) -> None:
        self._tasks = Path(tasks)
        self._threads: list[str] = []
        self._paused = 0.0

    def wait(self) -> None:
        """Wait, for a bounded time, until the system has all messages."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while (states := self._states()) and any(state != _AT_REST for state in states) and monotonic() < deadline:
            sleep(_LOOK_SECONDS)
        if not states and monotonic() - self._paused > _REST_SECONDS:
            sleep(_PAUSE_SECONDS)
            self._paused = monotonic()

    def _states(self) -> list[bytes]:
        """Return the state of each thread, or nothing on a system that does not show states."""
        try:
            if self._threads:
                return [_state(path) for path in self._threads]
        except (OSError, IndexError):  # the threads of the process that forked this one
            self._threads = []
        with suppress(OSError, IndexError):
            threads = [str(task) for task in self._tasks.iterdir() if (task / "comm").read_text().startswith(_IO_THREAD_NAME)]
            self._threads = threads
            return [_state(path) for path in threads]
        return []


def _state(task: str) -> bytes:
    with open(f"{task}/stat", "rb") as file:  # noqa: PTH123 - in every flush
        return file.read().rpartition(b")")[2].split(None, 1)[0]
