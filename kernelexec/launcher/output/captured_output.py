"""Output past this process's own streams: from C code, programs and forked children."""

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

#: The longest wait of a cell for output on its way, in seconds.
DRAIN_SECONDS = 0.25
_READ_BYTES = 64 * 1024
#: As JSON, at most six bytes a character, a piece fits with its envelope into PIPE_BUF, 512 or more, so writes never mix.
_PIECE_CHARS = (getattr(select, "PIPE_BUF", 512) - 64) // 6
#: The least size of a piece from a full buffer of the C library or of Python. A program shows smaller pieces on purpose.
_BUFFER_BYTES = 4096
#: The time limit for a partial line, in seconds: shown on purpose, and cut by the end of the writer's buffer.
_PARTIAL_SECONDS, _CUT_SECONDS = 0.2, 5.0
#: The additional time while other output comes, in seconds.
_UNREAD_SECONDS = 1.0
#: The limit of children with their own pipes. Further children share the descriptor's pipe.
_CHILDREN_MAX = 64
_DISPLAYS = ("display_data", "execute_result", "update_display_data")


class Lines:
    """The text of a single writer in whole lines. Lines of other writers come between, never inside of a line.

    A partial line is passed on after ``_PARTIAL_SECONDS``, or after ``_CUT_SECONDS`` if the writer's buffer was full.
    """

    def __init__(self, deliver: Callable[[str], Any]) -> None:
        self._deliver = deliver
        self._rest = ""
        self.due: float | None = None
        """The time at which the partial line is passed on; None without a partial line."""

    def take(self, text: str, size_bytes: int) -> None:
        """Add a piece of text, read from ``size_bytes`` bytes, and pass on the whole lines."""
        lines, end, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        self.due = None
        if end:
            self._deliver(lines + end)
        if len(rest) >= _READ_BYTES:  # a hostile child may never end its line
            self.flush()
        elif rest:
            self.due = time.monotonic() + (_CUT_SECONDS if size_bytes >= _BUFFER_BYTES else _PARTIAL_SECONDS)

    def flush(self) -> None:
        """Pass on the partial line."""
        rest, self._rest, self.due = self._rest, "", None
        if rest:
            self._deliver(rest)


class CapturedFd:
    """A descriptor that leads to a pipe, and lends new pipes to children.

    ``deliver`` gets the written text. This process's own text is passed on as it comes, and a child's text in whole lines.
    """

    def __init__(self, fd: int, pipes: PipeReader, deliver: Callable[[str], Any]) -> None:
        self.fd = fd
        self._pipes = pipes
        self._deliver = deliver
        self._children: set[int] = set()
        read_fd, self._write_fd = os.pipe()
        self._inode = os.fstat(read_fd).st_ino  # of both ends of the pipe
        os.dup2(self._write_fd, fd)  # inheritable, unlike the ends of the pipe: programs write here
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
        """Lead the descriptor to a new pipe for a starting child. Return whether ``take_back`` must follow."""
        try:
            # Another inode: user code has redirected the descriptor, and the child must get this file.
            if os.fstat(self.fd).st_ino != self._inode or len(self._children) >= _CHILDREN_MAX:
                return False
            read_fd, write_fd = os.pipe()
        except OSError:
            return False
        # After ``take_back`` only the child and its heirs have this end, so the end of the pipe is the end of their output.
        os.dup2(write_fd, self.fd)
        os.close(write_fd)
        self._children.add(read_fd)
        self._add(read_fd, Lines(self._deliver))
        return True

    def take_back(self) -> None:
        """Lead the descriptor to this process's own pipe again."""
        with suppress(OSError):
            os.dup2(self._write_fd, self.fd)

    def end_cell(self) -> None:
        """Stop waiting for the output of children that outlive the cell."""
        for read_fd in list(self._children):
            self._pipes.stop_awaiting(read_fd)


