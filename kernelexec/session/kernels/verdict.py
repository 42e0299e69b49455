"""What became of a cell and its kernel: watched to the end, made to end where it must, and asked for its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from kernelexec.config import Config
from kernelexec.kernel import Death, Execution, Kernel
from kernelexec.provisioning import InstalledSpec, Place
from kernelexec.results import Cause
from kernelexec.session.cells.cell_run import Verdict
from kernelexec.session.kernels.escalation import end_cell
from kernelexec.session.kernels.lost_state import Loss
from kernelexec.session.kernels.memory_notes import limit_of, say_memory

_BY_INTERRUPT = Death("killed", 130)


class Judging(ABC):
    """The part of a keeper that minds the cell in its kernel."""

    loss: Loss | None
    remarks: list[str]
    _config: Config
    _ephemeral: bool
    _installed: InstalledSpec | None
    _killing: Cause | None
    _noticed: bool
    _place: Place | None
    _stopped: bool

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

    @abstractmethod
    async def _bury(self, kernel: Kernel, *, told: bool) -> Loss: ...
