"""The reuse of a container: its init ends the processes of one kernel and forks the next one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec.config import Container
from kernelexec.provisioning.container.container_state import ContainerState
from kernelexec.provisioning.container.init_client import ContainerInit
from kernelexec.provisioning.container.oom import OomDetector

#: Directories of a container that are in memory, beside those that its options name.
_IN_MEMORY = frozenset({"/tmp", "/dev/shm", "/dev/mqueue"})  # noqa: S108 - the container's own
Mounts = Iterable[tuple[str, str, bool]]


class ContainerReuse:
    """The connection to a container's init. It knows whether anything of the last kernel is left."""

    def __init__(self, state: ContainerState, oom: OomDetector) -> None:
        self._state = state
        self._oom = oom
        self._init: ContainerInit | None = None
        self._is_clean = False
        """Whether no process and no file of the last kernel is left."""
        self._sources: Mapping[str, tuple[int, int] | None] = {}
        self._in_memory: list[str] = []

    @property
    def is_possible(self) -> bool:
        """Whether the next kernel can be forked in this container."""
        return self._is_clean and self._is_connected

    @property
    def _is_connected(self) -> bool:
        return self._init is not None and self._init.is_connected

    def reset_container(self) -> None:
        """Forget the previous container."""
        self._is_clean = False

    def listen(self, socket: str, options: Container, mounts: Mounts) -> None:
        """Prepare for a container that is about to start: its init connects to the ``socket``, if there is one."""
        self._sources = _identities(mounts)
        self._in_memory = sorted(_IN_MEMORY | options.memory_directories.keys())
        if socket:
            self._init = ContainerInit(Path(socket), options.ids, self._on_exit, self._state.changed.set)

    def accept(self, is_peer: Callable[[int], bool]) -> None:
        """Let the init connect; ``is_peer`` decides by process id whether a peer belongs to the container."""
        if self._init is not None:
            self._init.start_accepting(is_peer)

    def has_same_mounts(self, mounts: Mounts) -> bool:
        """Return whether the same directories are mounted: their paths may have changed, but not their inodes."""
        return self._sources == _identities(mounts)

    async def fork(self, arguments: list[str], kwargs: Mapping[str, Any]) -> bool:
        """Fork the next kernel; return whether there is one."""
        state = self._state
        if not self.is_possible or self._init is None or state.events is None:
            return False
        self._oom.continue_container(state.events.memory_kills(state.id))
        state.reset_kernel()
        self._is_clean = False
        state.changed.clear()
        return await self._init.fork(arguments, kwargs["env"], kwargs["cwd"])

    def signal(self, signum: int) -> bool:
        """Signal the kernel without the engine; return whether that was possible."""
        return self._init is not None and self._init.is_connected and self._init.signal(signum)

    async def sweep(self) -> bool:
        """End all processes in the container but its init; return whether it is ready for the next kernel."""
        if self._init is not None and self._init.is_connected and not self._is_clean:
            self._state.is_kill_requested |= self._state.status is None
            devices = [identity[0] for identity in self._sources.values() if identity]
            self._is_clean = await self._init.sweep(self._in_memory, devices)
        return self.is_possible

    def close(self) -> None:
        """Close the connection, after which an init without a kernel ends."""
        init, self._init = self._init, None
        if init is not None:
            init.close()

    def _on_exit(self, status: int, kills: int) -> None:
        if self._state.status is None:
            self._oom.on_exit(status, kills)
            self._state.end(status)


def _identities(mounts: Mounts) -> dict[str, tuple[int, int] | None]:
    return {inside: _identity(source) for source, inside, _ in mounts}


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        stat = os.stat(path)  # noqa: PTH116 - of the target of a link, as the engine sees it
        return stat.st_dev, stat.st_ino
    return None
