"""The open sessions of an executor, new or adopted from dead owners, and notices of their containers."""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import CapacityReached, KernelexecError, KernelStartFailed, Refused
from kernelexec.events import Event, Hook, KernelChanged, KernelContainer, SessionAdopted, SessionClosed, SessionClosing
from kernelexec.executor.directories import ExecutorDirectories
from kernelexec.executor.notices import print_notice, print_once
from kernelexec.executor.pool import KernelPool, warm_kernel
from kernelexec.executor.resources import SessionResources, SessionStart, adopted_resources, config_of_orphan
from kernelexec.provisioning import ForkServers, platform
from kernelexec.provisioning.host.confinement_rules import hidden_paths
from kernelexec.provisioning.host.deleted_files import DeletedFileSpace
from kernelexec.provisioning.runtime.discovery import find_session_elsewhere
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.rules.policy.decisions import Approver, Validator
from kernelexec.session import AsyncSession
from kernelexec.session.features.saved_state.branches import BranchOptions, BranchStart, OpenBranch, SessionBranches
from kernelexec.session.kernels.starts import NO_WARM_KERNEL, WarmKernel
from kernelexec.session.kernels.verdict import FormerSession
from kernelexec.session.lifecycle import TaskScope, run_in_thread
from kernelexec.workspace import FileWatcher
from kernelexec.workspace.directory import has_owner

if TYPE_CHECKING:
    from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile
    from kernelexec.rules.secrets import SecretStore
    from kernelexec.session.cells.takeover import OrphanedSession


logger = logging.getLogger("kernelexec")
_FORMER_MAX = 1000
_NUMBER = re.compile(r"[0-9]+")
_SIMILAR = 0.8
#: In names that programs make; no user mistypes them.
_DIGEST = re.compile(r"[0-9a-f]{16}")
_CUT = "the kernel ({}) was killed: its threads or exit handlers had not ended after the time of budgets.grace."


