"""Kernels that serve before anybody asks: kept at a number, young and alive, and within a bound of memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from kernelexec.config import Config
from kernelexec.errors import CapacityReached, EngineFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Forks, Place, RuntimeDirectory, place_of, stored_identity
from kernelexec.provisioning.runtime.temp_dirs import remove_private
from kernelexec.session.kernels.warm_start import WarmKernel, start_with_retry
from kernelexec.session.lifecycle import TaskScope
from kernelexec.workspace import Workspace
from kernelexec.workspace.rmtree import remove_tree

logger = logging.getLogger("kernelexec")

#: Where, in the directory of workspaces, those of idle containers are, each by its executor's name and a number.
_WORKSPACES = ".pool"
#: How long it rests when a kernel did not start, in seconds: twice as long each time.
_REST, _REST_MAX = 1.0, 60.0
#: How long nothing is started when one was taken, and when it was the last, in seconds: its session has its first cells to run.
_SETTLING, _SETTLING_LAST = 0.25, 0.05
#: The share of the machine's memory that idle kernels may take, where no bound is set.
_SHARE = 4


@dataclass(eq=False)
class Slot:
    """An idle kernel, the private directory that its session will have, and what it was started with."""

    directory: Path
    place: Place
    kernel: Kernel
    environment: Mapping[str, str]
    workspace: Workspace | None
    """Of a kernel that has no other: it was there at the start, and gets its session's name. Others go to their session's."""
    since: float = field(default_factory=time.monotonic)
    memory_bytes: int = 0

    def give_directory(self) -> Path:
        """The private directory, which is the session's from now on."""
        return self.directory

    async def move(self, parent: Path, session: str) -> None:
        """Give the workspace, which is the same to the kernel, and its container, if it has one, the session's name.

        Raises:
            InvalidWorkDir: it cannot be had.
        """
        assert self.workspace is not None
        self.workspace = await anyio.to_thread.run_sync(self.workspace.moved, parent, session)
        await self.kernel.rename(session, str(self.workspace.path))


