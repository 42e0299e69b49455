"""The shared state of a kernel's container, the limits, and the decision whether a kernel was killed for want of memory.

The engine counts kills for want of memory without naming the processes. Threads make the calls of the engine.
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
    """A container, with the limits and the end of the kernel inside."""

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
        """Memory limit of the whole container in bytes."""
        self.are_limits_changed = False
        """Whether the limits differ from the limits at the creation of the container."""

    async def connect(self) -> EventStream:
        """Subscribe to the engine's events, until the container is removed.

        Raises:
            KernelStartFailed: the container was removed meanwhile.
            EngineUnavailable: the engine does not answer.
        """

        def subscribe() -> None:
            self.events = EventStream.acquire()

        # The thread itself stores the subscription: if this task is cancelled, ``cleanup`` still has it to release.
        await await_to_end(run_in_thread(subscribe))
        if self.events is None:
            raise KernelStartFailed(STOPPED)
        return self.events

    def for_branch(self) -> ContainerState:
        """Return the state of a branch, another kernel in this container."""
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
        """Return the resource usage of the container."""
        assert self.events is not None
        return await run_in_thread(usage, self.events.engine, self.id)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running container; None keeps a limit. See ``KernelexecProvisioner.change_limits``.

        With control groups of version 2, a limit below the current use would kill processes, so the use is checked first.
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
    """Call the engine in a thread, since the call blocks; any number of calls run at once."""
    # A limiter of its own: anyio's default one has 40 threads, which waits for a silent engine would use up for all sessions.
    return await anyio.to_thread.run_sync(call, *args, limiter=anyio.CapacityLimiter(1))


class OomCounter:
    """The kills reported by a living kernel; any further kill is the kernel's own."""

    def __init__(self) -> None:
        self._reported = 0
        self._events = 0
        self._expected = 0
        self._until = 0.0

    def on_survived(self, reported: int, events: int) -> None:
        """Note a report of the living kernel: ``reported`` kills so far, and ``events`` from the engine, possibly late."""
        # Kills that the kernel knows of and the engine has yet to report: for 2 s such events do not count as the kernel's own.
        self._expected = max(0, reported - max(events, self._reported))
        self._until = time.monotonic() + _LATE_SECONDS
        self._reported, self._events = reported, events

    def is_exceeded(self, kills: int) -> bool:
        """Return whether ``kills``, the total since the kernel's start, exceeds the kernel's own reports."""
        return kills > self._reported

    def includes_kernel(self, events: int, *, flagged: bool) -> bool:
        """Return whether a kernel ended by SIGKILL was among the killed processes.

        ``flagged`` is the engine's flag of any kill. The flag counts only if the kernel has reported no kill, since the
        engine's events may have been missed.
        """
        expected = self._expected if time.monotonic() < self._until else 0
        return events > self._events + expected or (flagged and not self._reported)


class OomDetector:
    """The decision, at the end of each kernel of a container, whether the kernel was killed for want of memory."""

    def __init__(self, state: ContainerState) -> None:
        self.is_oom_killed = False
        self._state = state
        self._counter = OomCounter()
        self._is_flagged = False
        """Whether the engine reports any process killed for want of memory: a flag for the container's whole life."""
        self._was_flagged = False
        """Whether the flag is due to an earlier kernel of the container."""
        self._is_counted = False
        """Whether the container's init has reported the number of kills up to the kernel's end."""

    def reset_kernel(self) -> None:
        """Forget the previous kernel."""
        self._counter = OomCounter()
        self.is_oom_killed = self._is_flagged = self._is_counted = False

    def reset_container(self) -> None:
        """Forget the previous container."""
        self.reset_kernel()
        self._was_flagged = False

    def continue_container(self, events: int) -> None:
        """Forget the previous kernel of a reused container, with ``events`` kills reported by the engine so far."""
        self._was_flagged |= self.is_oom_killed or self._is_flagged or bool(events)
        self.reset_kernel()
        self._counter.on_survived(0, events)

    def on_memory_kills(self, kills: int) -> None:
        """Note kills counted by the living kernel: none of these was the kernel."""
        if self._state.events is not None:
            self._counter.on_survived(kills, self._state.events.memory_kills(self._state.id))

    def on_flag(self, *, flagged: bool) -> None:
        """Note the engine's flag at the end of the container."""
        self._is_flagged = flagged and not self._was_flagged

    def on_exit(self, status: int, kills: int) -> None:
        """Note the kernel's end as reported by the container's init, with the kills since the kernel's start."""
        self._is_counted = True
        self.is_oom_killed = status == KILLED and not self._state.is_kill_requested and self._counter.is_exceeded(kills)

    async def wait_reason(self) -> None:
        """Wait at most 0.25 s for the engine's report of a kill, which comes before the end or a moment later."""
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