class FormerSessions:
    """The newest ended sessions of an executor, which callers may take for new ones: by their name or their workspace."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, tuple[FormerSession, Path]] = OrderedDict()

    def add(self, session: AsyncSession) -> None:
        """Remember an ended session, unless no cell ran."""
        if (former := session.describe_end()) is not None:
            self._ended[session.name] = former, session.workspace
            self._ended.move_to_end(session.name)
            if len(self._ended) > _FORMER_MAX:
                self._ended.popitem(last=False)

    def find(self, name: str, resources: SessionResources, sessions: Iterable[AsyncSession]) -> FormerSession | None:
        """Return the ended or open session that a caller may confuse with the new session; the surest reason first."""
        if (ended := self._ended.get(name)) is not None:
            return ended[0]
        if resources.journal is not None and resources.journal.owner_was_closed:
            names = resources.journal.owner_names
            reason = "the session of this name before, of an earlier executor, was closed"
            return FormerSession(reason, "closed", names, len(names))
        used = {session.name: session.workspace for session in sessions if session.has_run}
        used |= {other: workspace for other, (_, workspace) in self._ended.items()}
        if resources.workspace.path in used.values():
            return FormerSession("another session works, or has worked, in this workspace, and its variables are its own")
        if any(_is_similar(name, other) for other in used):
            return FormerSession("no session of this name was open before, but one of a similar name is, or was")
        return None


def _is_similar(name: str, other: str) -> bool:
    """Return whether a name may be a misspelling of ``other``; differences in numbers are no mistakes."""
    if any(has_owner(each) or _DIGEST.search(each) for each in (name, other)):
        return False
    plain, other_plain = _NUMBER.sub("", name.casefold()), _NUMBER.sub("", other.casefold())
    return plain != other_plain and bool(difflib.get_close_matches(plain, [other_plain], cutoff=_SIMILAR))


class SessionRegistry:
    """The open sessions by name, and their creation."""

    def __init__(
        self,
        config: Config,
        directories: ExecutorDirectories,
        forks: ForkServers | None,
        hooks: Iterable[Hook],
        validators: tuple[Validator, ...] = (),
        approver: Approver | None = None,
        *,
        open_branch: OpenBranch,
    ) -> None:
        self.sessions: dict[str, AsyncSession] = {}
        self._former = FormerSessions()
        self._config = config
        self._directories = directories
        self._hooks = tuple(hooks)
        self._validators, self._approver = validators, approver
        self._pending = 0  # sessions on their way, which count against the limit as open ones do
        self._forks = forks
        self._secrets = _open_secrets(config)
        self._open_branch = open_branch
        self._pool: KernelPool | None = None
        self._watcher: FileWatcher | None = None
        self._deleted_files: DeletedFileSpace | None = None

    def start(self, scope: TaskScope) -> None:
        """Start the shared parts of sessions; called after the start of the executor."""
        with suppress(OSError):  # without it the files of workspaces are compared
            self._watcher = FileWatcher()
            track_fd(self._watcher.inotify.fd)  # forked children must not keep it open
            self._watcher.start(asyncio.get_running_loop())
        if self._config.confines_kernels and "landlock" in platform.PLATFORM.confinement:
            self._deleted_files = DeletedFileSpace.open(asyncio.get_running_loop())
        if KernelPool.is_on(self._config):
            self._pool = KernelPool(self._config, self._forks, scope, self._directories.root)

    def mask(self, text: str) -> str:
        """Return a text with masked secrets."""
        return text if self._secrets is None else self._secrets.masker.mask_text(text)

    async def create(
        self,
        name: str,
        work_dir: str | os.PathLike[str] | None,
        scope: TaskScope,
        *,
        within: Path | None = None,
        is_replay: bool = False,
    ) -> AsyncSession:
        """Create a session, with a task in the executor's scope; a cancelled caller leaves nothing behind.

        Arguments are those of ``SessionStart``.
        """
        new = SessionStart(name, work_dir, within, is_replay)
        await self._make_room()
        created: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()
        self._pending += 1  # in the turn in which there was room
        scope.tasks.start_soon(partial(self._create, new, scope, created))
        try:
            return await created
        except BaseException:  # the session may have been created in the turn in which this caller was cancelled
            if created.done() and not created.cancelled() and created.exception() is None:
                await await_to_end(created.result().close())
            raise

    async def create_branch(self, parent: SessionBranches, name: str, options: BranchOptions, scope: TaskScope) -> AsyncSession:
        """Create a session with a copy of the parent's kernel; a cancelled caller leaves nothing behind."""
        self.check_name_is_free(name)  # before the parent copies anything; ``_start_session`` checks again
        await self._make_room()
        self._pending += 1
        origin, created = None, list[SessionResources]()  # for a caller that is cancelled while a thread creates them
        try:
            origin = await parent.start(name, options)
            shared = (self._forks, self._secrets, self._watcher)
            create = partial(SessionResources.branch, name, origin, self._directories.root, parent.config, *shared)
            await await_to_end(run_in_thread(lambda: created.append(create())))
            scope.check_open()
            session = self._start_session(name, created[0], scope, parent.config, origin=origin)
        except BaseException as exc:
            for resources in created:
                resources.discard()
            if origin is not None:
                await await_to_end(origin.discard())
            if isinstance(exc, OSError):
                raise KernelStartFailed(f"Session {name!r} cannot be opened: {exc}.") from exc
            raise
        finally:
            self._pending -= 1
        return session

    async def _make_room(self) -> None:
        """At the limit, close the session whose kernel was culled first; raise ``CapacityReached`` if all are in use."""
        limit = self._config.capacity.sessions
        while (busy := len(self.sessions) + self._pending) >= limit:
            culled = [
                (since, session)
                for session in self.sessions.values()
                if (since := session.culled_at) is not None and not session.busy
            ]
            if not culled:
                raise CapacityReached(f"{busy} sessions are open, the limit is {limit}: close one first.")
            await min(culled, key=lambda entry: entry[0])[1].close()

    async def _create(self, new: SessionStart, scope: TaskScope, created: asyncio.Future[AsyncSession]) -> None:
        resources = slot = reason = None
        name = new.name
        try:
            if self._pool is not None:
                slot, reason = await self._pool.take(name, new.work_dir)
            shared = (self._forks, slot, self._secrets, self._watcher)
            create = partial(SessionResources.create, new, self._directories.root, self._config, *shared)
            resources = await anyio.to_thread.run_sync(create)
            await self._look_after_files()
            elsewhere = await anyio.to_thread.run_sync(self._find_elsewhere, name, resources)
            scope.check_open()
            if not created.cancelled():
                warm = warm_kernel(slot, reason)
                former = elsewhere or self._former.find(name, resources, self.sessions.values())
                created.set_result(self._start_session(name, resources, scope, self._config, warm, former))
                resources = slot = None
        except Exception as exc:  # noqa: BLE001 - raised in the caller
            failure = exc
            if isinstance(exc, OSError):
                failure = KernelStartFailed(f"Session {name!r} cannot be opened: {exc}.")
                failure.__cause__ = exc
            if not created.cancelled():
                created.set_exception(failure)
        finally:
            self._pending -= 1
            created.cancel()  # nothing if it is done; else this task was cancelled, and the caller must not wait for ever
            if slot is not None and self._pool is not None:
                await self._pool.discard(slot)
            if resources is not None:
                resources.discard()

    def _find_elsewhere(self, name: str, resources: SessionResources) -> FormerSession | None:
        """Return the session of the same name and workspace in another process, which a caller may believe to use."""
        other = find_session_elsewhere(name, resources.workspace.path, own_root=self._directories.root)
        if other is None:
            return None
        address = other.address if other.pid == os.getpid() else f"{name}@{other.pid}"
        reach = f'`kernelexec.attach("{address}")` and `kernelexec attach {address}` reach that one'
        return FormerSession(f"process {other.pid} has a session of this name and workspace open, with its own state; {reach}")

    async def adopt_orphans(self, scope: TaskScope) -> None:
        """Adopt the sessions of dead owners with live kernels in this workspace; discard a session after a failure."""
        for root, orphan in await self._directories.adopt_orphans():
            await self._adopt(orphan, root, scope)

    async def _adopt(self, orphan: OrphanedSessionFile, root: Path, scope: TaskScope) -> None:
        session: AsyncSession | None = None
        adopted: list[tuple[SessionResources, OrphanedSession]] = []  # for a caller that is cancelled, as in a branch
        try:
            config = config_of_orphan(orphan, self._config)
            self.check_name_is_free(orphan.name)
            adopt = partial(adopted_resources, orphan, root, config, self._secrets, self._watcher)
            await await_to_end(run_in_thread(lambda: adopted.append(adopt())))
            resources, previous = adopted[0]
            session = self._start_session(orphan.name, resources, scope, config)
            await session.open(orphan=previous)
        except BaseException as exc:
            if session is None:
                for resources, _ in adopted:
                    resources.discard()
            if not isinstance(exc, Exception):
                raise
            # Its kernel may have written anything: it ends no other session.
            is_known = isinstance(exc, KernelexecError | OSError)
            about = {"session": orphan.name, "reason": str(exc)}
            logger.error("kernelexec.session_not_adopted", extra=about, exc_info=not is_known)  # noqa: TRY400
            await self._discard_orphan(orphan, session)

    async def _discard_orphan(self, orphan: OrphanedSessionFile, session: AsyncSession | None) -> None:
        """Discard a session after a failed adoption; a further failure is only logged."""
        try:
            if session is not None:
                await session.close()
            await self._directories.discard_session(orphan)
        except Exception:
            logger.exception("kernelexec.session_not_discarded", extra={"session": orphan.name})

    def request_stop(self) -> None:
        """Ask all sessions and the shared parts to stop."""
        if self._pool is not None:
            self._pool.request_stop()
        for session in self.sessions.values():
            session.scope.request_stop()

    def clear(self) -> None:
        """Remove all sessions; called when they have ended or never started."""
        for session in list(self.sessions.values()):
            session.scope.mark_end()
            self._remove(session)

    async def _look_after_files(self) -> None:
        """Look after the files to which the kernels of a new session get rights of their own."""
        if (deleted_files := self._deleted_files) is not None:
            paths = await anyio.to_thread.run_sync(lambda: deleted_files.find(hidden_paths(self._config)))
            if paths is not None and self._deleted_files is not None:  # not closed meanwhile
                deleted_files.look_after(paths)

    async def stop_watching(self) -> None:
        """End all watches of files; the descriptor is closed in a thread, since the system takes 20 ms."""
        deleted_files, self._deleted_files = self._deleted_files, None
        if deleted_files is not None:
            deleted_files.close()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            await run_in_thread(close_fd, watcher.inotify.fd)

    def check_name_is_free(self, name: str) -> None:
        """Raise ``Refused`` if a session of this name is open."""
        if name in self.sessions:
            raise Refused(f"A session {name!r} is open already: close it first, or take another name.")

    def _start_session(
        self,
        name: str,
        resources: SessionResources,
        scope: TaskScope,
        config: Config,
        warm: WarmKernel = NO_WARM_KERNEL,
        former: FormerSession | None = None,
        origin: BranchStart | None = None,
    ) -> AsyncSession:
        """Start a session in the executor's task scope; raise ``Refused`` if another session has the name."""
        self.check_name_is_free(name)
        hooks = (ContainerNotices(quiet=config.quiet), *((resources.log,) if resources.log else ()))
        session = AsyncSession(
            name,
            resources.workspace,
            resources.runtime,
            config,
            (*hooks, *self._hooks),
            record=resources.recorder,
            journal=resources.journal,
            backend=resources.backend,
            warm_kernel=warm,
            validators=self._validators,
            approver=self._approver,
            on_close=self._remove,
            notes=resources.notes,
            changes=resources.changes,
            former=former,
            origin=origin,
            others=self.sessions.values(),
            open_branch=self._open_branch,
        )
        self.sessions[name] = session
        scope.tasks.start_soon(session.scope.run)
        return session

    def _remove(self, session: AsyncSession) -> None:
        if self.sessions.get(session.name) is session:  # the name may belong to a later session already
            del self.sessions[session.name]
            self._former.add(session)


