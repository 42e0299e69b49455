"""The programs that a kernel without our launcher runs for its cells: what one of them held is gone when it ends."""

from __future__ import annotations

from typing import Self

import anyio.to_thread

from kernelexec.provisioning.runtime.processes import programs_of, status_of


class Programs:
    """Those that a guarded kernel had started before it served, such as the shell of a kernel for bash.

    ``guard`` is None where its processes are out of sight.
    """

    def __init__(self, guard: int | None) -> None:
        self._guard = guard
        self._found: dict[int, int] = {}

    @classmethod
    async def of(cls, guard: int | None) -> Self:
        """Those that live now."""
        programs = cls(guard)
        await programs.find()
        return programs

    async def find(self) -> None:
        """Take note of those that live now."""
        if self._guard is not None:
            self._found = await anyio.to_thread.run_sync(programs_of, self._guard)

    async def doubt(self) -> str:
        """Why a kernel that answers may have lost its state all the same, in a sentence; empty where nothing says so.

        Where one of them has ended, those that live then are the ones of the next call.
        """
        if self._guard is None:
            return "The kernel answers; the programs that it runs cannot be seen from here."
        if all((status := status_of(pid)) and status.born == born for pid, born in self._found.items()):
            return ""
        await self.find()
        return "A program that the kernel had started before it served has ended: what it held is gone."
