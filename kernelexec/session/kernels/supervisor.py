"""The supervision of one kernel through all its processes: start, watch, judge, replace and end it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import Closed, InvalidRequest, KernelConnectionFailed, KernelStartFailed
from kernelexec.events import KernelChanged, KernelEvent, MemoryHigh, StateRestored
from kernelexec.kernel import Death, Execution, Kernel, ReuseSlot
from kernelexec.kernel.process import ReusableKernelHost
from kernelexec.outputs import Displays, WidgetStates
from kernelexec.provisioning import Backend, Handover, InstalledSpec, RuntimeDirectory, load_identity
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket
from kernelexec.results import Cause
from kernelexec.results.one_line import count_things
from kernelexec.session.kernels.escalation import NOTICE_SECONDS, escalate
from kernelexec.session.kernels.starts import CellRepeater, Lineage, RepeatedCells, WarmKernel, WayBack, start_with_retry
from kernelexec.session.kernels.verdict import (
    LOST_WITH_OWNER,
    Losses,
    LostState,
    Verdict,
    add_memory_notes,
    add_obstacles_note,
    confirm_state,
    describe_return,
    has_ended,
    memory_limit_text,
)
from kernelexec.session.lifecycle import TaskScope

logger = logging.getLogger("kernelexec")
_INTERRUPT_DEATH = Death("killed", 130)
#: The note on a call into compiled code, and from how many seconds on it is written.
_AWAITED = "The cell was in a call into compiled code, which no interrupt reaches: {:.1f} s were waited for its end."
_AWAITED_SECONDS = 0.5
_VISITS = "Another client has run {} in this kernel."
#: The note on an idle kernel that did not exit in time.
_CUT = "The kernel before was killed: its threads or exit handlers had not ended after {:g} s (budgets.grace)."
#: The number of newest checkpoints to try after the end of a kernel.
_MOST_TRIED = 3
#: The number of a branch's first checkpoint, the point where it branched off.
FIRST_CHECKPOINT = 1
#: The tries of running the cells since a checkpoint again; each cell with a different end costs a try.
_REPEATS_MAX = 3


class KernelSupervisor:
    """The supervisor of a language's kernels. Cells get a living kernel, at most one kernel lives, each loss is reported once.

    ``_change_lock`` guards the change from one kernel to the next.
    """

    def __init__(
        self,
        config: Config,
        session: str,
        runtime: Path,
        cwd: str,
        scope: TaskScope,
        dispatch: Callable[[KernelEvent], None],
        *,
        backend: Backend,
        installed: InstalledSpec | None = None,
    ) -> None:
        self.kernel: Kernel | None = None
        self.epoch = 0
        self.losses = Losses()
        self.lineage = Lineage()
        self.has_run = self.is_cut = False
        """Whether a kernel has run a cell; whether the last kernel was killed because of slow threads or exit handlers."""
        self.notes: list[str] = []
        """Notes for the next result."""
        self.start_notes: tuple[str, ...] = ()
        """The notes of the first result about the kernel and its place, not about the cell."""
        self.is_restart_pending = False
        """Whether a new kernel replaces this kernel before the next cell. That cell's result reports the lost state."""
        self._config = config
        self._session = session
        self._runtime = runtime
        self._cwd = cwd
        self._scope = scope
        self._dispatch = dispatch
        self._make_kernel = partial(Kernel, config, cwd=cwd, identity=load_identity(runtime), installed=installed)
        self._installed, self._backend = installed, backend
        self._kill_cause: Cause | None = None
        self._branched_after: str | None = None
        """The last cell of another session before this one branched off."""
        self.repeater: CellRepeater | None = None
        """Runs the cells since a checkpoint again; only a Python kernel has checkpoints."""
        self._warm_kernel = WarmKernel()
        self._starting_kernel: Kernel | None = None
        self._reuse_slot = ReuseSlot()
        self._shown: tuple[Displays, WidgetStates] | None = None
        """The displays and widgets of the last ended kernel. A copy of the kernel still updates these."""
        self._is_stopped = False
        self._has_sent_notices = False
        self._change_lock = anyio.Lock(fast_acquire=True)
        self._is_ephemeral = config.isolation == "container" and config.container.mode == "ephemeral"

    @property
    def language(self) -> str:
        """The language of the kernels."""
        return self._installed.label if self._installed else "python"

    @property
    def is_starting(self) -> bool:
        """Whether a new kernel is starting."""
        return self._starting_kernel is not None

    def is_alive(self, epoch: int) -> bool:
        """Return whether the kernel of an epoch is alive."""
        return self.epoch == epoch and self.kernel is not None and self.kernel.alive

    def use_warm(self, warm_kernel: WarmKernel) -> None:
        """Use a warm kernel, if any, as the first kernel."""
        # also as the starting kernel, so that ``stop`` ends a warm kernel that no cell has claimed
        self._warm_kernel, self._starting_kernel = warm_kernel, warm_kernel.kernel
        self.notes += warm_kernel.notes

    async def start_first(self, *, previous_lost: bool) -> None:
        """Start the first kernel; ``previous_lost`` is true if an earlier kernel was killed with its owner."""
        if previous_lost and not self._is_ephemeral and self.losses.lost_state is None:
            self.losses.lost_state = LOST_WITH_OWNER
        await self.acquire()

    @property
    def known_names(self) -> tuple[str, ...]:
        """The names of the user's variables in the kernel's reports so far."""
        return () if self.kernel is None else tuple(self.kernel.variable_names.known)

    async def acquire(self, way_back: WayBack | None = None) -> Kernel:
        """Return the living kernel, or start a new kernel; see ``Kernel.start`` for errors. A closed session raises ``Closed``.

        With a ``way_back``, replace the kernel by a copy of the checkpoint. A missing checkpoint raises ``InvalidRequest``.
        """
        async with self._change_lock:
            self._check_open()
            if self.is_restart_pending:
                self.is_restart_pending = False
                await await_to_end(self._end_idle("request"))  # a kernel that was asked to exit runs no further cell
            for _ in range(2):  # cells that run again may end the copy, and run no third time
                if self.kernel is not None and not self.kernel.alive:
                    await await_to_end(self._replace_dead(self.kernel))
            self._check_open()  # again: ``stop`` takes no lock, so the session may have closed during the awaits above
            if way_back is not None:
                return await self._go_back(way_back)
            if self.kernel is None and self.repeater is not None:
                self.repeater.forget_state()
            return self.kernel if self.kernel is not None else await self._start()

    async def _go_back(self, way: WayBack) -> Kernel:
        """Replace the kernel by a copy of a checkpoint. The kernel's state is lost if no copy starts."""
        kernel = self.kernel
        checkpoints = await kernel.keep_checkpoints() if kernel is not None else []
        chosen = next((checkpoint for checkpoint in checkpoints if checkpoint.number == way.number), None)
        try:
            if kernel is None or chosen is None:
                raise InvalidRequest(f"There is no checkpoint {way.number} of this session (any more).")
            kernel.on_death = None
            # a cancelled caller leaves the session with the one state or the other
            return await await_to_end(self._replace(kernel, way, chosen, checkpoints))
        finally:
            if kernel is not None:
                kernel.leave_checkpoints()

    async def _replace(
        self, kernel: Kernel, way: WayBack, chosen: CheckpointSocket, checkpoints: Sequence[CheckpointSocket]
    ) -> Kernel:
        unreported = self.losses.lost_state
        lost_state = await self._end_kernel(kernel, is_reported=False, cause="request")
        failure = await way.bring_files()  # only now: processes of the old state could write to the files meanwhile
        others = [checkpoint for checkpoint in checkpoints if checkpoint is not chosen]
        try:
            restored = await self._start_copy(chosen, checkpoints, others=others)
        except KernelStartFailed:
            self.losses.lost_state = await self._go_on(others, lost_state, kernel.next_cell, self.notes) or lost_state
            raise
        try:
            restored, way.repeated = await self._repeat_cells(restored, chosen, until=0 if failure else way.until)
        except KernelStartFailed:
            self.losses.lost_state = lost_state
            raise
        self.losses.lost_state = unreported  # the caller asked for this end, so no result reports it as a loss
        if failure is not None:
            raise failure
        return restored

    async def start_branch(
        self, host: ReusableKernelHost, uid: int, after: str, notes: Iterable[str], *, reseeds: bool
    ) -> None:
        """Start the first kernel as a copy of a checkpoint made by another session's kernel for this branch.

        Args:
            host: the directory of the checkpoint, and the provisioner of kernels there.
            uid: the user id of the checkpoint.
            after: the execution id of the other session's last cell before.
            notes: notes for the first result.
            reseeds: whether random numbers differ from those of the other session.

        Raises:
            KernelStartFailed: the copy did not start; its directory and processes are removed.
        """
        async with self._change_lock:
            self._branched_after = after
            await self._reuse_slot.put(host)
            self._check_open()
            try:
                checkpoint = await CheckpointSocket.connect(host.runtime.path, FIRST_CHECKPOINT, uid=uid)
            except KernelConnectionFailed as exc:
                raise KernelStartFailed(f"The branch cannot start: {exc}.") from exc
            try:
                await self._start_copy(checkpoint, [checkpoint], reseeds=reseeds)
            finally:
                checkpoint.close()
            self.notes += notes

    async def _repeat_cells(
        self, kernel: Kernel, checkpoint: CheckpointSocket | None, *, until: float = math.inf, is_accused: bool = False
    ) -> tuple[Kernel, RepeatedCells]:
        """Run the cells since a checkpoint again in a copy, or all cells in a new kernel, and report the restored state.

        Return the kernel. If a cell ends differently than before, return a fresh copy without the effects of the cell. In a
        branch, the parent session's cells do not count.

        Raises:
            KernelStartFailed: a cell ended differently, and no fresh copy starts.
        """
        number = 0 if checkpoint is None else checkpoint.number
        after = "" if checkpoint is None or checkpoint.after == self._branched_after else checkpoint.after
        repeated = RepeatedCells(1 if checkpoint is None else checkpoint.cell, after)
        for rest in range(_REPEATS_MAX, 0, -1):
            if self.repeater is not None:
                repeated = await self.repeater.repeat(kernel, repeated.first, after, until, is_accused=is_accused)
            if not repeated.has_failed or rest == 1 or self._is_stopped or self._kill_cause is not None:
                break
            kernel = await self._start_again(kernel, number)
        self._dispatch(StateRestored(self._session, self.epoch, number, repeated.after))
        return kernel, repeated

    async def _start_again(self, kernel: Kernel, number: int) -> Kernel:
        """Replace a copy of a checkpoint by a fresh copy, or for the number 0 by a new kernel."""
        checkpoints = await kernel.keep_checkpoints()
        try:
            await self._end_kernel(kernel, is_reported=True)
            if not number:
                return await self._start()
            chosen = [checkpoint for checkpoint in checkpoints if checkpoint.number == number]
            if not chosen:
                raise KernelStartFailed(f"Checkpoint {number} is gone.")
            return await self._start_copy(chosen[0], checkpoints)
        finally:
            kernel.leave_checkpoints()

    async def _start_copy(
        self,
        checkpoint: CheckpointSocket,
        existing: Sequence[CheckpointSocket],
        *,
        others: Sequence[CheckpointSocket] = (),
        reseeds: bool = False,
    ) -> Kernel:
        """Start a copy of a checkpoint as the kernel. A failed start leaves the checkpoints ``others`` alive."""
        self.epoch += 1
        kernel = self._new_kernel()
        kernel.checkpoint, kernel.earlier_checkpoints = checkpoint, existing
        kernel.other_checkpoints, kernel.reseeds = others, reseeds
        kernel.displays, kernel.widgets = self._shown or (kernel.displays, kernel.widgets)
        try:
            await kernel.start(self._scope.tasks)
        except BaseException as exc:
            if isinstance(exc, KernelStartFailed):
                self._report_change("failed", str(exc))
            await await_to_end(self._reuse_slot.put(kernel.take_host()))
            raise
        finally:
            self._starting_kernel = None
        self.lineage.go_to(checkpoint.number, kernel.newest_before)
        self.kernel = self._observe(kernel)
        self._report_change("started")
        return kernel

    async def _start(self) -> Kernel:
        self.epoch += 1
        warm_kernel, backend, self._warm_kernel = self._warm_kernel, self._backend, WarmKernel()
        try:
            kernel = await warm_kernel.claim(self._cwd, backend)
            kernel = kernel or await start_with_retry(self._new_kernel, backend, self._scope.tasks, self._check_open)
        except KernelStartFailed as exc:
            self._check_open()
            self._report_change("failed", str(exc))
            raise
        finally:
            self._starting_kernel = None
        self.kernel, self.lineage = self._observe(kernel), Lineage()
        self._kill_cause, self.is_restart_pending = None, False  # requests during the start got a new kernel
        self._report_change("started")
        self._check_open()
        return kernel

    async def take_over(self, handover: Handover) -> Kernel | None:
        """Use an orphaned kernel as the first kernel. After a failure return None; the next result reports the lost state."""
        self._check_open()
        self.epoch = handover.epoch
        kernel = self._new_kernel()
        try:
            await kernel.take_over(self._scope.tasks, handover)
        except KernelStartFailed:
            logger.exception("kernelexec.kernel_takeover_failed", extra={"session": self._session})
            self._check_open()
            await self._end_kernel(kernel, is_reported=False)
            return None
        finally:
            self._starting_kernel = None
        self.kernel = self._observe(kernel)
        self._check_open()
        return kernel

    async def apply_limits(self, backend: Backend, memory_bytes: int | None, cpus: float | None) -> None:
        """Apply the limits of a backend to this and all later kernels. After ``LimitRefused`` nothing has changed."""
        async with self._change_lock:
            if self.kernel is not None and self.kernel.alive:
                await self.kernel.usage.change_limits(memory_bytes, cpus)
            self._backend = backend

    async def watch(
        self, kernel: Kernel, execution: Execution, timeout: float, *, internal: bool = False, may_repeat: bool = False
    ) -> Verdict:
        """Wait for a cell's end, or end the cell, and judge the state. Notes of ``internal`` runs wait for the next cell.

        Nothing is judged if the cell ``may_repeat`` and had certainly not begun at the end of the kernel.
        """
        verdict = Verdict(notes=[] if internal else self._take_notes(kernel), confinement=kernel.confinement.layers)
        await execution.wait_for_turn(timeout)
        if not execution.ended.is_set():
            # held behind a cell of another client: SIGINT would hit that cell, so ask for a skip first
            if execution.is_held and await kernel.interrupter.request_skip(execution.msg_id, NOTICE_SECONDS):
                verdict.has_run, verdict.is_skipped, self.notes = False, True, [*verdict.notes, *self.notes]
                return verdict
            verdict.interrupted = "request" if execution.is_interrupt_requested else "timeout"
            if self._may_restore(execution):  # the last step kills
                await kernel.keep_checkpoints()
            ending = await escalate(kernel, execution, self._config.budgets)
            verdict.step, verdict.stacks = ending.step, ending.stacks
            if ending.awaited_seconds >= _AWAITED_SECONDS:
                verdict.notes.append(_AWAITED.format(ending.awaited_seconds))
        limit = memory_limit_text(kernel.usage, self._backend.isolation)
        is_asked_for = verdict.interrupted is not None or self._kill_cause is not None or self._is_stopped
        if may_repeat and not execution.has_begun and not is_asked_for:
            verdict.has_run, self.notes = False, [*verdict.notes, *self.notes]
            return verdict
        await self._judge_state(kernel, execution, verdict)
        add_memory_notes(verdict, kernel.usage, limit)
        verdict.notes += kernel.take_refusals()
        execution.settle()
        if self._is_ephemeral and verdict.state != "lost":
            lost_state = await self._end_kernel(kernel, is_reported=True)
            self.losses.lost_state = None  # intended, so that the next cell does not report it
            verdict.state, verdict.cause, verdict.lost_names = "lost", "culled", lost_state.names
            verdict.notes.append("Each cell has its own container (container.mode is ephemeral): variables are not kept.")
        return verdict

    def _take_notes(self, kernel: Kernel) -> list[str]:
        notes, self.notes, self.has_run = self.notes, [], True
        if visits := kernel.client.take_visits():
            notes.append(_VISITS.format(count_things("cell", visits)))
        if not self._has_sent_notices:
            self._has_sent_notices = True
            self.start_notes = (
                *self._backend.describe_start(self._installed, kernel.transport),
                *kernel.confinement.notices,
            )
            notes += self.start_notes
        return notes

    async def _judge_state(self, kernel: Kernel, execution: Execution, verdict: Verdict) -> None:
        """Check the state with the kernel after the execution, and enter the state into the verdict."""
        has_lingered = False
        if execution.end == "complete" and execution.asks_exit:
            verdict.notes.append("The cell asked the kernel to exit.")
            has_lingered = not await has_ended(kernel, self._config.budgets.grace)
        elif await confirm_state(kernel, execution, verdict, self._config.budgets.grace):
            verdict.state = "kept"
            kernel.leave_checkpoints()
            if kernel.startup_children is not None and (doubt := await kernel.startup_children.explain_unknown_state()):
                verdict.state = "unknown"
                verdict.notes.append(doubt)
            return
        # read before ``_end_kernel``: its kill sets ``death`` too
        ended_by_us = verdict.step == "kill" or (verdict.step == "signal" and kernel.death == _INTERRUPT_DEATH)
        died_by_itself = kernel.death is not None and self._kill_cause is None and not ended_by_us
        may_restore = self._may_restore(execution)
        checkpoints = await kernel.keep_checkpoints() if may_restore else []
        lost_state = await self._end_kernel(kernel, is_reported=True)
        verdict.state, verdict.lost_names = "lost", lost_state.names
        if lost_state.name_count > len(lost_state.names):
            verdict.notes.append(f"{lost_state.name_count} names were lost; {len(lost_state.names)} of them are known.")
        if self._is_stopped and self._kill_cause is not None:
            verdict.interrupted = verdict.interrupted or "request"
            verdict.notes.append("The session was closed while the cell ran.")
        elif has_lingered and self._kill_cause is None:
            verdict.notes.append("The kernel was killed: its threads or exit handlers did not end in time.")
            lost_state = replace(lost_state, cause="exited", exit_code=1)
        elif not died_by_itself:
            lost_state = replace(lost_state, cause=self._kill_cause or verdict.cause or verdict.interrupted or "killed")
        self.losses.lost_state, verdict.cause = lost_state, lost_state.cause
        if verdict.interrupted is None:
            verdict.exit_code = lost_state.exit_code
        self._kill_cause = None
        if may_restore:
            try:
                await self._restore(checkpoints, verdict, lost_state, kernel)
            finally:
                kernel.leave_checkpoints()

    def _may_restore(self, execution: Execution) -> bool:
        """Return whether the session goes on from a checkpoint if the kernel ends in this cell. A requested end forbids it."""
        return not (self._is_stopped or execution.asks_exit or self._kill_cause == "request" or self._is_ephemeral)

    async def _restore(
        self, checkpoints: Sequence[CheckpointSocket], verdict: Verdict, lost_state: LostState, ended: Kernel
    ) -> None:
        """Go on from a checkpoint of a kernel that ended in a cell; enter the return, or its obstacles, into the verdict."""
        if not checkpoints:
            add_obstacles_note(verdict, ended)
        async with self._change_lock:
            if self._is_stopped:
                return
            restored = await self._go_on(checkpoints, lost_state, ended.next_cell, verdict.notes)
        if restored is not None:
            verdict.state, verdict.lost_names = "restored", restored.names
            verdict.notes.append(restored.return_note)

    async def _go_on(
        self,
        checkpoints: Sequence[CheckpointSocket],
        lost_state: LostState,
        next_cell: int,
        notes: list[str],
        *,
        is_accused: bool = False,
    ) -> LostState | None:
        """Go on from the newest usable checkpoint of an ended kernel, or in a new kernel if a cell can run again there.

        Return the lost state with only the missing names, or None. Add notes on the failed checkpoints. The cells since the
        checkpoint run again; see ``CellRepeater`` for ``is_accused``.
        """
        tried = [checkpoint for checkpoint in checkpoints if self.lineage.has(checkpoint.number)][:_MOST_TRIED]
        left, kernel, origin = list(checkpoints), None, None
        for checkpoint in tried:
            left.remove(checkpoint)
            try:
                kernel = await self._start_copy(checkpoint, checkpoints, others=left if checkpoint is not tried[-1] else ())
            except KernelStartFailed as exc:
                notes.append(f"Checkpoint {checkpoint.number} could not be restored: {exc}")
                if self._is_stopped:
                    return None
                await checkpoint.drop()  # a checkpoint that failed once holds memory for nothing
            else:
                origin = checkpoint
                break
        if kernel is None and lost_state.names:
            kernel = await self._start_for_repeats(is_accused=is_accused)
        if kernel is None:
            return None
        try:
            kernel, repeated = await self._repeat_cells(kernel, origin, is_accused=is_accused)
        except (KernelStartFailed, Closed) as exc:
            notes.append(f"A cell that ran again ended otherwise than before, and no kernel without its effects started: {exc}")
            self.losses.lost_state = lost_state
            return None
        if self._is_stopped or self._kill_cause is not None:
            return None
        self.losses.lost_state = None if origin is not None or repeated.count else lost_state
        if self.losses.lost_state is not None:
            return None
        gone = tuple(name for name in lost_state.names if name not in kernel.variable_names.known)
        note = describe_return(lost_state.cause, repeated, next_cell, is_copy=origin is not None)
        return replace(lost_state, names=gone, return_note=note)

    async def _start_for_repeats(self, *, is_accused: bool) -> Kernel | None:
        """Start a new kernel if cells can run again there. Create no new container, since the result waits for the start."""
        mode, is_gone = self._config.checkpoints, self._backend.isolation == "container" and self._reuse_slot.is_empty
        if self.repeater is None or is_gone or mode not in ("auto", "each"):
            return None
        if not await self.repeater.can_begin(is_accused=is_accused):
            return None
        try:
            return await self._start()
        except (KernelStartFailed, Closed):
            return None

    async def _replace_dead(self, kernel: Kernel) -> None:
        """Replace a kernel that ended between two cells by a copy of its newest checkpoint, if any."""
        may_restore = self._kill_cause is None and not self._is_ephemeral
        try:
            checkpoints = await kernel.keep_checkpoints() if may_restore else []
            lost_state = await self._end_kernel(kernel, is_reported=False)
            if kernel.remark is not None:
                self.notes.append(kernel.remark)
            if may_restore and not self._is_stopped:
                restored = await self._go_on(checkpoints, lost_state, kernel.next_cell, self.notes, is_accused=True)
                self.losses.lost_state = restored or self.losses.lost_state
        finally:
            kernel.leave_checkpoints()

    def _observe(self, kernel: Kernel) -> Kernel:
        kernel.on_death = lambda death: self._report_change("died", death.cause)
        kernel.usage.on_high = lambda use: self._dispatch(
            MemoryHigh(self._session, use.used_bytes, use.limit_bytes, use.biggest)
        )
        return kernel

    def _new_kernel(self) -> Kernel:
        host = self._reuse_slot.take()
        runtime = RuntimeDirectory(self._runtime / str(self.epoch), host.runtime if host else None)
        self._starting_kernel = self._make_kernel(runtime, backend=self._backend, host=host)
        return self._starting_kernel

    async def kill(self, cause: Cause) -> None:
        """Kill the kernel; ``cause`` is the cause in the result of the running cell."""
        if self.kernel is not None:
            self._kill_cause = cause
            await self.kernel.kill()

    async def _end_idle(self, cause: Cause) -> None:
        """End an idle kernel after its exit handlers."""
        if (kernel := self.kernel) is None:
            return
        was_alive, kernel.on_death, seconds = kernel.alive, None, self._config.budgets.grace
        if not await kernel.ask_exit(seconds):
            self.notes.append(_CUT.format(seconds))
        await self._end_kernel(kernel, is_reported=False, cause=cause)
        if was_alive:
            self._report_change("died", cause)

    async def cull(self, is_idle: Callable[[], bool]) -> bool:
        """End the kernel if ``is_idle`` returns true under the lock. The next cell gets a new kernel and reports the change."""
        # under the lock, since a cell that is just acquiring the kernel would lose it
        async with self._change_lock:
            kernel = self.kernel
            if kernel is None or not kernel.alive or self._is_stopped or not is_idle():
                return False
            await await_to_end(self._end_idle("culled"))
            await self._reuse_slot.drop()
            return True

    async def stop(self, patience: float) -> None:
        """End the kernel for good, also a starting kernel; ``patience`` seconds are for a clean shutdown."""
        # no lock: its holder may wait long for a start; instead the holder checks the flag after its awaits
        self._is_stopped = True
        if self._starting_kernel is not None:
            await self._starting_kernel.stop(0.0)
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            self._kill_cause = "request" if kernel.death is None else self._kill_cause
            kernel.on_death = None
            self.losses.lost_state = LostState.of(kernel, "closed", 0, is_reported=False)
            self.is_cut = await kernel.stop(patience)
        await self._reuse_slot.close()

    def _check_open(self) -> None:
        if self._is_stopped:
            raise Closed(f"Session {self._session!r} is closed.")

    async def _end_kernel(self, kernel: Kernel, *, is_reported: bool, cause: Cause | None = None) -> LostState:
        """End the kernel and set the lost state, also for a cancelled caller: the next cell must not meet an ending kernel."""
        return await await_to_end(self._kill_and_set_lost(kernel, cause, is_reported=is_reported))

    async def _kill_and_set_lost(self, kernel: Kernel, cause: Cause | None, *, is_reported: bool) -> LostState:
        await kernel.kill()
        await self._reuse_slot.put(kernel.take_host())
        death = kernel.death or Death("killed", 137)
        cause = cause or self._kill_cause or death.cause
        lost_state = LostState.of(kernel, cause, death.exit_code, is_reported=is_reported)
        self.losses.add(lost_state)
        self.kernel, self._shown = None, (kernel.displays, kernel.widgets)
        return lost_state

    def _report_change(self, change: Literal["started", "died", "failed"], cause: str | None = None) -> None:
        container = self.kernel.container if self.kernel is not None and change == "started" else None
        self._dispatch(KernelChanged(self._session, self.epoch, change, cause, self.language, container))
