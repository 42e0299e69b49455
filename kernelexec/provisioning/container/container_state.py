"""The container of a kernel as the parts of its provisioner share it, and calls of the engine in threads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from kernelexec.docker.events import News
from kernelexec.errors import KernelStartFailed

KILLED = -signal.SIGKILL
STOPPED = "The kernel was stopped before it started."
T = TypeVar("T")


class ContainerState:
    """One container, and the end of the kernel in it."""

    def __init__(self) -> None:
        self.id = ""
        self.pid = 0
        """Process id of the container's first process on this machine."""
        self.status: int | None = None
        """The kernel's exit status; None while it lives."""
        self.is_kill_requested = False
        """Whether this side killed the kernel."""
        self.changed = asyncio.Event()
        """Set when the kernel has ended, and when the engine reports an event of the container."""
        self.events: News | None = None
        """The engine's events; None before the launch and after the removal."""

    async def connect(self) -> News:
        """Subscribe to the engine's events, until the container is removed.

        Raises:
            KernelStartFailed: the container was removed meanwhile.
            EngineUnavailable: the engine does not answer.
        """

        def subscribe() -> None:
            self.events = News.hold()

        await run_to_end(subscribe)
        if self.events is None:
            raise KernelStartFailed(STOPPED)
        return self.events

    def reset_kernel(self) -> None:
        """Forget the end of the previous kernel."""
        self.status, self.is_kill_requested = None, False

    def reset_container(self) -> None:
        """Forget the previous container."""
        self.reset_kernel()
        self.id, self.pid = "", 0

    def end(self, status: int) -> None:
        """Record the kernel's exit status."""
        self.status = status
        self.changed.set()


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the call's own
    """Call the engine, which blocks, in a thread; the number of calls at once is not limited."""
    return await anyio.to_thread.run_sync(call, *args, limiter=anyio.CapacityLimiter(1))


async def run_to_end(call: Callable[..., object], *args: Any) -> None:  # noqa: ANN401 - the call's own
    """Call the engine in a thread and wait for the end of the call even if this task is cancelled: the call acquires something.

    A shielded scope of anyio stops cancellation by anyio only, not of the task itself, as by ``asyncio.wait_for``.
    """
    with anyio.CancelScope(shield=True):
        calling = asyncio.ensure_future(run_in_thread(call, *args))
        try:
            await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait({calling})
            raise
