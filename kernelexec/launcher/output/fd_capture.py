"""Descriptors 1 and 2: output of C code and programs is captured under its cell."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .pipe_reader import PipeReader


class CapturedFd:
    """A descriptor with a pipe of ours behind it, a new one whenever a cell leaves programs behind.

    ``deliver`` gets what was written as text, with the header of the cell that has ended, or None for the running one.
    """

    def __init__(self, fd: int, pipes: PipeReader, deliver: Callable[[Any, str], Any]) -> None:
        self._fd = fd
        self._pipes = pipes
        self._deliver = deliver
        self._pages: list[_Pipe] = []
        self._capture()

    def _capture(self) -> None:
        self._page = page = _Pipe()
        self._pages.append(page)
        os.dup2(page.into, self._fd)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(content: bytes) -> None:
            if text := decoder.decode(content, final=not content):
                self._deliver(page.parent, text)
            if not content:
                self._pages.remove(page)

        self._pipes.add(page.out, take)

    def rotate(self, parent: Any) -> None:
        """Open a new pipe, so that later output of running programs belongs to the cell that ends."""
        if self._holds() != self._page.inode:
            return  # the cell put something of its own there
        page = self._page
        page.parent = parent
        self._capture()
        self._pipes.stop_awaiting(page.out)
        os.close(page.into)

    def recapture(self) -> None:
        """Capture the descriptor again if a cell closed it or restored an earlier cell's pipe."""
        holds = self._holds()
        if holds != self._page.inode and (holds is None or any(holds == page.inode for page in list(self._pages))):
            with suppress(OSError):
                os.dup2(self._page.into, self._fd)

    def _holds(self) -> int | None:
        try:
            return os.fstat(self._fd).st_ino
        except OSError:
            return None


class _Pipe:
    """A pipe and the cell of its text: the running one for None."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.inode = os.fstat(self.out).st_ino
        self.parent: Any = None
