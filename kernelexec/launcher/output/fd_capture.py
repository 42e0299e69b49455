"""Descriptors 1 and 2: what C code and programs write to them is read, for the cell that it belongs to."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .pipe_reader import Inlet


class Descriptor:
    """A descriptor with a pipe of ours behind it, a new one whenever a cell leaves programs behind.

    ``deliver`` gets what was written as text, with the header of the cell that has ended, or None for the running one.
    """

    def __init__(self, fd: int, inlet: Inlet, deliver: Callable[[Any, str], Any]) -> None:
        self._fd = fd
        self._inlet = inlet
        self._deliver = deliver
        self._pages: list[_Page] = []
        self._capture()

    def _capture(self) -> None:
        self._page = page = _Page()
        self._pages.append(page)
        os.dup2(page.into, self._fd)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def take(found: bytes) -> None:
            if text := decoder.decode(found, final=not found):
                self._deliver(page.parent, text)
            if not found:
                self._pages.remove(page)

        self._inlet.add(page.out, take)

    def turn_page(self, parent: Any) -> None:
        """Give programs that were started so far a pipe of their own: what they still write belongs to the cell that ends."""
        if self._holds() != self._page.inode:
            return  # the cell put something of its own there
        page = self._page
        page.parent = parent
        self._capture()
        self._inlet.await_no_more(page.out)
        os.close(page.into)

    def take_back(self) -> None:
        """Capture the descriptor again if the cell closed it, or put in its place what belongs to an earlier cell."""
        holds = self._holds()
        if holds != self._page.inode and (holds is None or any(holds == page.inode for page in list(self._pages))):
            with suppress(OSError):
                os.dup2(self._page.into, self._fd)

    def _holds(self) -> int | None:
        try:
            return os.fstat(self._fd).st_ino
        except OSError:
            return None


class _Page:
    """A pipe, and the cell that its text belongs to: the running one, or one that has ended."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.inode = os.fstat(self.out).st_ino
        self.parent: Any = None
