"""The private directories of an executor: its own, and the directories adopted from dead owners."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import EngineFailed
from kernelexec.provisioning import new_root
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory, create_temp_root, sweep, swept_bases
from kernelexec.session.lifecycle import run_in_thread

if TYPE_CHECKING:
    from kernelexec.provisioning.container.containers import OrphanedRoot
    from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile

logger = logging.getLogger("kernelexec")


class ExecutorDirectories:
    """The directories created by ``claim`` and taken over by ``adopt_orphans``; ``remove`` removes them all."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._roots: list[OwnedDirectory] = []
        self._stop = threading.Event()

    @property
    def root(self) -> Path:
        """The executor's own directory; valid after ``claim``."""
        return self._roots[0].path

    def claim(self) -> None:
        """Create the executor's own directory, or raise ``KernelStartFailed``."""
        self._stop.clear()
        self._roots.append(OwnedDirectory.claim(new_root()))
        if self._config.confines_kernels and (temporary_root := create_temp_root(self.root)) is not None:
            self._roots.append(temporary_root)

    async def adopt_orphans(self) -> list[tuple[Path, OrphanedSessionFile]]:
        """Take over the directories of dead owners in this workspace; return their sessions whose kernels are alive.

        Among sessions of the same name, the owner of the name's journal comes first: the journal knows the request ids.
        """
        if self._config.isolation != "container" or not self._config.container.orphan_seconds:
            return []
        from kernelexec.provisioning.container.containers import adopt_orphans  # noqa: PLC0415 - only containers outlive their owner
        from kernelexec.provisioning.runtime.discovery import note_adopter  # noqa: PLC0415 - as above
        from kernelexec.records.journal import journal_path  # noqa: PLC0415 - as above

        orphans: list[OrphanedRoot] = []
        try:
            await await_to_end(run_in_thread(lambda: orphans.extend(adopt_orphans(self._config))))
        except EngineFailed:
            logger.exception("kernelexec.adoption_failed")
            return []
        finally:  # also for a caller that was cancelled meanwhile
            self._roots += [orphaned_directory.root for orphaned_directory in orphans]
        for orphaned_directory in orphans:
            with suppress(OSError):  # then the command line does not find its sessions
                note_adopter(orphaned_directory.root.path, self.root)
        sessions = [
            (orphaned_directory.root.path, orphaned_session)
            for orphaned_directory in orphans
            for orphaned_session in orphaned_directory.sessions
        ]
        return sorted(
            sessions, key=lambda entry: (entry[1].name, entry[1].journal != journal_path(self._config.workspace, entry[1].name))
        )

    async def discard_session(self, orphaned_session: OrphanedSessionFile) -> None:
        """Discard a session after a failed adoption; the directory is removed with this executor's."""
        from kernelexec.provisioning.container.containers import discard  # noqa: PLC0415 - as above

        await anyio.to_thread.run_sync(discard, orphaned_session)

    async def sweep(self) -> None:
        """Remove the directories and containers of dead owners; a failure is only logged."""
        try:
            await run_in_thread(self._sweep)
        except Exception:
            logger.exception("kernelexec.sweep_failed")

    def _sweep(self) -> None:
        from kernelexec.executor.pool import remove_orphaned_workspaces  # noqa: PLC0415 - the directories come before the other parts
        from kernelexec.provisioning.runtime.discovery import list_orphaned_sessions  # noqa: PLC0415 - as above

        awaiting_owner: frozenset[str] | None = None
        if self._config.isolation == "container":
            awaiting_owner = self._sweep_containers()

        def is_awaiting_owner(path: Path) -> bool:
            """Return whether a kernel in a directory may wait for a new owner; without the engine's answer, any orphan may."""
            nonlocal awaiting_owner
            if awaiting_owner is not None and str(path) not in awaiting_owner:
                if not list_orphaned_sessions(path):
                    return False
                awaiting_owner = self._sweep_containers()  # its owner may have ended since the last look
            return str(path) in awaiting_owner if awaiting_owner is not None else bool(list_orphaned_sessions(path))

        sweep(tuple(swept_bases()), self._stop, spare=is_awaiting_owner)
        remove_orphaned_workspaces(self._config.absolute_workspace, {root.path.name for root in self._roots[1:]}, swept_bases())

    def _sweep_containers(self) -> frozenset[str] | None:
        """Remove the containers of dead owners; return the directories whose kernels wait for an owner, None if unknown."""
        from kernelexec.provisioning.container.containers import sweep_containers  # noqa: PLC0415 - as above

        try:
            return sweep_containers(self._config, self._stop)
        except EngineFailed:
            logger.exception("kernelexec.sweep_failed")
            return None

    def stop_sweeping(self) -> None:
        """Ask a running sweep to stop."""
        self._stop.set()

    def remove(self) -> None:
        """Remove all directories with their contents."""
        while self._roots:
            self._roots.pop().remove()
