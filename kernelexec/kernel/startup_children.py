"""The child processes that run the cells of a kernel without our launcher: the state in one is lost when it ends."""

from __future__ import annotations

from typing import Self

import anyio.to_thread

from kernelexec.provisioning.runtime.processes import find_guarded_children, read_live_status


class StartupChildren:
    """The children that a guarded kernel had started before it served, such as the shell of a kernel for bash.

    ``guard`` is the process id of its guard; None where its processes cannot be seen.
    """

    def __init__(self, guard: int | None) -> None:
        self._guard = guard
        self._born: dict[int, int] = {}

    @classmethod
    async def of(cls, guard: int | None) -> Self:
        """Return the children that live now."""
        children = cls(guard)
        await children.refresh()
        return children

    async def refresh(self) -> None:
        """Note the children that live now, with the times of their starts."""
        if self._guard is not None:
            self._born = await anyio.to_thread.run_sync(find_guarded_children, self._guard)

    async def explain_unknown_state(self) -> str:
        """Return a sentence on why a kernel that answers may have lost its state; an empty one if all children live.

        When a child has ended, the next call looks at the children that live now.
        """
        if self._guard is None:
            return "The kernel answers; the programs that it runs cannot be seen from here."
        if all((status := read_live_status(pid)) and status.born == born for pid, born in self._born.items()):
            return ""
        await self.refresh()
        return "A program that the kernel had started before it served has ended: what it held is gone."
