"""The pool of warm kernels: started before they are needed, within limits of number, age and memory."""

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
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import CapacityReached, EngineFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Backend, ForkServers, RuntimeDirectory, backend_for, load_identity
from kernelexec.provisioning.runtime.owned_directory import SessionDirectories
from kernelexec.session.kernels.starts import WarmKernel, start_with_retry
from kernelexec.session.lifecycle import TaskScope
from kernelexec.workspace import Workspace
from kernelexec.workspace.rmtree import remove_tree

logger = logging.getLogger("kernelexec")

#: The directory, beneath the workspaces, of the workspaces of warm containers; their names are their executor's and a token.
_WORKSPACES = ".pool"
#: The pause after a kernel did not start, in seconds; it doubles with each failure.
_PAUSE, _PAUSE_MAX = 1.0, 60.0
#: The pause after a kernel was taken, and after the last one was, in seconds: its session runs its first cells meanwhile.
_SETTLING, _SETTLING_LAST = 0.25, 0.05
#: The divisor of the machine's memory that gives the limit for all idle kernels together.
_SHARE = 4
#: The age in seconds at which an idle kernel is replaced.
_MAX_AGE = 3600.0


@dataclass(eq=False)
class WarmSlot:
    """An idle kernel, the private directory of the future session, and the environment at the kernel's start."""

    directory: Path
    backend: Backend
    kernel: Kernel
    environment: Mapping[str, str]
    workspace: Workspace | None
    """The fixed workspace of a kernel that cannot change it; it is renamed for the session. None for other kernels."""
    started_at: float = field(default_factory=time.monotonic)
    memory_bytes: int = 0

    async def move_workspace(self, parent: Path, session: str) -> None:
        """Rename workspace and container for the session, or raise ``InvalidWorkDir``; the kernel's view stays the same."""
        assert self.workspace is not None
        self.workspace = await anyio.to_thread.run_sync(self.workspace.move, parent, session)
        await self.kernel.rename(session, str(self.workspace.path))


