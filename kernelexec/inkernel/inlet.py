"""Ways in for output that is not written through this process's own streams: by C code, by programs, by forked children."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_READ_BYTES = 64 * 1024
_PIECE_CHARS = 400  # as JSON, with its envelope, a piece fits into PIPE_BUF: pieces of many writers never mix


class Inlet:
    """Reads a pipe in a thread of its own; whoever waits can know that all which was written has been read."""

    def __init__(self, fd: int, deliver: Callable[[bytes], Any]) -> None:
        self._fd = fd
        self._deliver = deliver
        self._idle = threading.Condition()
        self._reading = False
        self.open = True

    def run(self) -> None:
        """Read until the pipe ends or is closed."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while self.open:
            poller.poll()
            with self._idle:
                self._reading = True
            try:
                found = os.read(self._fd, _READ_BYTES)
                if not found:
                    return
                if self.open:
                    self._deliver(found)
            except (OSError, ValueError):
                return
            finally:
                with self._idle:
                    self._reading = False
                    self._idle.notify_all()

    def drain(self, seconds: float) -> None:
        """Wait, for a bounded time, until all that was written has been read."""
        deadline = time.monotonic() + seconds
        with self._idle:
            while self.open and (self._reading or _unread(self._fd)) and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)


class Children:
    """What forked children write to the streams, under the cell that forked them.

    A child has none of its parent's threads and must take none of its locks, which may be held for ever there. So it only
    writes lines of JSON into a pipe: the stream's name, the header of the cell, the text.
    """

    def __init__(self, deliver: Callable[[str, Any, str], Any]) -> None:
        self._out, self._in = os.pipe()
        self._deliver = deliver
        self._rest = b""
        self.inlet = Inlet(self._out, self._take)
        threading.Thread(target=self.inlet.run, name="children", daemon=True).start()

    def write(self, stream: str, parent: Any, text: str) -> None:
        """Called in a child."""
        header = {name: parent[name] for name in ("msg_id", "session", "msg_type", "version") if name in parent}
        for start in range(0, len(text), _PIECE_CHARS):
            line = json.dumps([stream, header, text[start : start + _PIECE_CHARS]]) + "\n"
            with suppress(OSError):
                os.write(self._in, line.encode())

    def _take(self, found: bytes) -> None:
        *lines, self._rest = (self._rest + found).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError):
                stream, parent, text = json.loads(line)
                self._deliver(stream, parent, text)


def _unread(fd: int) -> int:
    try:
        count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
    return count
