"""The open sessions of one executor: made in its life, of what is its own or of what a dead owner left."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from functools import partial

import anyio
import anyio.to_thread

from kernelexec.config import Config
from kernelexec.errors import CapacityReached, KernelexecError, Refused
from kernelexec.events import Hook
from kernelexec.executor_directories import Estates, as_left, heritage
from kernelexec.notices import Notices
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.pool import KernelPool, ready
from kernelexec.provisioning import Forks, platform
from kernelexec.secrets import SecretStore
from kernelexec.session import AsyncSession
from kernelexec.session.kernels.warm_start import NO_WARM_KERNEL, WarmKernel
from kernelexec.session.lifecycle import TaskScope
from kernelexec.session_resources import Belongings

logger = logging.getLogger("kernelexec")


class Roster:
    """Makes sessions, and knows those that are open by their names."""

    def __init__(
        self,
        config: Config,
        estates: Estates,
        hooks: Iterable[Hook],
        validators: tuple[Validator, ...] = (),
        approver: Approver | None = None,
    ) -> None:
        self.sessions: dict[str, AsyncSession] = {}
        self._config = config
        self._estates = estates
        self._hooks = tuple(hooks)
        self._validators, self._approver = validators, approver
        self._making = 0
        self._forks = Forks(config) if config.uses_fork_server and platform.HERE.fork_server else None
        self._secrets = SecretStore(config.secrets) if config.secrets else None
        self._pool = KernelPool(config, self._forks) if KernelPool.wanted(config) else None

    def begin(self, scope: TaskScope) -> None:
        """Called when the executor's life has begun: what sessions will share is made ready ahead of them."""
        if self._forks is not None:
            scope.tasks.start_soon(self._forks.begin, self._estates.own)
        if self._pool is not None:
            self._pool.begin(scope, self._estates.own)

    async def made(self, name: str, work_dir: str | os.PathLike[str] | None, scope: TaskScope) -> AsyncSession:
        """A session whose own life has begun. It is made in the executor's: a caller who goes away leaves nothing behind.

        Raises:
            CapacityReached: there is no room; nothing was made.
            InvalidWorkDir: see ``Belongings.make``.
        """
        await self._have_room()
        made: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()
        self._making += 1
        scope.tasks.start_soon(self._make, name, work_dir, scope, made)
        try:
            return await made
        except BaseException:
            if made.done() and not made.cancelled() and made.exception() is None:
                with anyio.CancelScope(shield=True):
                    await made.result().close()
            raise

    async def _have_room(self) -> None:
        """Have room for one more; of the sessions whose kernels were ended for want of use, the first is closed if need be.

        Raises:
            CapacityReached: there is none.
        """
        bound = self._config.capacity.sessions
        while (busy := len(self.sessions) + self._making) >= bound:
            culled = [(since, one) for one in self.sessions.values() if (since := one.culled_at) is not None and not one.busy]
            if not culled:
                message = f"{busy} sessions are open, the limit is {bound}: close one first."
                raise CapacityReached(message)
            await min(culled, key=lambda found: found[0])[1].close()

    async def _make(
        self, name: str, work_dir: str | os.PathLike[str] | None, scope: TaskScope, made: asyncio.Future[AsyncSession]
    ) -> None:
        found = slot = why = None
        try:
            if self._pool is not None:
                slot, why = await self._pool.take(name, work_dir)
            make = partial(Belongings.make, name, work_dir, self._estates.own, self._config, self._forks, slot, self._secrets)
            found = await anyio.to_thread.run_sync(make)
            scope.check_open()
            if not made.cancelled():
                made.set_result(self._begin(name, found, scope, self._config, ready(slot, why)))
                found = slot = None
        except Exception as exc:  # noqa: BLE001 - given to who asked
            if not made.cancelled():
                made.set_exception(exc)
        finally:
            self._making -= 1
            made.cancel()
            if slot is not None and self._pool is not None:
                await self._pool.discard(slot)
            if found is not None:
                found.give_up()

    async def adopt(self, scope: TaskScope) -> None:
        """Go on with the sessions of owners in this workspace that died, whose kernels live.

        One that fails is given up, and so is one whose name another one has already.
        """
        for root, left in await self._estates.inherit():
            session, found, config = None, None, as_left(left, self._config)
            try:
                self._check_free(left.name)
                found, was = await anyio.to_thread.run_sync(heritage, left, root, config, self._secrets)
                session = self._begin(left.name, found, scope, config)
                await session.open(orphan=was)
            except KernelexecError as exc:
                logger.error("kernelexec.session_not_adopted", extra={"session": left.name, "why": str(exc)})  # noqa: TRY400
                if session is not None:
                    await session.close()
                elif found is not None:
                    found.give_up()
                await self._estates.give_up(left)

    def ask_end(self) -> None:
        """Called when the executor is to end."""
        if self._forks is not None:
            self._forks.ask_end()
        if self._pool is not None:
            self._pool.ask_end()
        for session in self.sessions.values():
            session.scope.request_stop()

    async def end(self) -> None:
        """Called when all sessions have ended: what they shared ends too."""
        if self._forks is not None:
            await self._forks.end()

    def forget(self) -> None:
        """Called when all sessions have ended, or never began."""
        for session in list(self.sessions.values()):
            session.scope.mark_end()
            self._closed(session)

    def _check_free(self, name: str) -> None:
        if name in self.sessions:
            message = f"A session {name!r} is open already: close it first, or take another name."
            raise Refused(message)

    def _begin(
        self, name: str, found: Belongings, scope: TaskScope, config: Config, given: WarmKernel = NO_WARM_KERNEL
    ) -> AsyncSession:
        """A session whose life is in this one. It has the name alone: what is not known by its name could not be ended.

        Raises:
            Refused: another session has the name.
        """
        self._check_free(name)
        own = (Notices(quiet=config.quiet), *((found.log,) if found.log else ()))
        session = AsyncSession(
            name,
            found.workspace,
            found.runtime,
            config,
            (*own, *self._hooks),
            record=found.recorder,
            ledger=found.journal,
            backend=found.place,
            warm_kernel=given,
            validators=self._validators,
            approver=self._approver,
            on_close=self._closed,
        )
        self.sessions[name] = session
        scope.tasks.start_soon(session.scope.run)
        return session

    def _closed(self, session: AsyncSession) -> None:
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
