"""Ctrl+C and its kin: the first interrupt ends the running cell and keeps all that there is; any other ends everything."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from kernelexec.cli.status import SIGNAL_BASE
from kernelexec.cli.surroundings import say
from kernelexec.session import AsyncSession


class Signals:
    """Listens for the time of one command. What must end ends through the event loop, so that nothing is left behind."""

    def __init__(self) -> None:
        self.session: AsyncSession | None = None
        self.status: int | None = None
        self._interrupted = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """End the block when told to; ``status`` is then what a shell would say: 128 and the signal's number."""
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(signum, self._on_signal, signum, scope)
            try:
                yield
            finally:
                for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    loop.remove_signal_handler(signum)

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        if signum == signal.SIGINT and not self._interrupted and self.session is not None and self.session.busy:
            self._interrupted = True
            say("interrupting the cell")
            self.session.request_interrupt()
            return
        self.status = SIGNAL_BASE + signum
        scope.cancel()