class PipeReader:
    """A thread that reads pipes. ``drain`` waits until all earlier output has been read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        # A second set, of awaited pipes only, which any thread may poll.
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else None
        self._awaited: set[int] = set()
        self._idle = threading.Condition()
        self._reading = False
        """Whether the thread has awaited output in hand. Set before the read, so no moment shows neither this nor the pipe."""
        self._in_round, self._rounds = False, 0
        """Whether the thread has any output in hand, and the number of rounds over all ready pipes."""
        self._taken_bytes = 0
        self._lines: dict[int, Lines] = {}
        self._forked: dict[tuple[int, str], Lines] = {}
        self.lock = threading.RLock()
        """Held while a line is passed on."""
        self._thread = threading.Thread(target=self._run, name="pipes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the descriptors in a copy of this process, which lacks the thread."""
        self._selector.close()
        if self._epoll is not None:
            self._epoll.close()

    def add(self, fd: int, take: Callable[[bytes], Any], lines: Lines | None = None) -> None:
        """Read a pipe until the last writer has closed the pipe. At the end ``take`` gets ``b""``.

        The thread passes on the partial line of ``lines`` when the time has come.
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
        """Exclude a pipe from ``drain``; the thread still reads the pipe."""
        with self._idle:
            self._awaited.discard(fd)
            with suppress(OSError, ValueError):
                if self._epoll is not None:
                    self._epoll.unregister(fd)

    @property
    def has_output(self) -> bool:
        """Whether output waits in a pipe. Every print asks, so the answer takes a single system call."""
        return self._is_pending() or bool(self._forked)

    def _is_pending(self) -> bool:
        """Return whether output is unread, or read but not passed on yet. The order of the two questions is the reader's."""
        return self._is_unread() or self._reading

    def _is_unread(self) -> bool:
        try:
            return self._epoll is not None and bool(self._epoll.poll(0))
        except (OSError, ValueError):  # user code closed the descriptor
            return False

    def drain(self, seconds: float) -> None:
        """Wait for at most ``seconds`` until all earlier output has been read, and ended children's output passed on."""
        deadline = time.monotonic() + seconds
        with self._idle:
            # A child that writes on must not hold this thread. One read more, for bytes in hand that are not counted yet.
            enough = self._taken_bytes + sum(map(platform.unread_bytes, self._awaited)) + _READ_BYTES
            while self._is_pending() and self._taken_bytes < enough and self._thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0 or not self._idle.wait(left):
                    break
        if self._forked and not self._is_unread():
            self._pass_on_forked()

    def read_left(self, seconds: float) -> None:
        """Wait for at most ``seconds`` until the present output of earlier cells' children has been passed on.

        A round takes the whole content of a pipe, so later output of the children is not awaited.
        """
        deadline = time.monotonic() + seconds
        with self._idle:
            fds, begun = {key.fd for key in self._selector.get_map().values()} - self._awaited, self._rounds
            # Two rounds: the first may have begun before the output was written.
            while (any(platform.unread_bytes(fd) for fd in fds) or self._in_round) and self._rounds < begun + 2:
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive() or not self._idle.wait(left):
                    break

    def find_lines(self, pid: int, stream: str, deliver: Callable[[str, str], Any]) -> Lines:
        """Return the partial line of a forked child in a stream, or a new ``Lines``."""
        return self._forked.get((pid, stream)) or Lines(partial(deliver, stream))

    def keep_lines(self, pid: int, stream: str, lines: Lines) -> None:
        """Keep a partial line of a forked child, and forget a complete line."""
        if lines.due is None:
            self._forked.pop((pid, stream), None)
        else:
            self._forked[pid, stream] = lines

    def end_cell(self) -> None:
        """Pass on partial lines shown on purpose."""
        now = time.monotonic()
        # With unread output the rest of a line may be in the pipe: the thread passes such a line on later.
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
                # Awaited pipes first: a cell may wait for them.
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
        """Pass on overdue partial lines. Return the seconds until the next is due, or None without partial lines."""
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

    A child has no other thread of the parent, and must not take locks, which such a thread may have held at the fork. So a
    child only writes lines of JSON into a pipe: process id, stream name and text. ``deliver`` gets whole lines of a child.
    """

    def __init__(self, pipes: PipeReader, deliver: Callable[[str, str], Any]) -> None:
        out, self._in = os.pipe()
        self._deliver = deliver
        self._pipes = pipes
        self._rest = b""
        pipes.add(out, self._take)

    def write(self, stream: str, text: str) -> None:
        """Write text. Called in a child."""
        # The system writes up to PIPE_BUF bytes as a whole, so lines of children that write at once do not mix.
        for start in range(0, len(text), _PIECE_CHARS):
            line = json.dumps([os.getpid(), stream, text[start : start + _PIECE_CHARS]], ensure_ascii=False) + "\n"
            with suppress(OSError):
                os.write(self._in, line.encode("utf-8", "backslashreplace"))

    def write_message(self, frames: list[bytes]) -> None:
        """Write an exception or display as text, since a child cannot send messages. Called in a child."""
        # Frames: topic, delimiter, signature, header, parent header, metadata, content.
        header, _, _, content = map(json.loads, frames[(start := frames.index(DELIMITER) + 2) : start + 4])
        if header["msg_type"] == "error":
            self.write("stderr", "\n".join(content["traceback"]) + "\n")
        elif header["msg_type"] in _DISPLAYS:
            self.write("stdout", content["data"].get("text/plain", "") + "\n")

    def _take(self, received: bytes) -> None:
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError):  # a cell can write anything into the pipe
                pid, stream, text = json.loads(line)
                kept = self._pipes.find_lines(pid, stream, self._deliver)
                kept.take(text, len(text))
                self._pipes.keep_lines(pid, stream, kept)
