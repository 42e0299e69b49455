"""Whether a container's kernel was killed for want of memory: the engine counts such kills, but not which process it was."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread

from kernelexec.provisioning.container.container_state import KILLED, ContainerState

#: How late the engine may report a kill that the kernel has reported already, in seconds.
_LATE_SECONDS = 2.0
#: How long after the end of a container its reason may be reported, in seconds.
_REASON_SECONDS = 0.25


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
