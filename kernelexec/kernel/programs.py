"""The programs that a kernel without our launcher runs for its cells: what one of them held is gone when it ends."""

from __future__ import annotations

from typing import Self

import anyio.to_thread

from kernelexec.provisioning.processes import programs_of, status_of


class Programs:
    """Those that a guarded kernel had started before it served, such as the shell of a kernel for bash."""

    def __init__(self, guard: int) -> None:
        self._guard = guard
        self._found: dict[int, int] = {}

    @classmethod
    async def of(cls, guard: int) -> Self:
        """Those that live now."""
        programs = cls(guard)
        await programs.find()
        return programs

    async def find(self) -> None:
        """Take note of those that live now."""
        self._found = await anyio.to_thread.run_sync(programs_of, self._guard)

    async def lost(self) -> bool:
        """Whether one of them has ended; those that live then are the ones of the next call."""
        if all((status := status_of(pid)) and status.born == born for pid, born in self._found.items()):
            return False
        await self.find()
        return True
