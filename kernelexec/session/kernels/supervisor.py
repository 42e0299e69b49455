"""The supervision of one kernel through all its processes: start, watch, judge, replace and end it."""

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
from kernelexec.kernel import Death, Execution, Kernel, ReuseSlot
from kernelexec.provisioning import Handover, InstalledSpec, Place, RuntimeDirectory, stored_identity
from kernelexec.results import Cause, MemoryUse
from kernelexec.session.cells.cell_run import Verdict
from kernelexec.session.kernels.escalation import escalate
from kernelexec.session.kernels.lost_state import WITH_OWNER, LostState
from kernelexec.session.kernels.memory_notes import add_memory_notes, memory_limit_text
from kernelexec.session.kernels.warm_start import NOT_READY, Ready, begin
from kernelexec.session.lifecycle import Life

logger = logging.getLogger("kernelexec")
_BY_INTERRUPT = Death("killed", 130)


class Keeper:
    """Supervises the kernels of one language in one session, one at a time.

    A cell always gets a living kernel, and every loss of state is reported once.
    """

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
        self.loss: LostState | None = None
        """Lost state that no result has reported."""
        self.remarks: list[str] = []
        """Notes for the next result."""
        self.renewing = False
        """Whether the kernel is replaced before the next cell."""
        self._config = config
        self._session = session
        self._runtime = runtime
        self._cwd = cwd
        self._life = life
        self._dispatch = tell
        self._make = partial(Kernel, config, cwd=cwd, identity=stored_identity(runtime), installed=installed)
        self._installed, self._place = installed, place
        self._killing: Cause | None = None
        self._warm = NOT_READY
        self._starting: Kernel | None = None
        self._reuse_slot = ReuseSlot()
        self._stopped = False
        self._noticed = False
        self._changing = anyio.Lock(fast_acquire=True)
        self._ephemeral = config.isolation == "container" and config.container.mode == "ephemeral"

    @property
    def language(self) -> str:
        """The language of its kernels."""
        return self._installed.label if self._installed else "python"

    @property
    def is_starting(self) -> bool:
        """Whether a new kernel is on its way."""
        return self._starting is not None

    @property
    def culled(self) -> bool:
        """Whether the kernel was ended because it was idle, and no result has reported it."""
        return self.kernel is None and self.loss is not None and self.loss.cause == "culled"

    def lives(self, epoch: int) -> bool:
        """Return whether the kernel of that epoch is the living one."""
        return self.epoch == epoch and self.kernel is not None and self.kernel.alive

    def use_warm(self, ready: Ready) -> None:
        """Use a warm kernel as the first one, if there is one."""
        self._warm, self._starting = ready, ready.kernel
        self.remarks += ready.remarks

    async def start_first(self, *, previous_lost: bool) -> None:
        """Start the first kernel; ``previous_lost`` says that an earlier one was killed with its owner."""
        if previous_lost and not self._ephemeral and self.loss is None:
            self.loss = WITH_OWNER
        await self.acquire()

    async def acquire(self) -> Kernel:
        """Return the living kernel, or a new one.

        Raises:
            KernelStartFailed: see ``Kernel.start``.
            Closed: the session was closed.
        """
        async with self._changing:
            self._check_wanted()
            if self.renewing:
                self.renewing = False
                await self._bury_with("request")
            if self.kernel is not None and not self.kernel.alive:
                await self._bury(self.kernel, reported=False)
            self._check_wanted()
            return self.kernel if self.kernel is not None else await self._start()

    async def _start(self) -> Kernel:
        self.epoch += 1
        warm, place, self._warm = self._warm, self._place, NOT_READY
        try:
            kernel = await warm.claim(self._cwd, place)
            kernel = kernel or await begin(self._new_kernel, place, self._life.tasks, self._check_wanted)
        except KernelStartFailed as exc:
            self._check_wanted()
            self._report("failed", str(exc))
            raise
        finally:
            self._starting = None
        self.kernel = self._observe(kernel)
        self._killing, self.renewing = None, False  # the new kernel fulfils all requests that came while it started
        self._report("started")
        self._check_wanted()
        return kernel

    def take_loss(self) -> LostState | None:
        """Return the lost state that no result has reported, for the result of the next cell."""
        loss, self.loss = self.loss, None
        return loss

    async def take_over(self, handover: Handover) -> Kernel | None:
        """Use a kernel that outlived its owner as the first one; return None, and report its loss, where that fails."""
        self._check_wanted()
        self.epoch = handover.epoch
        kernel = self._new_kernel()
        try:
            await kernel.take_over(self._life.tasks, handover)
        except KernelStartFailed:
            logger.exception("kernelexec.kernel_not_taken_over", extra={"session": self._session})
            self._check_wanted()
            await self._bury(kernel, reported=False)
            return None
        finally:
            self._starting = None
        self.kernel = self._observe(kernel)
        self._check_wanted()
        return kernel

    async def limit(self, place: Place, memory_bytes: int | None, cpus: float | None) -> None:
        """Apply the limits of a place to the living kernel, or the starting one, and to all later ones.

        Raises:
            LimitRefused: nothing changed.
        """
        async with self._changing:
            if self.kernel is not None and self.kernel.alive:
                await self.kernel.usage.change_limits(memory_bytes, cpus)
            self._place = place

    async def watch(self, kernel: Kernel, execution: Execution, timeout: float, *, own: bool = False) -> Verdict:
        """Wait for the end of a cell, end it after ``timeout`` seconds or on request, and judge the state after it.

        The result of an internal request (``own``) is seen by no caller: notes are kept for the next cell.
        """
        verdict = Verdict(notes=[] if own else self._take_notes(kernel), confinement=kernel.confinement.layers)
        await execution.wait_for_turn(timeout)
        if not execution.ended.is_set():
            verdict.interrupted = "request" if execution.asked else "timeout"
            escalated = await escalate(kernel, execution, grace=self._config.budgets.grace)
            verdict.rung, verdict.stacks = escalated.rung, escalated.stacks
        limit = memory_limit_text(kernel.usage, self._place.isolation if self._place else "local")
        await self._judge(kernel, execution, verdict)
        add_memory_notes(verdict, kernel.usage, limit)
        verdict.notes += kernel.take_refusals()
        execution.settle()
        if self._ephemeral and verdict.state != "lost":
            loss = await self._bury(kernel, reported=True)
            self.loss = None  # intended, so the next cell does not report it
            verdict.state, verdict.cause, verdict.lost_names = "lost", "culled", loss.names
            verdict.notes.append("Every cell has a container of its own (container.mode is ephemeral): no variable lasts.")
        return verdict

    def _take_notes(self, kernel: Kernel) -> list[str]:
        notes, self.remarks = self.remarks, []
        if self._place is not None and not self._noticed:
            self._noticed = True
            notes += (*self._place.notices(self._installed, kernel.transport), *kernel.confinement.notices)
        return notes

    async def _judge(self, kernel: Kernel, execution: Execution, verdict: Verdict) -> None:
        """Fill the verdict with the state after the execution, as checked with the kernel."""
        lingers = False
        if execution.end == "complete" and execution.asks_exit:
            verdict.notes.append("The cell asked the kernel to exit.")
            lingers = not await kernel.wait_exit(self._config.budgets.grace * 2)
        elif await self._survives(kernel, execution, verdict):
            verdict.state = "kept"
            if kernel.startup_children is not None and (doubt := await kernel.startup_children.explain_unknown_state()):
                verdict.state = "unknown"
                verdict.notes.append(doubt)
            return
        ended_by_us = verdict.rung == "kill" or (verdict.rung == "signal" and kernel.death == _BY_INTERRUPT)
        died_by_itself = kernel.death is not None and self._killing is None and not ended_by_us
        loss = await self._bury(kernel, reported=True)
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
        """Return whether the kernel confirms its state, or at least answers."""
        if execution.end == "complete" and kernel.confirms_state(execution):
            return True
        if execution.end in ("complete", "incomplete"):
            if await kernel.client.wait_until_quiet(execution, self._config.budgets.grace):
                if execution.end == "incomplete":
                    verdict.notes.append("The kernel never said that the cell had ended; it answers again.")
                return True
            verdict.notes.append("The kernel no longer answered after the cell and was killed.")
        elif execution.end == "disconnected" and not await kernel.wait_exit(self._config.budgets.grace * 2):
            if kernel.is_unreachable:
                self._killing = "killed"
            subject = "The container engine does not answer, and its" if kernel.is_unreachable else "The"
            verdict.notes.append(f"{subject} kernel closed its sockets: it counts as killed.")
        return False

    def _observe(self, kernel: Kernel) -> Kernel:
        kernel.on_death, kernel.usage.on_high = self._died, self._memory_high
        return kernel

    def _new_kernel(self) -> Kernel:
        host = self._reuse_slot.take()
        runtime = RuntimeDirectory(self._runtime / str(self.epoch), host.runtime if host else None)
        self._starting = self._make(runtime, place=self._place, host=host)
        return self._starting

    async def kill(self, cause: Cause) -> None:
        """Kill the kernel; ``cause`` is the cause in the result of the cell that runs in it."""
        if self.kernel is not None:
            self._killing = cause
            await self.kernel.kill()

    def restart_before_next(self) -> None:
        """Replace the kernel before the next cell, whose result reports the lost state."""
        self.renewing = True

    async def _bury_with(self, cause: Cause) -> None:
        if self.kernel is not None:
            loss = await self._bury(self.kernel, reported=False)
            self.loss = replace(loss, cause=cause)

    async def cull(self, idle: Callable[[], bool]) -> bool:
        """End the kernel if it is still idle once no cell can get it; the next cell gets a new one, and reports it."""
        async with self._changing:
            kernel = self.kernel
            if kernel is None or not kernel.alive or self._stopped or not idle():
                return False
            kernel.on_death = None
            await self._bury_with("culled")
            await self._reuse_slot.drop()
            self._report("died", "culled")
            return True

    async def stop(self, patience: float) -> None:
        """End the kernel for good, also one that is starting; ``patience`` seconds are for a polite shutdown."""
        self._stopped = True
        if self._starting is not None:
            await self._starting.stop(0.0)
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            self._killing = "request" if kernel.death is None else self._killing
            kernel.on_death = None
            await kernel.stop(patience)
        await self._reuse_slot.close()

    def _check_wanted(self) -> None:
        if self._stopped:
            message = f"Session {self._session!r} is closed."
            raise Closed(message)

    async def _bury(self, kernel: Kernel, *, reported: bool) -> LostState:
        await kernel.kill()
        await self._reuse_slot.put(kernel.take_host())
        death = kernel.death or Death("killed", 137)
        names = tuple(sorted(kernel.variable_names.known))
        self.loss = LostState(self._killing or death.cause, death.exit_code, names, kernel.variable_names.count, reported)
        self.kernel = None
        return self.loss

    def _died(self, death: Death) -> None:
        self._report("died", death.cause)

    def _memory_high(self, use: MemoryUse) -> None:
        self._dispatch(MemoryHigh(self._session, use.used_bytes, use.limit_bytes, use.biggest))

    def _report(self, change: Literal["started", "died", "failed"], cause: str | None = None) -> None:
        container = self.kernel.container if self.kernel is not None and change == "started" else None
        self._dispatch(KernelChanged(self._session, self.epoch, change, cause, self.language, container))
