"""Creation and removal of containers: image, account and name; one-shot tasks; containers of dead owners.

The containers of a dead owner are adopted by the next executor in the same workspace, or removed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.config.container import OURS
from kernelexec.docker.accounts import give_account, missing_account, write_account
from kernelexec.docker.client import Engine, ListedContainer
from kernelexec.docker.create_options import Order
from kernelexec.docker.images.recipes import how_to_get
from kernelexec.docker.labels import CLIENT, LAUNCHER_INSIDE, OWNER, ROOT, RUNTIME, SESSION, WORKSPACE
from kernelexec.errors import EngineFailed, EngineRefused, ImageMissing, KernelStartFailed
from kernelexec.launcher.protocol import ONE_SHOT_FLAG
from kernelexec.provisioning.container.mounts import Bind, find_launcher, python_of
from kernelexec.provisioning.launch.one_shot_task import TIMED_OUT, OneShotTask, TaskResult, build_result
from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile, list_orphaned_sessions
from kernelexec.provisioning.runtime.owned_directory import RECORD_FILE, OwnedDirectory, OwnerRecord, has_living_owner
from kernelexec.workspace.safe_files import DIRECTORY

#: Containers that could not be removed while the engine did not answer.
_not_removed: set[str] = set()
_NO_SOURCE = "bind source path does not exist"
logger = logging.getLogger("kernelexec")
#: Paths in the container of the task's directory and of a directory of wheels.
_DIRECTORY, _WHEELS = "/opt/kernelexec/task", "/opt/kernelexec/wheels"
_HOME = "/tmp"  # noqa: S108 - the container's own
#: How long after the end of a task the engine may report it, in seconds.
_MORE_SECONDS = 30.0
#: Errors of a process without descriptors or memory, which prove nothing about an owner.
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
#: How long after the end of a container its owner has certainly noticed the end.
_NOTICE_TIME = timedelta(minutes=10)


class DirectoryNotShared(KernelStartFailed):
    """The engine cannot mount a directory of this machine."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"The container engine does not see {path} of this machine, so its kernels cannot use it. Share that directory"
            " with the engine, run kernelexec on the engine's machine, or name another engine by DOCKER_HOST. With"
            " isolation='local' code runs here, with your rights."
        )


def create_container(engine: Engine, order: Order, name: str) -> str:
    """Create a container of the first image available here or by a pull, and return the id. For a thread.

    Raises:
        ImageMissing: no image is available; the message names each.
        KernelStartFailed: another container has the name, or the engine cannot mount a directory (``DirectoryNotShared``).
        EngineRefused, EngineUnavailable: the engine fails.
    """
    refused = []
    for image in order.options.image:
        try:
            container = _create_from_image(engine, order, name, image)
            return _add_account(engine, order, name, image, container) if order.options.needs_account else container
        except ImageMissing as exc:
            refused.append(str(exc))
        except EngineRefused as exc:
            if _NO_SOURCE in str(exc):
                raise DirectoryNotShared(str(exc).partition(_NO_SOURCE)[2].strip(": ")) from exc
            raise
    raise ImageMissing(f"{' '.join(refused)} {how_to_get(order.options.image[0])}")


def remove_container(engine: Engine, container: str) -> None:
    """Remove a container, now or when the engine answers again. For a thread."""
    try:
        engine.remove(container)
    except EngineFailed:
        logger.warning("kernelexec.container_not_removed", extra={"container": container})
        _not_removed.add(container)


def retry_removals(engine: Engine) -> None:
    """Remove the containers left by earlier failed removals. For a thread."""
    with suppress(KeyError):  # none is left; other threads may take some too
        while container := _not_removed.pop():
            remove_container(engine, container)
            if container in _not_removed:  # it has put the container back, since the engine fails again
                return


def _create_from_image(engine: Engine, order: Order, name: str, image: str) -> str:
    settings, host = order.settings() | {"image": image}, order.host()
    try:
        return _create_named(engine, name, settings, host)
    except ImageMissing:
        if image.startswith(OURS) or not order.options.pull:
            raise
        logger.info("kernelexec.image_pull_started", extra={"image": image})
        try:
            engine.pull(image)
        except EngineRefused as exc:
            raise ImageMissing(f"{str(exc).rstrip('.')}.") from exc
    return _create_named(engine, name, settings, host)