def _open_secrets(config: Config) -> SecretStore | None:
    if not config.secrets:
        return None
    from kernelexec.rules.secrets import SecretStore  # noqa: PLC0415 - few executors have secrets

    return SecretStore(config.secrets)


class ContainerNotices:
    """A hook of a session, which prints the first container of a process and logs every start and removal of a container.

    A kernel killed at the session's end, because threads or exit handlers did not end in time, is printed too.

    With ``quiet`` nothing is printed; the logger ``kernelexec`` has the same events.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._containers: dict[str, str] = {}

    def __call__(self, event: Event, /) -> None:
        """Print what is new, and track the containers."""
        match event:
            case KernelChanged(change="started", container=KernelContainer() as container):
                self._containers[event.language] = container.name
                self._announce_container(event.session, container)
            case KernelChanged(change="died"):
                self._containers.pop(event.language, None)
            case SessionAdopted(container=KernelContainer() as container):
                self._containers["python"] = container.name
                logger.info("kernelexec.session_adopted", extra={"session": event.session, "container": container.name})
                if not self._quiet:
                    print_notice(f"session {event.session!r}: continues in its container {container.name}, whose owner died.")
            case SessionClosing() if self._containers:
                names = ", ".join(self._containers.values())
                logger.info("kernelexec.containers_removed", extra={"session": event.session, "containers": names})

            case SessionClosed(cut=(_, *_) as cut):
                logger.info("kernelexec.kernels_cut", extra={"session": event.session, "languages": ", ".join(cut)})
                if not self._quiet:
                    print_notice(f"session {event.session!r}: {_CUT.format(', '.join(cut))}")

    def _announce_container(self, session: str, container: KernelContainer) -> None:
        writable = sum(not only for *_, only in container.mounts)
        read_only = len(container.mounts) - writable
        extra = {"session": session, "container": container.name, "image": container.image, "network": container.network}
        counts = {"mounts_written": writable, "mounts_read": read_only, "sudo": container.sudo}
        logger.info("kernelexec.container_started", extra={**extra, **counts})
        if not self._quiet:
            sudo = "with sudo, " * container.sudo
            print_once("container", f"code runs in containers of {container.image}, {sudo}network: {container.network}.")
