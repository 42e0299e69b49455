"""The session's kernel through all its processes: there is always one when a cell needs it, and no loss goes untold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from kernelexec.config import Config
from kernelexec.errors import Closed, KernelStartFailed
from kernelexec.events import KernelChanged, MemoryHigh
from kernelexec.kernel import Death, Execution, Kernel, Remaining
from kernelexec.provisioning import Handover, InstalledSpec, Place, RuntimeDirectory, stored_identity
from kernelexec.results import Cause, MemoryUse
from kernelexec.session.kernels.lost_state import WITH_OWNER, Loss
from kernelexec.session.kernels.verdict import Judging
from kernelexec.session.kernels.warm_start import NOT_READY, Ready, begin
from kernelexec.session.lifecycle import Life

logger = logging.getLogger("kernelexec")


class Keeper(Judging):
    """Starts, judges, replaces and ends the kernels of one session, one at a time."""

    def __init__(
        self,
        config: Config,
        session: str,
        runtime: Path,
        cwd: str,
        life: Life,
        tell: Callable[[KernelChanged | MemoryHigh], None],
        *,
        installed: InstalledSpec | None = None,
        place: Place | None = None,
    ) -> None:
        self.kernel: Kernel | None = None
        self.epoch = 0
        self.remarks: list[str] = []
        """What the next result is to say."""
        self._config = config
        self._session = session
        self._runtime = runtime
        self._cwd = cwd
        self._life = life
        self._tell = tell
        self._make = partial(Kernel, config, cwd=cwd, identity=stored_identity(runtime), installed=installed)
        self.loss: Loss | None = None
        self._killing: Cause | None = None
        self._ready = NOT_READY
        self._starting: Kernel | None = None
        self._remaining = Remaining()
        self._stopped = False
        self.renewing = False
        self._installed, self._place = installed, place
        self._noticed = False
        self._changing = anyio.Lock(fast_acquire=True)
        self._ephemeral = config.isolation == "container" and config.container.mode == "ephemeral"

    @property
    def language(self) -> str:
        """What its kernels speak."""
        return self._installed.label if self._installed else "python"

    async def ready(self) -> tuple[Kernel, Loss | None]:
        """A living kernel, as ``start`` gives it, and what was lost since the last call."""
        kernel = await self.start()
        loss, self.loss = self.loss, None
        return kernel, loss

    @property
    def is_starting(self) -> bool:
        """Whether a new kernel is on its way."""
        return self._starting is not None

    def receive(self, ready: Ready) -> None:
        """Have the first kernel be one that serves already, if there is one."""
        self._ready, self._starting = ready, ready.kernel
        self.remarks += ready.remarks

    async def limit(self, place: Place, memory_bytes: int | None, cpus: float | None) -> None:
        """Have the living kernel, or the one that is just starting, and all later ones be limited as the place says.

        Raises:
            LimitRefused: nothing changed.
        """
        async with self._changing:
            if self.kernel is not None and self.kernel.alive:
                await self.kernel.usage.limit(memory_bytes, cpus)
            self._place = place

    async def start(self) -> Kernel:
        """A living kernel: the one there is, or a new one.

        Raises:
            KernelStartFailed: see ``Kernel.start``.
            Closed: the session was closed.
        """
        async with self._changing:
            return await self._start()

    async def _start(self) -> Kernel:
        self._check_wanted()
        if self.renewing:
            self.renewing = False
            await self._forget("request")
        if self.kernel is not None and not self.kernel.alive:
            await self._bury(self.kernel, told=False)
        self._check_wanted()
        if self.kernel is None:
            self.epoch += 1
            try:
                ready, life, check, place = self._ready, self._life.tasks, self._check_wanted, self._place
                self._ready = NOT_READY
                kernel = await ready.entered(self._cwd, place) or await begin(self._new_kernel, place, life, check)
            except KernelStartFailed as exc:
                self._check_wanted()
                self._say("failed", str(exc))
                raise
            finally:
                self._starting = None
            self.kernel = self._heard(kernel)
            self._killing, self.renewing = None, False  # what was asked for meanwhile has come: this kernel is fresh
            self._say("started")
            self._check_wanted()
        return self.kernel

    async def begin(self, *, bereft: bool) -> None:
        """Have a first kernel; ``bereft`` says that the session had one before, which was killed with its owner."""
        if bereft and not self._ephemeral and self.loss is None:
            self.loss = WITH_OWNER
        await self.start()

    async def take_over(self, handover: Handover) -> Kernel | None:
        """Have a kernel that outlived its owner, as the first one; None where it cannot be had, and its loss is told."""
        self._check_wanted()
        self.epoch = handover.epoch
        kernel = self._new_kernel()
        try:
            await kernel.take_over(self._life.tasks, handover)
        except KernelStartFailed:
            logger.exception("kernelexec.kernel_not_taken_over", extra={"session": self._session})
            self._check_wanted()
            await self._bury(kernel, told=False)
            return None
        finally:
            self._starting = None
        self.kernel = self._heard(kernel)
        self._check_wanted()
        return kernel

    def _heard(self, kernel: Kernel) -> Kernel:
        kernel.on_death, kernel.usage.on_high = self._died, self._memory_high
        return kernel

    def _new_kernel(self) -> Kernel:
        remains = self._remaining.take()
        runtime = RuntimeDirectory(self._runtime / str(self.epoch), remains.runtime if remains else None)
        self._starting = self._make(runtime, place=self._place, remains=remains)
        return self._starting

    def lives(self, epoch: int) -> bool:
        """Whether the kernel of that epoch is the one that lives."""
        return self.epoch == epoch and self.kernel is not None and self.kernel.alive

    def take_late(self) -> list[Execution]:
        """Executions that have ended, and of which output came since the last call."""
        return self.kernel.take_late() if self.kernel is not None else []

    async def kill(self, cause: Cause) -> None:
        """End the kernel now, whatever it does; what ran in it is told the cause."""
        if self.kernel is not None:
            self._killing = cause
            await self.kernel.kill()

    def renew(self) -> None:
        """Have the kernel replaced before the next cell, which is told what was lost."""
        self.renewing = True

    async def _forget(self, cause: Cause) -> None:
        if self.kernel is not None:
            loss = await self._bury(self.kernel, told=False)
            self.loss = replace(loss, cause=cause)

    @property
    def culled(self) -> bool:
        """Whether the kernel was ended for want of use, and nobody has been told yet."""
        return self.kernel is None and self.loss is not None and self.loss.cause == "culled"

    async def cull(self, idle: Callable[[], bool]) -> bool:
        """End the kernel if nobody uses it, so said while no cell can get it; the next cell gets a new one, and is told."""
        async with self._changing:
            kernel = self.kernel
            if kernel is None or not kernel.alive or self._stopped or not idle():
                return False
            kernel.on_death = None
            await self._forget("culled")
            await self._remaining.drop()
            self._say("died", "culled")
            return True

    async def stop(self, patience: float) -> None:
        """End the kernel for good, politely for ``patience`` seconds, also one that is just starting."""
        self._stopped = True
        if self._starting is not None:
            await self._starting.stop(0.0)
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            self._killing = "request" if kernel.death is None else self._killing
            kernel.on_death = None
            await kernel.stop(patience)
        await self._remaining.end()

    def _check_wanted(self) -> None:
        if self._stopped:
            message = f"Session {self._session!r} is closed."
            raise Closed(message)

    async def _bury(self, kernel: Kernel, *, told: bool) -> Loss:
        await kernel.kill()
        await self._remaining.keep(kernel.take_remains())
        death = kernel.death or Death("killed", 137)
        names = tuple(sorted(kernel.names.known))
        self.loss = Loss(self._killing or death.cause, death.exit_code, names, kernel.names.count, told)
        self.kernel = None
        return self.loss

    def _died(self, death: Death) -> None:
        self._say("died", death.cause)

    def _memory_high(self, use: MemoryUse) -> None:
        self._tell(MemoryHigh(self._session, use.used_bytes, use.limit_bytes, use.biggest))

    def _say(self, change: Literal["started", "died", "failed"], cause: str | None = None) -> None:
        container = self.kernel.container if self.kernel is not None and change == "started" else None
        self._tell(KernelChanged(self._session, self.epoch, change, cause, self.language, container))
