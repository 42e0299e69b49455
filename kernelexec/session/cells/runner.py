"""The run of a cell in five steps: approve, acquire a kernel, send, watch, build the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config, check_seconds
from kernelexec.errors import Closed, KernelNotAnswering
from kernelexec.events import CellStarted, DisplayUpdated, Event, Hook, OutputReceived
from kernelexec.kernel import Execution, Kernel
from kernelexec.outputs import Collector, feed_result
from kernelexec.results import ExecutionResult, Output
from kernelexec.session.cells.approval import CellApproval
from kernelexec.session.cells.cell_requests import answer_input_requests, serve_command
from kernelexec.session.cells.cell_run import CellRun, OnOutput
from kernelexec.session.cells.idempotency import RequestIds
from kernelexec.session.cells.result_builder import ResultMasking, build_result, build_unknown_result
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.kernels.supervisor import KernelSupervisor
from kernelexec.session.kernels.verdict import (
    FormerSession,
    LostState,
    Verdict,
    judge_death,
    report_lost_state,
    report_new_state,
)
from kernelexec.session.lifecycle import TaskScope, run_in_thread
from kernelexec.workspace import DisplayFiles, FileChanges, SpillFile, Workspace

if TYPE_CHECKING:
    from kernelexec.session.cells.result_cache import CellResultCache

logger = logging.getLogger("kernelexec")
#: The size of the file with a cell's streams beyond ``output.stream_bytes``.
SPILL_BYTES = 256 * 1024 * 1024
#: The size of all files of a cell's displays in the workspace.
_FILES_BYTES = 256 * 1024 * 1024
_SKIPPED = "Cancelled while it waited for a cell of another client of its kernel."
_RESTARTED = "The kernel was restarted before the cell was sent."

_FROM_CACHE = "From the cache: the cell did not run, so `_` and `Out` do not have its value."


@dataclass(slots=True)
class SessionSettings:
    """The current configuration of a session. ``set_limits`` replaces the configuration."""

    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The state of a session for its runs, from the queue to the result."""

    name: str
    isolation: str
    workspace: Workspace
    """The workspace; ``workspace_path`` is its path on this machine."""
    runtime_dir: Path
    """The session's private directory."""
    settings: SessionSettings
    scope: TaskScope
    kernels: LanguageKernels
    approval: CellApproval
    requests: RequestIds
    masking: ResultMasking
    dispatch: Callable[[Event], None]
    """Passes an event to all hooks."""

    @property
    def config(self) -> Config:
        """The current configuration."""
        return self.settings.config

    @property
    def workspace_path(self) -> Path:
        """The workspace's path on this machine."""
        return self.workspace.path

    def choose_timeout(self, timeout: float | None) -> float:
        """Return the seconds for a cell: the configuration's for None. An invalid number raises ``InvalidTimeout``."""
        return self.config.budgets.timeout if timeout is None else check_seconds(timeout, "timeout")

    def make_run(self, cell: Cell, timeout: float, **options: Any) -> CellRun:  # noqa: ANN401 - further fields of ``CellRun``
        """Return a run of a cell in this session."""
        masked_cell = self.masking.mask_cell(cell)
        return CellRun(cell=cell, masked_cell=masked_cell, timeout=timeout, isolation=self.isolation, **options)


