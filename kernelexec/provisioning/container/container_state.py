"""The container of a kernel as the parts of its provisioner share it, its limits, and calls of the engine in threads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Container
from kernelexec.docker.engine_reports import EventStream
from kernelexec.docker.running_container import change_limits, usage
from kernelexec.errors import EngineRefused, KernelStartFailed, LimitRefused
from kernelexec.results import Stats
from kernelexec.results.usage import format_size

KILLED = -signal.SIGKILL
STOPPED = "The kernel was stopped before it started."
T = TypeVar("T")


class ContainerState:
    """One container, its limits, and the end of the kernel in it."""

    def __init__(self) -> None:
        self.id = ""
        self.pid = 0
        """Process id of the container's first process on this machine."""
        self.image = ""
        """Ports of the container, and the ports of this machine that lead there."""
        self.status: int | None = None
        """The kernel's exit status; None while it lives."""
        self.is_kill_requested = False
        """Whether this side killed the kernel."""
        self.changed = asyncio.Event()
        """Set when the kernel has ended, and when the engine reports an event of the container."""
        self.events: EventStream | None = None
        """The engine's events; None before the launch and after the removal."""
        self.memory_bytes: int | None = None
        """Memory that everything in the container may use together."""
        self.are_limits_changed = False
        """Whether the limits differ from those that the container was created with."""
        self._swap_bytes = 0

    async def connect(self) -> EventStream:
        """Subscribe to the engine's events, until the container is removed.

        Raises:
            KernelStartFailed: the container was removed meanwhile.
            EngineUnavailable: the engine does not answer.
        """

        def subscribe() -> None:
            self.events = EventStream.acquire()

        await await_to_end(run_in_thread(subscribe))
        if self.events is None:
            raise KernelStartFailed(STOPPED)
        return self.events

    def for_branch(self) -> ContainerState:
        """Return the state of a branch: of another kernel in this container."""
        branch = ContainerState()
        branch.id, branch.pid, branch.events = self.id, self.pid, self.events
        branch.image = self.image
        branch.memory_bytes, branch._swap_bytes = self.memory_bytes, self._swap_bytes
        return branch

    def reset_kernel(self) -> None:
        """Forget the end of the previous kernel."""
        self.status, self.is_kill_requested = None, False

    def reset_container(self) -> None:
        """Forget the previous container."""
        self.reset_kernel()
        self.id, self.pid, self.are_limits_changed = "", 0, False

    def end(self, status: int) -> None:
        """Record the kernel's exit status."""
        self.status = status
        self.changed.set()

    def take_limits(self, options: Container) -> None:
        """Take the limits of a new container."""
        self.memory_bytes = options.memory_bytes
        self._swap_bytes = options.memory_swap_bytes - (options.memory_bytes or 0) if options.memory_swap_bytes else 0

    async def stats(self) -> Stats:
        """Return the use of the container."""
        assert self.events is not None
        return await run_in_thread(usage, self.events.engine, self.id)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running container, where None keeps one: see ``KernelexecProvisioner.change_limits``.

        With control groups of version 2 a limit below the current use would kill processes, so the use is checked first.
        """
        events = self.events
        assert events is not None
        stats = await self.stats()
        used = stats.memory_bytes or 0
        now = format_size(stats.memory_limit_bytes) if stats.memory_limit_bytes else "none"
        if memory_bytes is not None and used >= memory_bytes:
            message = (
                f"memory_bytes={memory_bytes}: the kernel uses {format_size(used)}, more than {format_size(memory_bytes)}. "
                f"Its limit is still {now}: delete variables first, or restart the session."
            )
            raise LimitRefused(message)
        both = None if memory_bytes is None else memory_bytes + self._swap_bytes
        try:
            await run_in_thread(
                lambda: change_limits(events.engine, self.id, memory_bytes=memory_bytes, swap_bytes=both, cpus=cpus)
            )
        except EngineRefused as exc:
            message = f"The limits stay as they are (memory {now}, of which {format_size(used)} are in use): {exc}"
            raise LimitRefused(message) from exc
        self.memory_bytes, self.are_limits_changed = memory_bytes or self.memory_bytes, True


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the call's own
    """Call the engine, which blocks, in a thread; the number of calls at once is not limited."""
    return await anyio.to_thread.run_sync(call, *args, limiter=anyio.CapacityLimiter(1))
