"""The private directories of one executor: its own, and those that it takes over from owners that died."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import anyio.to_thread

from kernelexec.config import Config
from kernelexec.errors import EngineFailed
from kernelexec.pool import sweep_idle
from kernelexec.provisioning import new_root
from kernelexec.provisioning.runtime.discovery import LeftSession, ended_beside, left_sessions
from kernelexec.provisioning.runtime.locations import bases
from kernelexec.provisioning.runtime.owned_directory import Root, sweep
from kernelexec.provisioning.runtime.temp_dirs import claim_room
from kernelexec.records.journal import in_flight, journal_path
from kernelexec.secrets import SecretStore
from kernelexec.session.cells.takeover import OrphanedSession
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.session_resources import Belongings

logger = logging.getLogger("kernelexec")


class Estates:
    """What ``claim`` and ``inherit`` make this process's own is removed by ``remove``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._roots: list[Root] = []
        self._stop = threading.Event()

    @property
    def own(self) -> Path:
        """The executor's own directory. It has been claimed."""
        return self._roots[0].path

    def claim(self) -> None:
        """Make a directory for a new life of the executor.

        Raises:
            KernelStartFailed: there is no place for it.
        """
        self._stop.clear()
        self._roots.append(Root.claim(new_root()))
        if self._config.confines_kernels and (room := claim_room(self.own)) is not None:
            self._roots.append(room)

    async def inherit(self) -> list[tuple[Path, LeftSession]]:
        """Sessions that owners in the same workspace, which died, have left with living kernels; each with its directory.

        Of several that have the same name, the one that kept the journal of that name comes first: requests are known by it.
        """
        if self._config.isolation != "container" or not self._config.container.adopt:
            return []
        from kernelexec.provisioning.container.orphans import inherit  # noqa: PLC0415 - only containers outlive their owner

        try:
            estates = await anyio.to_thread.run_sync(inherit, self._config)
        except EngineFailed:
            logger.exception("kernelexec.nothing_inherited")
            return []
        self._roots += [estate.root for estate in estates]
        found = [(estate.root.path, left) for estate in estates for left in estate.sessions]
        return sorted(found, key=lambda one: (one[1].name, one[1].journal != journal_path(self._config.workspace, one[1].name)))

    async def give_up(self, left: LeftSession) -> None:
        """Leave nothing of a session that was inherited, and with which nobody can go on: its directory ends with this life."""
        from kernelexec.provisioning.container.orphans import give_up  # noqa: PLC0415 - as above

        await anyio.to_thread.run_sync(give_up, left)

    async def sweep(self) -> None:
        """Remove what dead owners left; a failure is no matter of those who live."""
        try:
            await run_in_thread(self._sweep)
        except Exception:
            logger.exception("kernelexec.sweep_failed")

    def _sweep(self) -> None:
        waiting: frozenset[str] | None = None
        if self._config.isolation == "container":
            from kernelexec.provisioning.container.orphans import sweep_containers  # noqa: PLC0415 - as above

            try:
                waiting = sweep_containers(self._config, self._stop)
            except EngineFailed:
                logger.exception("kernelexec.sweep_failed")

        def spare(path: Path) -> bool:
            """Whether a kernel may wait in it for a new owner: the engine says so, or nobody says that it does not."""
            return str(path) in waiting if waiting is not None else bool(left_sessions(path))

        sweep(tuple(bases()), self._stop, spare=spare)
        sweep_idle(self._config.workspaces, {root.path.name for root in self._roots[1:]}, bases())

    def stop_sweeping(self) -> None:
        """Let a sweep end soon."""
        self._stop.set()

    def remove(self) -> None:
        """Remove all directories, with what is in them."""
        while self._roots:
            self._roots.pop().remove()


def as_left(left: LeftSession, config: Config) -> Config:
    """The settings under which a session goes on: its paths stay as its container, and what was done in it, know them."""
    made = left.handover.provisioner.get("made")
    if made is None:
        return config
    container = config.container.model_copy(update={"layout": made["options"].get("layout", config.container.layout)})
    return config.model_copy(update={"container": container})


def heritage(
    left: LeftSession, root: Path, config: Config, secrets: SecretStore | None = None
) -> tuple[Belongings, OrphanedSession]:
    """What a session of a dead owner had, and what ran in it. For a thread.

    Raises:
        InvalidWorkDir: its workspace is gone.
    """
    journal = left.journal or journal_path(config.workspace, left.name)
    flight = in_flight(journal) if config.journal else None
    ended = ended_beside(left.directory)
    return Belongings.take_over(left, root, config, secrets), OrphanedSession(left.handover, flight, ended)
