"""The container of a kernel as the parts of its provisioner share it, its limits, and whether its kernel was killed for memory.

The engine counts kills for want of memory, but not which process it was. Calls of the engine are made in threads.
"""

from __future__ import annotations

import asyncio
import signal
import time
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
#: How late the engine may report a kill that the kernel has reported already, in seconds.
_LATE_SECONDS = 2.0
#: How long after the end of a container its reason may be reported, in seconds.
_REASON_SECONDS = 0.25


class ContainerState:
    """One container, its limits, and the end of the kernel in it."""

    def __init__(self) -> None:
        self.id = ""
        self.pid = 0
        """Process id of the container's first process on this machine."""
        self.image = ""
        """Name of the container's image."""
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
        branch.memory_bytes = self.memory_bytes
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
        try:
            await run_in_thread(lambda: change_limits(events.engine, self.id, memory_bytes=memory_bytes, cpus=cpus))
        except EngineRefused as exc:
            message = f"The limits stay as they are (memory {now}, of which {format_size(used)} are in use): {exc}"
            raise LimitRefused(message) from exc
        self.memory_bytes, self.are_limits_changed = memory_bytes or self.memory_bytes, True


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the call's own
    """Call the engine, which blocks, in a thread; the number of calls at once is not limited."""
    return await anyio.to_thread.run_sync(call, *args, limiter=anyio.CapacityLimiter(1))


class OomCounter:
    """The kills that a living kernel has reported; one more is its own."""

    def __init__(self) -> None:
        self._reported = 0
        self._events = 0
        self._expected = 0
        self._until = 0.0

    def on_survived(self, reported: int, events: int) -> None:
        """Note that the kernel lives and reports that many kills; the engine, perhaps late, has reported ``events``."""
        self._expected = max(0, reported - max(events, self._reported))
        self._until = time.monotonic() + _LATE_SECONDS
        self._reported, self._events = reported, events

    def is_exceeded(self, kills: int) -> bool:
        """Return whether there were more than the kernel has reported, with ``kills`` in all since its start."""
        return kills > self._reported

    def includes_kernel(self, events: int, *, flagged: bool) -> bool:
        """Return whether a kernel that SIGKILL ended was one of the killed processes.

        ``flagged`` is the engine's statement that there was any kill: it counts where the engine's events were missed.
        """
        expected = self._expected if time.monotonic() < self._until else 0
        return events > self._events + expected or (flagged and not self._reported)


class OomDetector:
    """The decision, at the end of each kernel of a container, whether it was killed for want of memory."""

    def __init__(self, state: ContainerState) -> None:
        self.is_oom_killed = False
        self._state = state
        self._counter = OomCounter()
        self._is_flagged = False
        """Whether the engine says that a process was killed for want of memory: it never takes that back."""
        self._was_flagged = False
        """Whether it reported one of an earlier kernel of the container."""
        self._is_counted = False
        """Whether the container's init has reported the kills until the kernel's end."""

    def reset_kernel(self) -> None:
        """Forget the previous kernel."""
        self._counter = OomCounter()
        self.is_oom_killed = self._is_flagged = self._is_counted = False

    def reset_container(self) -> None:
        """Forget the previous container."""
        self.reset_kernel()
        self._was_flagged = False

    def continue_container(self, events: int) -> None:
        """Forget the previous kernel of a reused container, for which the engine has reported that many kills."""
        self._was_flagged |= self.is_oom_killed or self._is_flagged or bool(events)
        self.reset_kernel()
        self._counter.on_survived(0, events)

    def on_memory_kills(self, kills: int) -> None:
        """Note kills that the living kernel has counted: none of these was the kernel."""
        if self._state.events is not None:
            self._counter.on_survived(kills, self._state.events.memory_kills(self._state.id))

    def on_flag(self, *, flagged: bool) -> None:
        """Note the engine's flag at the end of the container."""
        self._is_flagged = flagged and not self._was_flagged

    def on_exit(self, status: int, kills: int) -> None:
        """Note the kernel's end as the container's init reports it, with the kills since the kernel's start."""
        self._is_counted = True
        self.is_oom_killed = status == KILLED and not self._state.is_kill_requested and self._counter.is_exceeded(kills)

    async def wait_reason(self) -> None:
        """Wait for the engine's report of a kill, which mostly comes before the end and sometimes a moment after it."""
        state = self._state
        with anyio.move_on_after(_REASON_SECONDS):
            while state.status == KILLED and not state.is_kill_requested and not self._is_counted and state.events is not None:
                state.changed.clear()
                self.is_oom_killed = self._counter.includes_kernel(
                    state.events.memory_kills(state.id), flagged=self._is_flagged
                )
                if self.is_oom_killed:
                    break
                await state.changed.wait()
