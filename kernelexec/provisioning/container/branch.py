"""A branch of a container's kernel: another kernel there, which the container's init knows by a mark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kernelexec.provisioning.container.container_state import KILLED, ContainerState
from kernelexec.provisioning.container.oom import OomDetector
from kernelexec.provisioning.container.reuse import ContainerReuse


class BranchReuse:
    """What ``ContainerReuse`` is for the kernel, by the same connection: only copies of checkpoints follow a branch."""

    is_possible = False

    def __init__(self, container: ContainerReuse, mark: str, state: ContainerState, oom: OomDetector) -> None:
        self._container = container
        self._mark = mark
        self._state, self._oom = state, oom
        container.branches[mark] = state, oom

    def reset_container(self) -> None:
        """Do nothing: a branch is never in another container."""

    async def fork(self, arguments: Sequence[str], kwargs: Mapping[str, Any]) -> bool:  # noqa: ARG002 - as of ``ContainerReuse``
        """Return False: a kernel without the memory of this one starts elsewhere."""
        return False

    def expect_kernel(self) -> bool:
        """Prepare for a kernel that a checkpoint forks; return whether there is a connection to the container's init."""
        state = self._state
        if not self._container.is_connected or state.events is None:
            return False
        self._oom.continue_container(state.events.memory_kills(state.id))
        state.reset_kernel()
        state.changed.clear()
        return True

    async def adopt(self, pid: int) -> bool:
        """Have the init watch a kernel that a checkpoint has forked; return whether it is there."""
        return await self._container.adopt(pid, self._mark)

    def signal(self, signum: int) -> bool:
        """Signal the branch without the engine; return whether that was possible."""
        return self._container.signal(signum, self._mark)

    async def sweep(self, spared: Collection[int] = ()) -> bool:
        """End the processes of the branch except its checkpoints; return whether a kernel can be forked of these."""
        self._state.is_kill_requested |= self._state.status is None
        is_swept = await self._container.end_branch(self._mark, spared)
        if is_swept and self._state.status is None:  # the init has not seen its end in time
            self._state.end(KILLED)
        return is_swept and bool(spared)

    def close(self) -> None:
        """Leave the container."""
        self._container.branches.pop(self._mark, None)
