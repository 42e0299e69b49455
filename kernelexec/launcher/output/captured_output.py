"""Output that does not pass through this process's own streams: of C code, programs and forked children."""

from __future__ import annotations

import codecs
import json
import os
import select
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from .. import platform
from ..processes import proc
from ..protocol import DELIMITER

#: How long a cell waits for output that is on its way, in seconds.
DRAIN_SECONDS = 0.25
_READ_BYTES = 64 * 1024
_PIECE_CHARS = 400  # as JSON, at most six bytes a character, it fits into PIPE_BUF with its envelope, so writes never mix
#: The size of a piece that a full buffer of the C library or of Python leaves; smaller pieces were written at once.
_BUFFER_BYTES = 4096
#: How long a partial line is held, in seconds: one that its writer shows, and one that its writer's buffer has cut.
_PARTIAL_SECONDS, _CUT_SECONDS = 0.2, 5.0
#: How much longer it is held while other output comes, in seconds.
_UNREAD_SECONDS = 1.0
#: The limit of children with pipes of their own; further ones share one.
_CHILDREN_MAX = 64
_DISPLAYS = ("display_data", "execute_result", "update_display_data")


class Lines:
    """The text of one writer, passed on in whole lines: lines of others come between them and not into them.

    A line without an end is passed on after ``_PARTIAL_SECONDS``; after a longer time if its writer's buffer was full.
    """

    def __init__(self, deliver: Callable[[str], Any]) -> None:
        self._deliver = deliver
        self._rest = ""
        self.due: float | None = None
        """The time at which the partial line is passed on; None without one."""

    def take(self, text: str, size_bytes: int) -> None:
        """Pass on the whole lines of text that came in one piece of that size."""
        lines, end, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        self.due = None
        if end:
            self._deliver(lines + end)
        if len(rest) >= _READ_BYTES:
            self.flush()
        elif rest:
            self.due = time.monotonic() + (_CUT_SECONDS if size_bytes >= _BUFFER_BYTES else _PARTIAL_SECONDS)

    def flush(self) -> None:
        """Pass on the partial line."""
        rest, self._rest, self.due = self._rest, "", None
        if rest:
            self._deliver(rest)


class CapturedFd:
    """A descriptor with a pipe behind it, and with pipes of their own for children that write at once.

    ``deliver`` gets the written text. This process's own text is passed on as it comes, that of a child in whole lines.
    """

    def __init__(self, fd: int, pipes: PipeReader, deliver: Callable[[str], Any]) -> None:
        self.fd = fd
        self._pipes = pipes
        self._deliver = deliver
        self._children: set[int] = set()
        read_fd, self._write_fd = os.pipe()
        self._inode = os.fstat(read_fd).st_ino
        os.dup2(self._write_fd, fd)
        self._add(read_fd, None)

    def _add(self, read_fd: int, lines: Lines | None) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(content: bytes) -> None:
            text = decoder.decode(content, final=not content)
            if lines is None:
                if text:
                    self._deliver(text)
                return
            if text:
                lines.take(text, len(content))
            if not content:
                lines.flush()
                self._children.discard(read_fd)

        self._pipes.add(read_fd, take, lines)

    def recapture(self) -> None:
        """Capture the descriptor again if a cell closed it."""
        try:
            os.fstat(self.fd)
        except OSError:
            self.take_back()

    def lend(self) -> bool:
        """Put a new pipe behind the descriptor for a child that starts now; return whether ``take_back`` has to follow."""
        try:
            if os.fstat(self.fd).st_ino != self._inode or len(self._children) >= _CHILDREN_MAX:
                return False
            read_fd, write_fd = os.pipe()
        except OSError:
            return False
        os.dup2(write_fd, self.fd)
        os.close(write_fd)
        self._children.add(read_fd)
        self._add(read_fd, Lines(self._deliver))
        return True

    def take_back(self) -> None:
        """Put this process's own pipe behind the descriptor again."""
        with suppress(OSError):
            os.dup2(self._write_fd, self.fd)

    def end_cell(self) -> None:
        """Do not wait any more for output of children that go on."""
        for read_fd in list(self._children):
            self._pipes.stop_awaiting(read_fd)