class KernelPool:
    """Warm kernels for future sessions, as ``config.pool`` says, while the executor's task scope is open."""

    def __init__(self, config: Config, forks: ForkServers | None, scope: TaskScope, root: Path) -> None:
        self._config = config
        self._forks = forks
        self._scope, self._root = scope, root
        self._options = config.pool
        self._workspace_is_fixed = config.isolation == "container" or config.confines_kernels
        """Whether a kernel keeps its workspace for life: it is mounted, or the only writable directory."""
        self._ready: deque[WarmSlot] = deque()
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._filled = asyncio.Event()
        self._fill_scope: anyio.CancelScope | None = None
        self._ending = False
        self._waiting = 0
        """The number of callers that wait for a kernel; while it is not 0, kernels start without a pause."""
        scope.tasks.start_soon(self._run)

    @staticmethod
    def is_on(config: Config) -> bool:
        """Return whether the settings ask for a pool. Ephemeral containers are used for a single cell, and get no pool."""
        return config.enabled and config.pool.size > 0 and config.container.mode == "persistent"

    def request_stop(self) -> None:
        """Start no more kernels, stop the idle ones, and let waiting callers go on."""
        self._ending = True
        self._filled.set()
        if self._fill_scope is not None:
            self._fill_scope.cancel()

    async def take(self, name: str, work_dir: object) -> tuple[WarmSlot | None, str | None]:
        """Return a warm kernel for a session, or None for a cold start, with a reason unless the reason is the policy.

        Raises:
            CapacityReached: none is ready and the policy is ``fail_fast``, or none was ready in time.
            InvalidWorkDir: the session's workspace cannot be created.
        """
        if self._workspace_is_fixed and (reason := self._reason_for_cold_start(name, work_dir)) is not None:
            return None, reason
        slot = await self._next_slot()
        if slot is not None and self._workspace_is_fixed:
            try:
                await slot.move_workspace(self._config.workspace, name)
            except BaseException:
                await self.discard(slot)
                raise
        return slot, None

    def _reason_for_cold_start(self, name: str, work_dir: object) -> str | None:
        """Return why a session cannot use a warm kernel, whose workspace is fixed and renamed for the session."""
        if work_dir is not None or self._config.work_dir is not None:
            return "Its kernel started cold: an idle one has a workspace already, and another one was chosen."
        if (self._config.absolute_workspace / name).exists():
            return "Its kernel started cold: an idle one has a workspace already, and the session's was there too."
        return None

    async def _next_slot(self) -> WarmSlot | None:
        """Return the oldest live warm kernel; if there is none, apply ``pool.policy``."""
        timeout = self._config.budgets.start
        try:
            with anyio.fail_after(timeout):
                while (slot := await self._oldest_alive()) is None and self._options.policy == "wait" and not self._ending:
                    self._filled.clear()  # in the turn in which the pool was empty, so no kernel is missed
                    self._waiting += 1
                    try:
                        await self._filled.wait()
                    finally:
                        self._waiting -= 1
        except TimeoutError as exc:
            raise CapacityReached(f"No idle kernel came within {timeout} s (pool.policy='wait').") from exc
        if slot is None and self._options.policy == "fail_fast":
            message = f"None of {self._options.size} idle kernels is ready (pool.policy='fail_fast'): try again later."
            raise CapacityReached(message)
        return slot

    async def _oldest_alive(self) -> WarmSlot | None:
        while self._ready:
            slot = self._ready.popleft()
            self._changed.set()
            if slot.kernel.alive:
                return slot
            await self.discard(slot)
        return None

    async def discard(self, slot: WarmSlot) -> None:
        """Stop a warm kernel and remove the slot's directories."""
        await await_to_end(_discard(slot.kernel, slot.directory, slot.workspace.path if slot.workspace else None))

    async def _run(self) -> None:
        try:
            with anyio.CancelScope() as self._fill_scope:
                await self._fill()
        finally:
            while self._ready:
                await self.discard(self._ready.popleft())

    async def _fill(self) -> None:
        pause = 0.0
        while True:
            await self._discard_old()
            if self._changed.is_set() and not self._waiting:
                await anyio.sleep(_SETTLING if self._ready else _SETTLING_LAST)
            self._changed.clear()  # before the look: a change during the start of a kernel is seen in the next turn
            if len(self._ready) < self._options.size and self._has_room():
                try:
                    await self._start_kernel()
                    pause = 0.0
                    continue
                except Exception:
                    pause = min(max(_PAUSE, pause * 2), _PAUSE_MAX)
                    logger.exception("kernelexec.warm_kernel_failed", extra={"rest": pause})
            seconds_until_old = max(0.01, min(map(self._seconds_left, self._ready))) if self._ready else None
            # After a failure only the pause ends the wait: a caller that takes a kernel must not cause the next attempt.
            with anyio.move_on_after(pause or seconds_until_old):
                await (asyncio.Event() if pause else self._changed).wait()

    async def _start_kernel(self) -> None:
        """Start a kernel and add a slot to the pool."""
        directory, workspace = await anyio.to_thread.run_sync(self._make_directories, next(self._numbers))
        kernel = None
        try:
            make_backend = partial(backend_for, self._config, session=directory.name, workspace=workspace or directory)
            backend = await anyio.to_thread.run_sync(partial(make_backend, root=self._root, fork_servers=self._forks))
            environment, tasks = backend.environment(), self._scope.tasks

            def make() -> Kernel:
                identity, runtime = load_identity(directory), RuntimeDirectory(directory / "1")
                return Kernel(self._config, runtime, cwd=backend.cwd, identity=identity, backend=backend)

            kernel = await start_with_retry(make, backend, tasks, self._scope.check_open)
            await kernel.warm_up(backend.cwd, self._config.preload, patience=self._config.budgets.start)
            slot = WarmSlot(directory, backend, kernel, environment, Workspace(workspace) if workspace else None)
            kernel.on_death = lambda _: self._changed.set()
            with suppress(EngineFailed):
                slot.memory_bytes = (await kernel.usage.stats()).memory_bytes or 0
        except BaseException:
            await await_to_end(_discard(kernel, directory, workspace))
            raise
        self._ready.append(slot)
        self._filled.set()

    def _make_directories(self, number: int) -> tuple[Path, Path | None]:
        directory = self._root / f"pool-{number}"
        directory.mkdir(mode=0o700)
        if not self._workspace_is_fixed:
            return directory, None
        workspace = self._config.absolute_workspace / _WORKSPACES / f"{self._root.name}.{secrets.token_hex(4)}"
        workspace.mkdir(parents=True)
        return directory, workspace.resolve()

    async def _discard_old(self) -> None:
        for slot in list(self._ready):  # a caller may take a slot while an earlier one is discarded
            if (not slot.kernel.alive or self._seconds_left(slot) <= 0) and slot in self._ready:
                self._ready.remove(slot)
                await self.discard(slot)

    def _seconds_left(self, slot: WarmSlot) -> float:
        return slot.started_at + _MAX_AGE - time.monotonic()

    def _has_room(self) -> bool:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE
        sizes = [slot.memory_bytes for slot in self._ready]  # the next kernel may be as large as the largest of these
        return sum(sizes) + max(sizes, default=0) <= limit


def remove_orphaned_workspaces(workspaces: Path, dead_executors: Collection[str], bases: Iterable[Path]) -> None:
    """Remove the pool workspaces of dead executors: the named ones, and those without a private directory."""
    parents = tuple(bases)
    with suppress(OSError):
        for path in (workspaces / _WORKSPACES).iterdir():
            executor = path.name.rpartition(".")[0]
            if executor in dead_executors or not any((base / executor).exists() for base in parents):
                remove_tree(path)
        (workspaces / _WORKSPACES).rmdir()


def warm_kernel(slot: WarmSlot | None, reason: str | None) -> WarmKernel:
    """Return a session's warm kernel with the changes of the environment, or a note on the reason for a cold start."""
    if slot is None:
        return WarmKernel(notes=() if reason is None else (reason,))
    now, then = slot.backend.environment(), slot.environment
    changed = {name: now.get(name) for name in now.keys() | then.keys() if now.get(name) != then.get(name)}
    return WarmKernel(slot.kernel, changed)


async def _discard(kernel: Kernel | None, directory: Path, workspace: Path | None) -> None:
    if kernel is not None:
        await kernel.stop(0.0)
    await anyio.to_thread.run_sync(_remove, directory, workspace)


def _remove(directory: Path, workspace: Path | None) -> None:
    SessionDirectories(directory).leave()
    if workspace is not None:
        remove_tree(workspace)
        with suppress(OSError):
            workspace.parent.rmdir()