def _add_account(engine: Engine, order: Order, name: str, image: str, container: str) -> str:
    """Give the container an account for its user; with a read-only root create another container with mounted account files."""
    try:
        files = missing_account(
            engine, container, order.user, order.environment.get("HOME", "/"), own_home=bool(order.options.credentials)
        )
        if not files:
            return container
        if not order.options.read_only_root:
            give_account(engine, container, files)
            return container
        mounts = write_account(Path(order.labels[RUNTIME]).parent, files)  # code in the container cannot read it
    except BaseException:
        remove_container(engine, container)
        raise
    engine.remove(container)
    return _create_from_image(engine, replace(order, mounts=(*order.mounts, *mounts)), name, image)


def _create_named(engine: Engine, name: str, settings: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Create the container; first remove a container of ours with the same name, if ended or without a living owner."""
    try:
        return engine.create(name, settings, host)
    except EngineRefused as exc:
        if "is already in use" not in str(exc):
            raise
        existing = engine.inspect_container(name)
        if OWNER not in existing.labels:
            message = f"The container {name!r} exists and was not created by kernelexec: remove it, or choose another name."
            raise KernelStartFailed(message) from exc
        if existing.running and not has_dead_owner(existing.labels):
            message = f"The container {name!r} belongs to a living session: leave the name out, or choose another one."
            raise KernelStartFailed(message) from exc
        engine.remove(existing.id)
    return engine.create(name, settings, host)


async def run_in_container(
    task: OneShotTask,
    config: Config,
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    binds: Sequence[Bind],
    cwd: str,
) -> TaskResult:
    """Run a task with these mounts and the task's directory, and remove the container in any case.

    Raises:
        EngineFailed, KernelStartFailed: the container could not be created, or the engine does not report the end.
    """
    options, (python, runtime) = config.container, python_of(config.container)
    network = task.network if isinstance(task.network, str) else "bridge" if task.network else "none"
    wheels = [(str(task.wheels), _WHEELS, True)] if task.wheels else []
    launcher = find_launcher(Path(labels[ROOT]))
    task.write_order(workspace=cwd, confinement=None, wheels=_WHEELS if task.wheels else "")
    order = Order(
        image="",
        command=(python, "-I", LAUNCHER_INSIDE, ONE_SHOT_FLAG, _DIRECTORY),
        environment={**environment, "HOME": _HOME},
        user="{}:{}".format(*options.ids),
        cwd="/",
        mounts=(*binds, *runtime, *wheels, (launcher, LAUNCHER_INSIDE, True), (str(task.directory), _DIRECTORY, False)),
        labels=labels,
        options=options.model_copy(update={"network": network, "name": None}),
        limits=config.limits,
    )
    with Engine.acquire() as engine:
        name = f"kernelexec-task-{secrets.token_hex(4)}"
        try:
            # The removal below is by name: a cancelled creation may have succeeded, and its id is lost.
            container = await await_to_end(anyio.to_thread.run_sync(create_container, engine, order, name))
            await anyio.to_thread.run_sync(engine.start, container)
            code, bound = None, task.seconds + _MORE_SECONDS
            with anyio.move_on_after(task.seconds):
                code = await anyio.to_thread.run_sync(engine.wait, container, bound, abandon_on_cancel=True)
            output = await anyio.to_thread.run_sync(engine.output, container)
        finally:
            await await_to_end(anyio.to_thread.run_sync(remove_container, engine, name))
    return build_result(task, TIMED_OUT if code is None else code, output)


@dataclass(frozen=True, slots=True)
class OrphanedRoot:
    """A dead owner's private directory, now owned by this process, and the sessions with living kernels."""

    root: OwnedDirectory
    sessions: tuple[OrphanedSessionFile, ...]


def adopt_orphans(config: Config) -> list[OrphanedRoot]:
    """Take over private directories of dead owners in a workspace. For a thread; may raise ``EngineFailed``."""
    workspace = str(config.absolute_workspace)
    with Engine.acquire() as engine:
        containers = engine.list_containers(f"{WORKSPACE}={workspace}")
        orphans = []
        for path in dict.fromkeys(each.labels.get(ROOT, "") for each in containers if _waits_for_owner(each)):
            # The lock of the directory decides between several executors that adopt at once; containers have no lock.
            root = OwnedDirectory.take_over(Path(path)) if path else None
            if root is not None:
                its = [each for each in containers if each.labels.get(ROOT) == path]
                orphans.append(OrphanedRoot(root, _find_waiting_sessions(engine, root, its)))
    return orphans


def _find_waiting_sessions(
    engine: Engine, root: OwnedDirectory, containers: list[ListedContainer]
) -> tuple[OrphanedSessionFile, ...]:
    """Return the sessions with a container waiting for a new owner; remove the root's other containers."""
    lives = {each.id for each in containers if each.running}
    sessions = tuple(left for left in list_orphaned_sessions(root.path) if left.handover.provisioner.get("container") in lives)
    wanted = {left.handover.provisioner.get("container") for left in sessions}
    for container in containers:
        if container.id not in wanted:  # it has ended, or waits in vain: without a handover file it was never ready
            _remove(engine, container)
    return sessions


def discard(session: OrphanedSessionFile) -> None:
    """Remove the container of a session that cannot continue, as far as the engine allows. For a thread."""
    container_id = session.handover.provisioner.get("container")
    with suppress(EngineFailed), Engine.acquire() as engine:
        for container in engine.list_containers(OWNER):
            if container.id == container_id:
                _remove(engine, container)


def sweep_containers(config: Config, stop: threading.Event) -> frozenset[str]:
    """Remove containers of dead owners; return the directories of containers waiting for a new owner. For a thread.

    A kernel waiting in vain ends by itself, and the next start removes the container. A waiting container without a visible
    directory may have a new owner elsewhere. If the life of an owner is unknown, because the owner or this process is in a
    container, running containers are left, and ended containers are removed after 10 minutes. May raise ``EngineFailed``.
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
            wanted = config.container.orphan_seconds > 0 or container.labels.get(WORKSPACE) != own_workspace
            if not (_waits_for_owner(container) and wanted):
                _remove(engine, container)
            elif os.path.exists(Path(root, RECORD_FILE)):  # noqa: PTH110 - also false without permission
                waiting.add(root)
    return frozenset(waiting)


def remove_leftovers(engine: Engine) -> None:
    """Remove dead owners' containers with kernels for other programs, as far as the engine allows. For a thread."""
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
    """Return whether the kernel would wait for a new owner after the owner's death."""
    return container.running and CLIENT not in container.labels


def _is_orphan(engine: Engine, container: ListedContainer) -> bool:
    """Return whether no living owner uses a container any more, as far as known."""
    return has_dead_owner(container.labels) or _ended_long_ago(engine, container)


def _ended_long_ago(engine: Engine, container: ListedContainer) -> bool:
    """Return whether a container of an owner hidden from here ended, or was created without a start, 10 minutes ago."""
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
    """Return whether a container's owner is certainly dead and no other process has taken over the private directory."""
    try:
        fd = os.open(labels.get(ROOT, "/nowhere"), DIRECTORY)
    except OSError as exc:
        owner = read_owner(labels)
        return (
            exc.errno not in _OUT_OF_RESOURCES and owner is not None and replace(owner, locked=False).has_ended
        )  # its lock is not seen
    try:
        # The record in the directory, not the label: after an adoption it names the new owner, and labels cannot be changed.
        owner = OwnerRecord.read(fd)
        return owner is not None and not has_living_owner(fd, owner) and owner.has_ended
    finally:
        os.close(fd)


def read_owner(labels: Mapping[str, str]) -> OwnerRecord | None:
    """Return the creator of a container (``build_labels``); None if the label is missing or invalid."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return OwnerRecord.parse(json.loads(labels[OWNER]))
    return None
