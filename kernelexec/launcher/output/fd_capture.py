"""Descriptors 1 and 2: output of C code and programs is captured under its cell."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .pipe_reader import PipeReader


class CapturedFd:
    """A descriptor with a pipe behind it, a new one whenever a cell leaves programs running.

    ``deliver`` gets the written text, with the header of the cell that has ended, or None for the running one.
    """

    def __init__(self, fd: int, pipes: PipeReader, deliver: Callable[[Any, str], Any]) -> None:
        self._fd = fd
        self._pipes = pipes
        self._deliver = deliver
        self._open_pipes: list[_Pipe] = []
        self._capture()

    def _capture(self) -> None:
        self._pipe = pipe = _Pipe()
        self._open_pipes.append(pipe)
        os.dup2(pipe.write_fd, self._fd)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(content: bytes) -> None:
            if text := decoder.decode(content, final=not content):
                self._deliver(pipe.parent, text)
            if not content:
                self._open_pipes.remove(pipe)

        self._pipes.add(pipe.read_fd, take)

    def rotate(self, parent: Any) -> None:
        """Open a new pipe, so that later output of running programs belongs to the cell that ends."""
        if self._read_inode() != self._pipe.inode:
            return  # the cell redirected the descriptor
        pipe = self._pipe
        pipe.parent = parent
        self._capture()
        self._pipes.stop_awaiting(pipe.read_fd)
        os.close(pipe.write_fd)

    def recapture(self) -> None:
        """Capture the descriptor again if a cell closed it or restored an earlier cell's pipe."""
        inode = self._read_inode()
        if inode != self._pipe.inode and (inode is None or any(inode == page.inode for page in list(self._open_pipes))):
            with suppress(OSError):
                os.dup2(self._pipe.write_fd, self._fd)

    def _read_inode(self) -> int | None:
        try:
            return os.fstat(self._fd).st_ino
        except OSError:
            return None


class _Pipe:
    """A pipe and the cell of its text: the running one for None."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.inode = os.fstat(self.read_fd).st_ino
        self.parent: Any = None
