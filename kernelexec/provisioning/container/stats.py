"""The resource usage of a kernel's container, and changes of its limits while it runs."""

from __future__ import annotations

from kernelexec.config import Container
from kernelexec.docker.client import change_limits, usage
from kernelexec.errors import EngineRefused, LimitRefused
from kernelexec.provisioning.container.container_state import ContainerState, run_in_thread
from kernelexec.results import Stats
from kernelexec.results.usage import format_size


class ContainerResources:
    """The limits of one container and the use of them."""

    def __init__(self, state: ContainerState) -> None:
        self.memory_bytes: int | None = None
        """Memory that everything in the container may use together."""
        self.are_limits_changed = False
        """Whether the limits differ from those that the container was created with."""
        self._swap_bytes = 0
        self._state = state

    def take_limits(self, options: Container) -> None:
        """Take the limits of a new container."""
        self.memory_bytes = options.memory_bytes
        self._swap_bytes = options.memory_swap_bytes - (options.memory_bytes or 0) if options.memory_swap_bytes else 0

    async def stats(self) -> Stats:
        """Return what the container uses.

        Raises:
            EngineFailed: the engine does not answer.
        """
        assert self._state.events is not None
        return await run_in_thread(usage, self._state.events.engine, self._state.id)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running container, where None keeps one.

        With control groups of version 2 a limit below the current use would kill processes, so the use is checked first.

        Raises:
            LimitRefused: more is in use, or the engine refuses; nothing changed.
            EngineUnavailable, ContainerGone: it is unknown whether the limits have changed.
        """
        events = self._state.events
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
                lambda: change_limits(events.engine, self._state.id, memory_bytes=memory_bytes, swap_bytes=both, cpus=cpus)
            )
        except EngineRefused as exc:
            message = f"The limits stay as they are (memory {now}, of which {format_size(used)} are in use): {exc}"
            raise LimitRefused(message) from exc
        self.memory_bytes, self.are_limits_changed = memory_bytes or self.memory_bytes, True