class KernelPool:
    """Has kernels ready for sessions to come, as ``config.pool`` says."""

    def __init__(self, config: Config, forks: Forks | None) -> None:
        self._config = config
        self._forks = forks
        self._options = config.pool
        self._bound = config.isolation == "container" or config.confines_kernels
        """Whether a kernel has its workspace for good: it is mounted, or nothing else may be written."""
        self._ready: deque[Slot] = deque()
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._filled = asyncio.Event()
        self._work: anyio.CancelScope | None = None
        self._ending = False
        self._waiting = 0
        """How many wait for a kernel: none of them is to wait longer."""
        self._scope: TaskScope | None = None
        self._root: Path | None = None

    @staticmethod
    def wanted(config: Config) -> bool:
        """Whether there is to be one: a container for every cell would be used up by its first."""
        return config.enabled and config.pool.size > 0 and config.container.mode == "persistent"

    def begin(self, scope: TaskScope, root: Path) -> None:
        """Fill it, in the executor's life."""
        self._scope, self._root, self._ending = scope, root, False
        self._changed, self._filled = asyncio.Event(), asyncio.Event()  # of this event loop: the one before may be another
        scope.tasks.start_soon(self._keep)

    def ask_end(self) -> None:
        """Start no more, and end those that wait."""
        self._ending = True
        if self._work is not None:
            self._work.cancel()

    async def take(self, name: str, work_dir: object) -> tuple[Slot | None, str | None]:
        """An idle kernel for a session of that name; None where it starts one itself, with the reason if it is not the policy.

        Raises:
            CapacityReached: there is none, and the policy is ``fail_fast``; or none came in time.
            InvalidWorkDir: the session's workspace cannot be had.
        """
        if self._bound and (why := self._refusal(name, work_dir)) is not None:
            return None, why
        slot = await self._next()
        if slot is not None and self._bound:
            try:
                await slot.move(self._config.workspace, name)
            except BaseException:
                await self.discard(slot)
                raise
        return slot, None

    def _refusal(self, name: str, work_dir: object) -> str | None:
        """Why a session's kernel cannot be an idle one: that has its workspace already, which gets the session's name."""
        if work_dir is not None or self._config.work_dir is not None:
            return "Its kernel started cold: an idle one has a workspace already, and another one was chosen."
        if (self._config.workspaces / name).exists():
            return "Its kernel started cold: an idle one has a workspace already, and the session's was there too."
        return None

    async def _next(self) -> Slot | None:
        """The one that has waited longest, of those that live; without one what the policy says."""
        patience = self._config.budgets.start
        try:
            with anyio.fail_after(patience):
                while (slot := await self._living()) is None and self._options.policy == "wait" and not self._ending:
                    self._filled.clear()
                    self._waiting += 1
                    try:
                        await self._filled.wait()
                    finally:
                        self._waiting -= 1
        except TimeoutError as exc:
            message = f"No idle kernel came within {patience} s (pool.policy='wait')."
            raise CapacityReached(message) from exc
        if slot is None and self._options.policy == "fail_fast":
            message = f"None of {self._options.size} idle kernels is ready (pool.policy='fail_fast'): try again later."
            raise CapacityReached(message)
        return slot

    async def _living(self) -> Slot | None:
        while self._ready:
            slot = self._ready.popleft()
            self._changed.set()
            if slot.kernel.alive:
                return slot
            await self.discard(slot)
        return None

    async def discard(self, slot: Slot) -> None:
        """End an idle kernel, and remove what is its own."""
        with anyio.CancelScope(shield=True):
            await slot.kernel.stop(0.0)
            await anyio.to_thread.run_sync(_remove, slot.directory, slot.workspace.path if slot.workspace else None)

    async def _keep(self) -> None:
        try:
            with anyio.CancelScope() as self._work:
                await self._fill()
        finally:
            while self._ready:
                await self.discard(self._ready.popleft())

    async def _fill(self) -> None:
        rest = 0.0
        while True:
            await self._drop_old()
            if self._changed.is_set() and not self._waiting:
                await anyio.sleep(_SETTLING if self._ready else _SETTLING_LAST)
            self._changed.clear()
            if len(self._ready) < self._options.size and self._has_room():
                try:
                    await self._add()
                    rest = 0.0
                    continue
                except Exception:
                    rest = min(max(_REST, rest * 2), _REST_MAX)
                    logger.exception("kernelexec.pool_not_filled", extra={"rest": rest})
            with anyio.move_on_after(rest or self._until_old()):
                await (asyncio.Event() if rest else self._changed).wait()

    async def _add(self) -> None:
        """Start one."""
        assert self._scope is not None
        assert self._root is not None
        directory, workspace = await anyio.to_thread.run_sync(self._make_directories, next(self._numbers))
        kernel = None
        try:
            own = workspace or directory
            place = await anyio.to_thread.run_sync(self._place, directory.name, own)
            environment, tasks = place.environment(), self._scope.tasks

            def make() -> Kernel:
                identity, runtime = stored_identity(directory), RuntimeDirectory(directory / "1")
                return Kernel(self._config, runtime, cwd=place.cwd, identity=identity, place=place)

            kernel = await start_with_retry(make, place, tasks, self._scope.check_open)
            await kernel.warm_up(place.cwd, self._config.preload, patience=self._config.budgets.start)
            slot = Slot(directory, place, kernel, environment, Workspace(workspace) if workspace else None)
            kernel.on_death = lambda _: self._changed.set()
            with suppress(EngineFailed):
                slot.memory_bytes = (await kernel.usage.stats()).memory_bytes or 0
        except BaseException:
            with anyio.CancelScope(shield=True):
                if kernel is not None:
                    await kernel.stop(0.0)
                await anyio.to_thread.run_sync(_remove, directory, workspace)
            raise
        self._ready.append(slot)
        self._filled.set()

    def _place(self, name: str, workspace: Path) -> Place:
        assert self._root is not None
        return place_of(self._config, session=name, workspace=workspace, root=self._root, forks=self._forks)

    def _make_directories(self, number: int) -> tuple[Path, Path | None]:
        assert self._root is not None
        directory = self._root / f"pool-{number}"
        directory.mkdir(mode=0o700)
        if not self._bound:
            return directory, None
        workspace = self._config.workspaces / _WORKSPACES / f"{self._root.name}.{secrets.token_hex(4)}"
        workspace.mkdir(parents=True)
        return directory, workspace.resolve()

    async def _drop_old(self) -> None:
        for slot in list(self._ready):
            if (not slot.kernel.alive or self._age_left(slot) <= 0) and slot in self._ready:
                self._ready.remove(slot)
                await self.discard(slot)

    def _age_left(self, slot: Slot) -> float:
        return slot.since + self._options.max_age - time.monotonic()

    def _until_old(self) -> float | None:
        return max(0.01, min(map(self._age_left, self._ready))) if self._ready else None

    def _has_room(self) -> bool:
        bound = self._options.memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE
        taken = [slot.memory_bytes for slot in self._ready]
        return sum(taken) + max(taken, default=0) <= bound


def sweep_idle(workspaces: Path, of_dead: Collection[str], bases: Iterable[Path]) -> None:
    """Remove the workspaces of idle containers whose executors have died: theirs are named, or their directories are gone."""
    parents = tuple(bases)
    with suppress(OSError):
        for path in (workspaces / _WORKSPACES).iterdir():
            executor = path.name.rpartition(".")[0]
            if executor in of_dead or not any((base / executor).exists() for base in parents):
                remove_tree(path)
        (workspaces / _WORKSPACES).rmdir()


def ready(slot: Slot | None, why: str | None) -> WarmKernel:
    """What a session is told of its idle kernel, or of the want of one."""
    if slot is None:
        return WarmKernel(notes=() if why is None else (why,))
    now, then = slot.place.environment(), slot.environment
    changed = {name: now.get(name) for name in now.keys() | then.keys() if now.get(name) != then.get(name)}
    return WarmKernel(slot.kernel, changed)


def _remove(directory: Path, workspace: Path | None) -> None:
    remove_private(directory)
    if workspace is not None:
        remove_tree(workspace)
        with suppress(OSError):
            workspace.parent.rmdir()
