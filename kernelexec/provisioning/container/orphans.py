"""Containers of dead owners: the next executor in the same workspace adopts them, or they are removed."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernelexec.config import Config
from kernelexec.docker import networks
from kernelexec.docker.client import Engine, ListedContainer
from kernelexec.docker.labels import CLIENT, HELD_BY, OWNER, ROOT, SESSION, WORKSPACE
from kernelexec.errors import EngineFailed
from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile, list_orphaned_sessions
from kernelexec.provisioning.runtime.owned_directory import RECORD_FILE, OwnedDirectory, OwnerRecord, has_living_owner
from kernelexec.workspace.safe_files import DIRECTORY

#: Errors of a process without descriptors or memory, which prove nothing about an owner.
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: How long after the end of a container its owner has certainly noticed it, in seconds.
_NOTICE_TIME = timedelta(minutes=10)
logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class OrphanedRoot:
    """A dead owner's private directory, which this process owns now, and its sessions with living kernels."""

    root: OwnedDirectory
    sessions: tuple[OrphanedSessionFile, ...]


def adopt_orphans(config: Config) -> list[OrphanedRoot]:
    """Take over private directories of dead owners in a workspace, in a thread; may raise ``EngineFailed``."""
    workspace = str(config.absolute_workspace)
    with Engine.acquire() as engine:
        containers = engine.list_containers(f"{WORKSPACE}={workspace}")
        orphans = []
        for path in dict.fromkeys(each.labels.get(ROOT, "") for each in containers if _waits_for_owner(each)):
            root = OwnedDirectory.take_over(Path(path)) if path else None
            if root is not None:
                its = [each for each in containers if each.labels.get(ROOT) == path]
                orphans.append(OrphanedRoot(root, _find_waiting_sessions(engine, root, its)))
    return orphans


def _find_waiting_sessions(
    engine: Engine, root: OwnedDirectory, containers: list[ListedContainer]
) -> tuple[OrphanedSessionFile, ...]:
    """Return the sessions whose containers wait for a new owner; others wait in vain, as they were never ready."""
    lives = {each.id for each in containers if each.running}
    sessions = tuple(left for left in list_orphaned_sessions(root.path) if left.handover.provisioner.get("container") in lives)
    wanted = {left.handover.provisioner.get("container") for left in sessions}
    for container in containers:
        if container.id not in wanted:
            _remove(engine, container)
    return sessions


def discard(session: OrphanedSessionFile) -> None:
    """Remove the container of a session that cannot continue, as far as the engine allows. Called in a thread."""
    container_id = session.handover.provisioner.get("container")
    with suppress(EngineFailed), Engine.acquire() as engine:
        for container in engine.list_containers(OWNER):
            if container.id == container_id:
                _remove(engine, container)


def sweep_containers(config: Config, stop: threading.Event) -> frozenset[str]:
    """Remove containers of dead owners and their directories, but for containers that wait for a new owner. Called in a thread.

    A kernel that waits in vain ends by itself and the next start removes it; one whose directory is not visible may have a
    new owner elsewhere. If it is unknown whether an owner lives (it or this process is in a container), running containers are
    left, and ended ones are removed after a while. May raise ``EngineFailed``.
    """
    waiting = set()
    own_workspace = str(config.absolute_workspace)
    with Engine.acquire() as engine:
        for container in engine.list_containers(OWNER):
            if stop.is_set():
                break
            if not _is_orphan(engine, container):
                continue
            root = container.labels.get(ROOT, "")
            wanted = config.container.adopt or container.labels.get(WORKSPACE) != own_workspace
            if not (_waits_for_owner(container) and wanted):
                _remove(engine, container)
            elif os.path.exists(Path(root, RECORD_FILE)):  # noqa: PTH110 - also false without permission
                waiting.add(root)
        networks.delete_network(engine)
    return frozenset(waiting)


def remove_leftovers(engine: Engine) -> None:
    """Remove containers of dead owners that are kernels of other programs, as far as the engine allows. Called in a thread."""
    with suppress(EngineFailed):
        for container in engine.list_containers(CLIENT):
            if _is_orphan(engine, container):
                _remove(engine, container)


def _remove(engine: Engine, container: ListedContainer) -> None:
    try:
        engine.remove(container.id)
    except EngineFailed:
        logger.warning("kernelexec.container_not_removed", extra={"container": container.id})
        return
    logger.info(
        "kernelexec.orphaned_container_removed", extra={"container": container.id, "session": container.labels.get(SESSION)}
    )


def _waits_for_owner(container: ListedContainer) -> bool:
    """Return whether the kernel waits for a new owner after the death of its own; a kernel with a lease ends instead."""
    return container.running and CLIENT not in container.labels and container.labels.get(HELD_BY) != "lease"


def _is_orphan(engine: Engine, container: ListedContainer) -> bool:
    """Return whether no living owner uses a container any more, as far as that can be known."""
    return has_dead_owner(container.labels) or _ended_long_ago(engine, container)


def _ended_long_ago(engine: Engine, container: ListedContainer) -> bool:
    """Return whether a container ended, or was created without a start, long ago, and its owner cannot be checked from here."""
    this_process, owner = OwnerRecord.of_this_process(locked=False), read_owner(container.labels)
    is_decidable = owner is None or (
        owner.started and (owner.boot, owner.pid_namespace) == (this_process.boot, this_process.pid_namespace)
    )
    if container.running or is_decidable:
        return False
    with suppress(EngineFailed, ValueError, TypeError):  # the container is gone, or its time is invalid
        return datetime.now(UTC) - datetime.fromisoformat(engine.inspect_container(container.id).changed) > _NOTICE_TIME
    return False


def has_dead_owner(labels: Mapping[str, str]) -> bool:
    """Return whether a container's owner is certainly dead and no other process has taken over its private directory."""
    try:
        fd = os.open(labels.get(ROOT, "/nowhere"), DIRECTORY)
    except OSError as exc:
        owner = read_owner(labels)
        return (
            exc.errno not in _OUT_OF_RESOURCES and owner is not None and replace(owner, locked=False).has_ended
        )  # its lock is not seen
    try:
        owner = OwnerRecord.read(fd)
        return owner is not None and not has_living_owner(fd, owner) and owner.has_ended
    finally:
        os.close(fd)


def read_owner(labels: Mapping[str, str]) -> OwnerRecord | None:
    """Return the process that created a container, see ``build_labels``; None if its label is missing or invalid."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return OwnerRecord.parse(json.loads(labels[OWNER]))
    return None