class PipeReader:
    """A thread that reads pipes; ``drain`` waits until all earlier output has been read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else None  # many threads may poll it at once
        self._awaited: set[int] = set()
        self._idle = threading.Condition()
        self._reading = False
        """Whether awaited output is read and not passed on yet."""
        self._in_round, self._rounds = False, 0
        """The same of any output, and how often all ready pipes were read."""
        self._taken_bytes = 0
        self._lines: dict[int, Lines] = {}
        self._forked: dict[tuple[int, str], Lines] = {}
        self.lock = threading.RLock()
        """Held while a line is passed on."""
        self._thread = threading.Thread(target=self._run, name="pipes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the descriptors in a copy of this process, where the thread is not."""
        self._selector.close()
        if self._epoll is not None:
            self._epoll.close()

    def add(self, fd: int, take: Callable[[bytes], Any], lines: Lines | None = None) -> None:
        """Read a pipe until its last writer has closed it; at the end ``take`` gets ``b""``.

        The thread passes on the partial line of ``lines`` when it is due.
        """
        if lines is not None:
            with self.lock:
                self._lines[fd] = lines
        with self._idle:
            self._selector.register(fd, selectors.EVENT_READ, take)
            self._awaited.add(fd)
            if self._epoll is not None:
                self._epoll.register(fd, select.EPOLLIN)

    def stop_awaiting(self, fd: int) -> None:
        """Go on reading a pipe, but leave it out of ``drain``."""
        with self._idle:
            self._awaited.discard(fd)
            with suppress(OSError, ValueError):
                if self._epoll is not None:
                    self._epoll.unregister(fd)

    @property
    def has_output(self) -> bool:
        """Return whether output waits in a pipe. It costs one system call, since every print asks."""
        return self._is_pending() or bool(self._forked)

    def _is_pending(self) -> bool:
        """Return whether output is unread, or read and not passed on yet: asked in this order, which is the reader's own."""
        return self._is_unread() or self._reading

    def _is_unread(self) -> bool:
        try:
            return self._epoll is not None and bool(self._epoll.poll(0))
        except (OSError, ValueError):  # user code closed the descriptor
            return False

    def drain(self, seconds: float) -> None:
        """Wait, for a bounded time, until all output before this call has been read, and all of ended children passed on."""
        deadline = time.monotonic() + seconds
        with self._idle:
            enough = self._taken_bytes + sum(map(platform.unread_bytes, self._awaited)) + _READ_BYTES
            while self._is_pending() and self._taken_bytes < enough and self._thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0 or not self._idle.wait(left):
                    break
        if self._forked and not self._is_unread():
            self._pass_on_forked()

    def read_left(self, seconds: float) -> None:
        """Wait, for a bounded time, until what children of earlier cells have written by now is passed on.

        A round takes all that a pipe holds, so children that write on are not waited for.
        """
        deadline = time.monotonic() + seconds
        with self._idle:
            fds, begun = {key.fd for key in self._selector.get_map().values()} - self._awaited, self._rounds
            while (any(platform.unread_bytes(fd) for fd in fds) or self._in_round) and self._rounds < begun + 2:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive() or not self._idle.wait(left):
                    break

    def find_lines(self, pid: int, stream: str, deliver: Callable[[str, str], Any]) -> Lines:
        """Return the partial line of a forked child in one stream, or a new one."""
        return self._forked.get((pid, stream)) or Lines(partial(deliver, stream))

    def keep_lines(self, pid: int, stream: str, lines: Lines) -> None:
        """Keep the line of a forked child while it is partial."""
        if lines.due is None:
            self._forked.pop((pid, stream), None)
        else:
            self._forked[pid, stream] = lines

    def end_cell(self) -> None:
        """Pass on the partial lines that their writers show."""
        now = time.monotonic()
        with self.lock:
            for lines in () if self._is_unread() else (*self._lines.values(), *self._forked.values()):
                if lines.due is not None and lines.due <= now + _PARTIAL_SECONDS:
                    lines.flush()

    def _pass_on_forked(self) -> None:
        """Pass on the partial lines of forked children that have ended."""
        with self.lock:
            for (pid, stream), lines in list(self._forked.items()):
                status = proc.read_status(pid)
                if status is None or status.has_ended:
                    lines.flush()
                    self._forked.pop((pid, stream), None)

    def _run(self) -> None:
        seconds: float | None = None
        while True:
            try:
                ready = [(key.fd, key.data) for key, _ in self._selector.select(seconds)]
            except (OSError, ValueError):
                return
            self._in_round, self._reading = bool(ready), any(fd in self._awaited for fd, _ in ready)
            try:
                for fd, take in sorted(ready, key=lambda item: item[0] not in self._awaited):
                    self._read(fd, take)
            finally:
                with self._idle:
                    self._in_round = self._reading = False
                    self._rounds += 1
                    self._idle.notify_all()
            seconds = None
            if self._lines or self._forked:  # while other output is unread, the rest of a line may be too
                seconds = self._pass_on_partial_lines(_UNREAD_SECONDS if ready else 0.0)

    def _pass_on_partial_lines(self, patience_seconds: float) -> float | None:
        """Pass on the partial lines that are due for longer; return the seconds until the next is due, None without one."""
        with self.lock:
            now = time.monotonic()
            for lines in (*self._lines.values(), *self._forked.values()):
                if lines.due is not None and lines.due + patience_seconds <= now:
                    with suppress(Exception):  # as below
                        lines.flush()
            self._forked = {key: lines for key, lines in self._forked.items() if lines.due is not None}
            due = [lines.due for lines in (*self._lines.values(), *self._forked.values()) if lines.due is not None]
            return max(min(due) - now, 0.0) if due else None

    def _read(self, fd: int, take: Callable[[bytes], Any]) -> None:
        try:
            received = os.read(fd, _READ_BYTES)
        except OSError:
            received = b""
        with self.lock, suppress(Exception):  # one reader's fault must not stop the others
            take(received)
        with self._idle:
            self._taken_bytes += len(received) * (fd in self._awaited)
            self._idle.notify_all()
        if not received:
            self._remove(fd)

    def _remove(self, fd: int) -> None:
        self.stop_awaiting(fd)
        with self.lock:
            self._lines.pop(fd, None)
        with self._idle, suppress(OSError, ValueError, KeyError):
            self._selector.unregister(fd)
            os.close(fd)