@dataclass(frozen=True, slots=True)
class CellRunner:
    """The runner of a session's cells. Cells run in sequence."""

    context: RunContext
    result_cache: CellResultCache | None
    changes: FileChanges
    dispatch_output: Callable[[Event], None] | None
    """Passes an output to the hooks for outputs, if any."""

    async def run(self, run: CellRun) -> ExecutionResult | str:
        """Run a cell: approve the cell, acquire a kernel, send, watch and build the result.

        Return the result, or the reason for not sending the cell. After an error nothing ran.
        """
        if not run.in_flight:
            run.timestamps.dequeued = time.monotonic()
        approval = self.context.approval
        if approval.asks:
            with run.approval_scope:
                if (refusal := await approval.check(run)) is not None:
                    return refusal
            if run.approval_scope.cancelled_caught:
                return "Cancelled during its approval."

        is_prepared = run.prepare is not None or run.choose_checkpoint is not None  # for one kernel only
        return await self._run_in_kernel(run, may_repeat=not run.in_flight and not is_prepared)

    async def _run_in_kernel(self, run: CellRun, *, may_repeat: bool) -> ExecutionResult | str:
        """Run an approved cell. If it ``may_repeat``, run it once more after an earlier cell ended the kernel first."""
        context, supervisor = self.context, self.context.kernels.get_supervisor(run.cell)
        with run.startup_scope:
            kernel = await self._acquire_kernel(run, supervisor)
        if run.startup_scope.cancelled_caught:
            return "Cancelled while its kernel started."
        # before the cell is sent: a loss during the cell is part of its own verdict
        lost_state, former = (None, None) if run.internal else supervisor.losses.take(by_client=run.by_client)
        with ExitStack() as unreported:
            # without a result with the losses, as on a full disk, the next result has to report them
            unreported.callback(supervisor.losses.give_back, lost_state, former)
            result_cache = self.result_cache if supervisor is context.kernels.python else None
            if result_cache is not None and not run.in_flight:
                # also for cells without the cache: ``find`` begins the cell in the chain, ``record`` ends it
                cached_result = await result_cache.find(run, supervisor.epoch, kernel)
                if cached_result is not None and lost_state is None:
                    return await self._return_cached_result(result_cache, run, supervisor, cached_result, former, unreported)

            execution = await self._send(run, supervisor, kernel)
            if not isinstance(execution, Execution):
                return execution

            seconds = context.config.budgets.approval
            async with (
                answer_input_requests(run, kernel, execution, session=context.name, seconds=seconds),
                serve_command(run, kernel, execution, cwd=context.kernels.backend.cwd),
            ):
                seconds = self._compute_remaining_seconds(run)
                verdict = await supervisor.watch(kernel, execution, seconds, internal=run.internal, may_repeat=may_repeat)
            if not verdict.has_run:
                unreported.close()  # now, so that the run in the next kernel reports the losses
                if (outcome := await self._run_elsewhere(run, kernel, verdict)) is not None:
                    return outcome
            run.timestamps.ended = time.monotonic()

            if not run.internal and self.changes.is_slow:
                await run_in_thread(self.changes.gather)
            result = self._build_result(run, supervisor, kernel, verdict, lost_state, former)
            unreported.pop_all()
        if run.by_client:
            supervisor.losses.note_client_result(result)
        if result_cache is not None:
            await result_cache.record(run, result, kernel)
        return context.masking.mask_result(result)

    async def _run_elsewhere(self, run: CellRun, kernel: Kernel, verdict: Verdict) -> ExecutionResult | str | None:
        """Run an unstarted cell in the next kernel, or skip it; return None if the session was closed meanwhile."""
        if verdict.is_skipped:
            run.execution = None
            return _SKIPPED
        try:
            return await self._run_in_kernel(run, may_repeat=False)
        except Closed:  # meanwhile: the death is what the result has to report
            judge_death(kernel, verdict)
            return None

    async def _acquire_kernel(self, run: CellRun, supervisor: KernelSupervisor) -> Kernel:
        kernel = await supervisor.acquire(None if run.choose_checkpoint is None else await run.choose_checkpoint())
        if run.prepare is not None:
            run.cell = CodeCell(await run.prepare(kernel))
        return kernel

    async def _send(self, run: CellRun, supervisor: KernelSupervisor, kernel: Kernel) -> Execution | ExecutionResult | str:
        """Send a cell, or resume the cell of a previous owner; return a result or a reason on failure."""
        context = self.context
        make_collector = partial(
            self._make_collector_factory(),
            displays=kernel.displays,
            widgets=kernel.widgets,
            on_update=lambda *update: context.dispatch(DisplayUpdated(context.name, *update)),
        )
        run.collector = self._make_collector(run, make_collector)
        late_collector = make_collector(context.config.output.late, on_output=self._make_output_callback(run, None))
        if run.in_flight:
            run.execution = await self._resume(run, supervisor, kernel, run.collector, late_collector)
            if run.execution is None:
                return build_unknown_result(run, context.name, supervisor.epoch)
        else:
            if not run.timestamps.sent:  # else it is sent again
                await self._announce(run, supervisor)
            # ``_announce`` may have waited for the disk, and a restart in that time must not run the cell in the old kernel;
            # between this check and ``submit`` nothing is awaited
            if supervisor.is_restart_pending:
                return _RESTARTED
            run.timestamps.sent = time.monotonic()
            run.execution = kernel.submit(
                run.cell.request,
                run.collector,
                late_collector,
                counted=not run.internal,
                overruled=run.internal or run.rules_overridden,
                msg_id=run.execution_id,
                asks=run.on_input is not None,
            )
        if run.interrupt_requested:  # requested before there was an execution to pass the request to
            run.execution.ask_interrupt()
        return run.execution

    def _build_result(
        self,
        run: CellRun,
        supervisor: KernelSupervisor,
        kernel: Kernel,
        verdict: Verdict,
        lost_state: LostState | None,
        former: FormerSession | None,
    ) -> ExecutionResult:
        report_new_state(verdict, None if lost_state is not None else former)
        report_lost_state(verdict, lost_state, supervisor.epoch)
        verdict.notes[:0] = run.notes
        if kernel.remark is not None and not run.internal:
            verdict.notes.append(kernel.remark)
            kernel.remark = None
        files = (lambda *_: ()) if run.internal else partial(self._collect_files, verdict)
        return build_result(
            run,
            verdict,
            session=self.context.name,
            epoch=supervisor.epoch,
            files=files,
            networked=self.context.config.has_network,
            missing=supervisor.losses.list_missing(supervisor.kernel),
        )

    async def _return_cached_result(
        self,
        result_cache: CellResultCache,
        run: CellRun,
        supervisor: KernelSupervisor,
        cached_result: ExecutionResult,
        former: FormerSession | None,
        unreported: ExitStack,
    ) -> ExecutionResult | str:
        """Return a stored result as the result of a run, and report the result to the hooks. The cell does not run.

        Once the result reports ``former``, ``unreported`` has no callbacks.
        """
        await self._announce(run, supervisor)
        if supervisor.is_restart_pending:
            return _RESTARTED
        run.timestamps.sent = run.timestamps.ended = time.monotonic()
        run.collector = self._make_collector(run, self._make_collector_factory())
        feed_result(run.collector, cached_result)
        result_cache.record_hit(run)
        verdict = Verdict(state="kept", notes=[_FROM_CACHE, *run.notes])
        report_new_state(verdict, former)
        unreported.pop_all()
        result = replace(
            cached_result,
            execution_id=run.execution_id,
            session=self.context.name,
            kernel_epoch=supervisor.epoch,
            state=verdict.state,
            cause=verdict.cause,
            lost_names=verdict.lost_names,
            notes=tuple(verdict.notes),
            timing=run.timestamps.timing(),
            cached=True,
        )
        return self.context.masking.mask_result(result)

    def _make_collector_factory(self) -> Callable[..., Collector]:
        """Return the constructor of a cell's two collectors. Both share the masking of secrets."""
        secrets = self.context.masking.secrets
        if secrets is None:
            return Collector
        from kernelexec.outputs.masked_collector import MaskedCollector, StreamMasking  # noqa: PLC0415 - as secrets are rare

        return partial(MaskedCollector, StreamMasking(secrets.masker))

    def _make_collector(self, run: CellRun, factory: Callable[..., Collector]) -> Collector:
        output = self.context.config.output
        run.spill = SpillFile(self.context.runtime_dir / "out" / run.execution_id, SPILL_BYTES)
        return factory(output, spill=run.spill, on_output=self._make_output_callback(run, run.deliver_output))

    def _collect_files(self, verdict: Verdict, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """Return the files written by a cell, and the files of its displays; add a note if some may be missing."""
        saver = DisplayFiles(self.context.workspace_path, _FILES_BYTES if self.context.config.save_displays else 0)
        saved = saver.save(cell, outputs)
        changed = self.changes.changes(saved)
        verdict.notes += [note for note in (saver.note, self.changes.note) if note is not None]
        return tuple(dict.fromkeys((*changed, *saved)))

    async def _announce(self, run: CellRun, supervisor: KernelSupervisor) -> None:
        """Report the start of a cell to the hooks; write the journal to the disk if the request has an id."""
        context = self.context
        if not run.internal:
            epoch, name = supervisor.epoch, run.request_id
            context.dispatch(CellStarted(context.name, run.execution_id, run.masked_cell, epoch, name, run.timeout))
        elif supervisor.repeater is not None and not run.keeps_variables and run.choose_checkpoint is None:
            supervisor.repeater.note_change()
        # after the dispatch: the journal is a hook, so only now it has the line of this cell to write to the disk
        if run.request_id is not None:
            await context.requests.fsync(run.request_id)

    async def _resume(
        self, run: CellRun, supervisor: KernelSupervisor, kernel: Kernel, collector: Collector, late_collector: Collector
    ) -> Execution | None:
        """Resume the cell of a previous owner; kill the kernel and return None if no answer comes."""
        seconds = max(self._compute_remaining_seconds(run), self.context.config.budgets.start)
        try:
            return await kernel.client.resume(run.execution_id, collector, late_collector, patience=seconds)
        except KernelNotAnswering:
            logger.exception("kernelexec.cell_resume_failed", extra={"session": self.context.name})
            await supervisor.kill("timeout")
            return None

    def _compute_remaining_seconds(self, run: CellRun) -> float:
        """Return the remaining seconds of a run; a run in flight gets at least the time to send its output so far."""
        if not run.in_flight:
            return run.timeout
        return max(run.timeout - (time.monotonic() - run.timestamps.sent), self.context.config.budgets.grace)

    def _make_output_callback(self, run: CellRun, callback: OnOutput | None) -> OnOutput | None:
        """Return a callback to pass outputs to the hooks first, if any hook wants outputs."""
        dispatch = self.dispatch_output
        if dispatch is None or run.internal:
            return callback

        def pass_on(output: Output) -> None:
            dispatch(OutputReceived(self.context.name, run.execution_id, output))
            if callback is not None:
                callback(output)

        return pass_on


def make_dispatcher(session: str, hooks: Iterable[Hook]) -> Callable[[Event], None]:
    """Return a function to pass an event to all hooks; errors of hooks are logged."""
    all_hooks = tuple(hooks)

    def dispatch(event: Event) -> None:
        for hook in all_hooks:
            try:
                hook(event)
            except BaseException:  # SystemExit too, which would end the event loop with all sessions
                logger.exception("kernelexec.hook_failed", extra={"session": session, "event": type(event).__name__})

    return dispatch
