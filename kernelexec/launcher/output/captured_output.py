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
from typing import Any

from .. import platform
from ..protocol import DELIMITER

_READ_BYTES = 64 * 1024
_PIECE_CHARS = 400  # as JSON, at most six bytes a character, it fits into PIPE_BUF with its envelope, so writes never mix
_DISPLAYS = ("display_data", "execute_result", "update_display_data")


class CapturedFd:
    """A descriptor with a pipe behind it. ``deliver`` gets the written text."""

    def __init__(self, fd: int, pipes: PipeReader, deliver: Callable[[str], Any]) -> None:
        self._fd = fd
        read_fd, self._write_fd = os.pipe()
        os.dup2(self._write_fd, fd)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(content: bytes) -> None:
            if text := decoder.decode(content, final=not content):
                deliver(text)

        pipes.add(read_fd, take)

    def recapture(self) -> None:
        """Capture the descriptor again if a cell closed it."""
        try:
            os.fstat(self._fd)
        except OSError:
            with suppress(OSError):
                os.dup2(self._write_fd, self._fd)


class PipeReader:
    """A thread that reads pipes; ``drain`` waits until all earlier output has been read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else None  # many threads may poll it at once
        self._awaited: set[int] = set()
        self._idle = threading.Condition()
        self._reading = False
        self._taken_bytes = 0
        self._thread = threading.Thread(target=self._run, name="pipes", daemon=True)
        self._thread.start()

    def add(self, fd: int, take: Callable[[bytes], Any]) -> None:
        """Read a pipe until its last writer has closed it; at the end ``take`` gets ``b""``."""
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
        if self._reading:
            return True
        try:
            return self._epoll is not None and bool(self._epoll.poll(0))
        except (OSError, ValueError):  # user code closed the descriptor
            return False

    def drain(self, seconds: float) -> None:
        """Wait, for a bounded time, until all output before this call has been read."""
        deadline = time.monotonic() + seconds
        with self._idle:
            if not self.has_output:
                return
            enough = self._taken_bytes + sum(map(platform.unread_bytes, self._awaited)) + _READ_BYTES
            while self.has_output and self._taken_bytes < enough and self._thread.is_alive():
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._idle.wait(left)

    def _run(self) -> None:
        while True:
            try:
                ready = [(key.fd, key.data) for key, _ in self._selector.select()]
            except (OSError, ValueError):
                return
            self._reading = any(fd in self._awaited for fd, _ in ready)
            try:
                for fd, take in sorted(ready, key=lambda item: item[0] not in self._awaited):
                    self._read(fd, take)
            finally:
                with self._idle:
                    self._reading = False
                    self._idle.notify_all()

    def _read(self, fd: int, take: Callable[[bytes], Any]) -> None:
        try:
            received = os.read(fd, _READ_BYTES)
        except OSError:
            received = b""
        with suppress(Exception):  # one reader's fault must not stop the others
            take(received)
        with self._idle:
            self._taken_bytes += len(received) * (fd in self._awaited)
            self._idle.notify_all()
        if not received:
            self._remove(fd)

    def _remove(self, fd: int) -> None:
        self.stop_awaiting(fd)
        with self._idle, suppress(OSError, ValueError, KeyError):
            self._selector.unregister(fd)
            os.close(fd)


class ForkedOutput:
    """Output of forked children.

    A child has none of its parent's threads and must take none of its locks, which may be held for ever there. So it only
    writes lines of JSON into a pipe: the stream's name, and the text.
    """

    def __init__(self, pipes: PipeReader, deliver: Callable[[str, str], Any]) -> None:
        out, self._in = os.pipe()
        self._deliver = deliver
        self._rest = b""
        pipes.add(out, self._take)

    def write(self, stream: str, text: str) -> None:
        """Write text; called in a child."""
        for start in range(0, len(text), _PIECE_CHARS):
            line = json.dumps([stream, text[start : start + _PIECE_CHARS]], ensure_ascii=False) + "\n"
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
                stream, text = json.loads(line)
                self._deliver(stream, text)
