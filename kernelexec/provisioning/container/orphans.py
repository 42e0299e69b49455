"""Containers whose owners died: the next executor in the same workspace takes them over, or they are removed."""

from __future__ import annotations

import errno
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
from kernelexec.provisioning.owner_labels import owner_of
from kernelexec.provisioning.runtime.discovery import LeftSession, left_sessions
from kernelexec.provisioning.runtime.owned_directory import RECORD, Owner, Root, is_held
from kernelexec.workspace.rmtree import DIRECTORY

#: Errors of this process, without descriptors or memory, which say nothing of an owner.
_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: How long after the end of a container its owner has certainly noticed it, in seconds.
_NOTED = timedelta(minutes=10)
logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class Estate:
    """A dead owner's private directory, which this process owns now, and its sessions with living kernels."""

    root: Root
    sessions: tuple[LeftSession, ...]


def inherit(config: Config) -> list[Estate]:
    """Take over the private directories of dead owners in the workspace of ``config``, each by one process. Called in a thread.

    Raises:
        EngineFailed: the engine does not answer.
    """
    workspace = str(config.workspaces)
    with Engine.acquire() as engine:
        there = engine.list_containers(f"{WORKSPACE}={workspace}")
        estates = []
        for path in dict.fromkeys(found.labels.get(ROOT, "") for found in there if _waits(found)):
            root = Root.take_over(Path(path)) if path else None
            if root is not None:
                its = [found for found in there if found.labels.get(ROOT) == path]
                estates.append(Estate(root, _going_on(engine, root, its)))
    return estates


def _going_on(engine: Engine, root: Root, there: list[ListedContainer]) -> tuple[LeftSession, ...]:
    """Return the sessions whose containers wait for a new owner; others wait in vain, as they were never ready."""
    lives = {found.id for found in there if found.running}
    sessions = tuple(left for left in left_sessions(root.path) if left.handover.provisioner.get("container") in lives)
    wanted = {left.handover.provisioner.get("container") for left in sessions}
    for found in there:
        if found.id not in wanted:
            _remove(engine, found)
    return sessions


def give_up(left: LeftSession) -> None:
    """Remove the container of a session that cannot continue, as far as the engine allows. Called in a thread."""
    container = left.handover.provisioner.get("container")
    with suppress(EngineFailed), Engine.acquire() as engine:
        for found in engine.list_containers(OWNER):
            if found.id == container:
                _remove(engine, found)


def sweep_containers(config: Config, stop: threading.Event) -> frozenset[str]:
    """Remove containers of dead owners and their directories, but for containers that wait for a new owner. Called in a thread.

    A kernel that waits in vain ends by itself and the next start removes it; one whose directory is not visible may have a
    new owner elsewhere. If it is unknown whether an owner lives (it or this process is in a container), running containers are
    left, and ended ones are removed after a while.

    Raises:
        EngineFailed: the engine does not answer.
    """
    waiting = set()
    own = str(config.workspaces)
    with Engine.acquire() as engine:
        for found in engine.list_containers(OWNER):
            if stop.is_set():
                break
            if not _is_nobodys(engine, found):
                continue
            root = found.labels.get(ROOT, "")
            wanted = config.container.adopt or found.labels.get(WORKSPACE) != own
            if not (_waits(found) and wanted):
                _remove(engine, found)
            elif os.path.exists(Path(root, RECORD)):  # noqa: PTH110 - false too where nobody may look
                waiting.add(root)
        networks.delete_network(engine)
    return frozenset(waiting)


def remove_leftovers(engine: Engine) -> None:
    """Remove containers of dead owners that are kernels of other programs, as far as the engine allows. Called in a thread."""
    with suppress(EngineFailed):
        for found in engine.list_containers(CLIENT):
            if _is_nobodys(engine, found):
                _remove(engine, found)


def _remove(engine: Engine, found: ListedContainer) -> None:
    try:
        engine.remove(found.id)
    except EngineFailed:
        logger.warning("kernelexec.container_left", extra={"container": found.id})
        return
    logger.info("kernelexec.container_swept", extra={"container": found.id, "session": found.labels.get(SESSION)})


def _waits(found: ListedContainer) -> bool:
    """Return whether its kernel waits for a new owner when its own has died; a kernel with a lease ends instead."""
    return found.running and CLIENT not in found.labels and found.labels.get(HELD_BY) != "lease"


def _is_nobodys(engine: Engine, found: ListedContainer) -> bool:
    """Return whether no living owner uses a container any more, as far as that can be known."""
    return abandoned(found.labels) or _ended_long_ago(engine, found)


def _ended_long_ago(engine: Engine, found: ListedContainer) -> bool:
    """Return whether a container ended, or was created without a start, long ago, and its owner cannot be checked from here."""
    here, owner = Owner.this(locked=False), owner_of(found.labels)
    judged = owner is None or (owner.started and (owner.boot, owner.pid_namespace) == (here.boot, here.pid_namespace))
    if found.running or judged:
        return False
    with suppress(EngineFailed, ValueError, TypeError):  # it is gone, or what the engine says of it is no time
        return datetime.now(UTC) - datetime.fromisoformat(engine.inspect_container(found.id).changed) > _NOTED
    return False


def abandoned(labels: Mapping[str, str]) -> bool:
    """Return whether a container's owner is certainly dead and no other process has taken over its private directory."""
    try:
        fd = os.open(labels.get(ROOT, "/nowhere"), DIRECTORY)
    except OSError as exc:
        owner = owner_of(labels)
        return exc.errno not in _OUT and owner is not None and replace(owner, locked=False).gone  # its lock is not seen
    try:
        owner = Owner.of(fd)
        return owner is not None and not is_held(fd, owner) and owner.gone
    finally:
        os.close(fd)
