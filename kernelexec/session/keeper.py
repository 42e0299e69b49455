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
from kernelexec.hooks import KernelChanged, MemoryHigh
from kernelexec.kernel import Death, Execution, Kernel, Remaining
from kernelexec.provisioning import Handover, InstalledSpec, Place, RuntimeDirectory, stored_identity
from kernelexec.results import Cause, MemoryUse
from kernelexec.session.ladder import end_cell
from kernelexec.session.life import Life
from kernelexec.session.loss import Loss
from kernelexec.session.shortage import limit_of, say_memory
from kernelexec.session.starting import NOT_READY, Ready, begin
from kernelexec.session.turn import Verdict

logger = logging.getLogger("kernelexec")
_BY_INTERRUPT = Death("killed", 130)


class Keeper:
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

    async def mind(self, kernel: Kernel, execution: Execution, timeout: float, *, own: bool = False) -> Verdict:
        """Watch a cell until it ends or, after ``timeout`` seconds or on request, is made to end; then judge it.

        A request of our ``own`` has a result that nobody sees: what is to be said is kept for the next cell's.
        """
        verdict = Verdict(notes=[] if own else self._told(kernel), confinement=kernel.confinement.layers)
        await execution.wait_for_turn(timeout)
        if not execution.ended.is_set():
            verdict.interrupted = "request" if execution.asked else "timeout"
            climbed = await end_cell(kernel, execution, grace=self._config.budgets.grace)
            verdict.rung, verdict.stacks = climbed.rung, climbed.stacks
        limit = limit_of(kernel.usage, self._place.isolation if self._place else "local")
        await self._judge(kernel, execution, verdict)
        say_memory(verdict, kernel.usage, limit)
        verdict.notes += kernel.take_refused()
        execution.settle()
        if self._ephemeral and verdict.state != "lost":
            loss = await self._bury(kernel, told=True)
            self.loss = None  # what is meant to be gone is no news to the next cell
            verdict.state, verdict.cause, verdict.lost_names = "lost", "culled", loss.names
            verdict.notes.append("Every cell has a container of its own (container.mode is ephemeral): no variable lasts.")
        return verdict

    def _told(self, kernel: Kernel) -> list[str]:
        remarks, self.remarks = self.remarks, []
        if self._place is not None and not self._noticed:
            self._noticed = True
            remarks += (*self._place.notices(self._installed, kernel.transport), *kernel.confinement.told)
        return remarks

    async def _judge(self, kernel: Kernel, execution: Execution, verdict: Verdict) -> None:
        """Find out, with the kernel, whether the state survived the execution; fill the verdict."""
        lingers = False
        if execution.end == "complete" and execution.asks_exit:
            verdict.notes.append("The cell asked the kernel to exit.")
            lingers = not await kernel.exits(self._config.budgets.grace * 2)
        elif await self._survives(kernel, execution, verdict):
            verdict.state = "kept"
            if kernel.programs is not None and (doubt := await kernel.programs.doubt()):
                verdict.state = "unknown"
                verdict.notes.append(doubt)
            return
        ended_by_us = verdict.rung == "kill" or (verdict.rung == "signal" and kernel.death == _BY_INTERRUPT)
        died_by_itself = kernel.death is not None and self._killing is None and not ended_by_us
        loss = await self._bury(kernel, told=True)
        verdict.state, verdict.lost_names = "lost", loss.names
        if loss.name_count > len(loss.names):
            verdict.notes.append(f"{loss.name_count} names were lost; {len(loss.names)} of them are known.")
        if self._stopped and self._killing is not None:
            verdict.interrupted = verdict.interrupted or "request"
            verdict.notes.append("The session was closed while the cell ran.")
        elif lingers and self._killing is None:
            verdict.notes.append("Its threads or exit handlers did not end in time: it was killed.")
            loss = replace(loss, cause="exited", exit_code=1)
        elif not died_by_itself:
            loss = replace(loss, cause=self._killing or verdict.interrupted or "crashed")
        self.loss, verdict.cause = loss, loss.cause
        if verdict.interrupted is None:
            verdict.exit_code = loss.exit_code
        self._killing = None

    async def _survives(self, kernel: Kernel, execution: Execution, verdict: Verdict) -> bool:
        """Whether the kernel vouches for its state, or answers at least."""
        if execution.end == "complete" and kernel.vouched(execution):
            return True
        if execution.end in ("complete", "incomplete"):
            if await kernel.settle(execution, self._config.budgets.grace):
                if execution.end == "incomplete":
                    verdict.notes.append("The kernel never said that the cell had ended; it answers again.")
                return True
            verdict.notes.append("The kernel no longer answered after the cell and was killed.")
        elif execution.end == "disconnected" and not await kernel.exits(self._config.budgets.grace * 2):
            if kernel.unseen:
                self._killing = "killed"
            why = "The container engine does not answer, and its" if kernel.unseen else "The"
            verdict.notes.append(f"{why} kernel closed its sockets: it counts as killed.")
        return False

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