class ForkedOutput:
    """Output of forked children.

    A child has none of its parent's threads and must take none of its locks, which may be held for ever there. So it only
    writes lines of JSON into a pipe: its process id, the stream's name, and the text. ``deliver`` gets whole lines of a child.
    """

    def __init__(self, pipes: PipeReader, deliver: Callable[[str, str], Any]) -> None:
        out, self._in = os.pipe()
        self._deliver = deliver
        self._pipes = pipes
        self._rest = b""
        pipes.add(out, self._take)

    def write(self, stream: str, text: str) -> None:
        """Write text; called in a child."""
        for start in range(0, len(text), _PIECE_CHARS):
            line = json.dumps([os.getpid(), stream, text[start : start + _PIECE_CHARS]], ensure_ascii=False) + "\n"
            with suppress(OSError):
                os.write(self._in, line.encode("utf-8", "backslashreplace"))

    def write_message(self, frames: list[bytes]) -> None:
        """Write an exception or display as text, since a child cannot send messages; called in a child."""
        header, _, _, content = map(json.loads, frames[(start := frames.index(DELIMITER) + 2) : start + 4])
        if header["msg_type"] == "error":
            self.write("stderr", "\n".join(content["traceback"]) + "\n")
        elif header["msg_type"] in _DISPLAYS:
            self.write("stdout", content["data"].get("text/plain", "") + "\n")

    def _take(self, received: bytes) -> None:
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError):
                pid, stream, text = json.loads(line)
                kept = self._pipes.find_lines(pid, stream, self._deliver)
                kept.take(text, len(text))
                self._pipes.keep_lines(pid, stream, kept)
