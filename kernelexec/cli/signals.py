"""Ctrl+C and its kin: the first interrupt ends the running cell and keeps all that there is; any other ends everything."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import anyio

from kernelexec.cli.status import SIGNAL_BASE
from kernelexec.cli.surroundings import minded, say
from kernelexec.session import AsyncSession


@contextmanager
def heard(handle: Callable[[signal.Signals, anyio.CancelScope], None]) -> Iterator[None]:
    """Have the signals of a terminal and of a shell handled in the event loop, with the scope that ends this block."""
    loop, signals = asyncio.get_running_loop(), minded()
    with anyio.CancelScope() as scope:
        for signum in signals:
            loop.add_signal_handler(signum, handle, signum, scope)
        try:
            yield
        finally:
            for signum in signals:
                loop.remove_signal_handler(signum)


class Signals:
    """Listens for the time of one command. What must end ends through the event loop, so that nothing is left behind."""

    def __init__(self) -> None:
        self.session: AsyncSession | None = None
        self.status: int | None = None
        self._interrupted = False

    def listening(self) -> AbstractContextManager[None]:
        """End the block when told to; ``status`` is then what a shell would say: 128 and the signal's number."""
        return heard(self._on_signal)

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        if signum == signal.SIGINT and not self._interrupted and self.session is not None and self.session.busy:
            self._interrupted = True
            say("interrupting the cell")
            self.session.request_interrupt()
            return
        self.status = SIGNAL_BASE + signum
        scope.cancel()
