"""The run of one cell in its kernel, from its approval to its finished result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelexec.config import Config
from kernelexec.errors import KernelNotAnswering
from kernelexec.events import CellStarted, DisplayUpdated, Event, Hook, OutputHeard
from kernelexec.kernel import Execution, Kernel
from kernelexec.outputs import Collector, MaskedCollector, Veil, feed
from kernelexec.results import ExecutionResult, Output
from kernelexec.secrets import SecretStore
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import OnOutput, Turn, Verdict
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.masking import sealed
from kernelexec.session.cells.result_builder import build_result, unknown_result
from kernelexec.session.cells.result_cache import FROM_CACHE, CachedResults
from kernelexec.session.cells.stdin import answer_input_requests
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.kernels.lost_state import LostState, report_lost_state
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.workspace import DisplayFiles, SpillFile, Watch

logger = logging.getLogger("kernelexec")
_RESTARTED = "Its kernel was restarted before it was sent."


class Runner:
    """Runs the cells of one session, one at a time."""

    def __init__(
        self,
        session: str,
        config: Config,
        kernels: Kernels,
        *,
        workspace: Path,
        spills: Path,
        notebook: Path | None,
        requests: Requests,
        secrets: SecretStore | None,
        tell: Callable[[Event], None],
        tell_output: Callable[[Event], None] | None = None,
        approval: Permission,
        caching: CachedResults | None = None,
    ) -> None:
        self._session = session
        self._config = config
        self._approval = approval
        self._caching = caching
        self._kernels = kernels
        self._workspace = workspace
        self._spills = spills
        self._requests = requests
        self._secrets = secrets
        self._dispatch = tell
        self._dispatch_output = tell_output
        self._changes = Watch(workspace, ignore=frozenset({notebook.name} if notebook else ()))

    async def run(self, run: Turn) -> ExecutionResult | str:
        """Run a cell: approve it, acquire a kernel, send it, watch it and build its result.

        Returns:
            The result, or the reason why the cell was not sent.

        Raises:
            KernelStartFailed, KernelConnectionFailed, Refused: nothing ran.
        """
        if not run.in_flight:
            run.clock.turn = time.monotonic()
        with run.deciding:
            if (refusal := await self._approval.check(run)) is not None:
                return refusal
        if run.deciding.cancelled_caught:
            return "Cancelled while others decided whether it may run."

        supervisor = self._kernels.of(run.cell)
        with run.starting:
            kernel = await supervisor.acquire()
        if run.starting.cancelled_caught:
            return "Cancelled while its kernel started."
        loss = None if run.own else supervisor.take_loss()
        caching = self._caching if supervisor is self._kernels.python else None
        if caching is not None and not run.in_flight:
            stored = await caching.find(run, supervisor.epoch, kernel)
            if stored is not None and loss is None:
                return await self._from_cache(caching, run, supervisor, stored)

        execution = await self._send(run, supervisor, kernel)
        if not isinstance(execution, Execution):
            return execution

        seconds = self._config.budgets.approval
        async with answer_input_requests(run, kernel, execution, session=self._session, seconds=seconds):
            verdict = await supervisor.watch(kernel, execution, self._remaining_seconds(run), own=run.own)
        run.clock.ended = time.monotonic()

        result = self._build_result(run, supervisor, kernel, verdict, loss)
        if caching is not None:
            await caching.record(run, result, kernel)
        return sealed(result, self._secrets)

    async def _send(self, run: Turn, supervisor: Keeper, kernel: Kernel) -> Execution | ExecutionResult | str:
        """Send a cell to its kernel, or take up one that another owner sent; return a result or a reason where that fails."""
        collector = partial(self._collector(), displays=kernel.displays, on_update=self._display_updated)
        run.collector = self._run_collector(run, collector)
        late = collector(self._config.output.late, on_output=self._output_callback(run, None))
        if run.in_flight:
            run.execution = await self._resume(run, supervisor, kernel, run.collector, late)
            if run.execution is None:
                return unknown_result(run, self._session, supervisor.epoch)
        else:
            await self._announce(run, supervisor)
            if supervisor.renewing:
                return _RESTARTED
            run.clock.sent = time.monotonic()
            run.execution = kernel.submit(
                run.cell.request,
                run.collector,
                late,
                counted=not run.own,
                overruled=run.own or run.overruled,
                msg_id=run.execution_id,
                asks=run.on_input is not None,
            )
        if run.interrupt_asked:
            run.execution.ask_interrupt()
        return run.execution

    def _build_result(
        self, run: Turn, supervisor: Keeper, kernel: Kernel, verdict: Verdict, loss: LostState | None
    ) -> ExecutionResult:
        report_lost_state(verdict, loss, supervisor.epoch)
        verdict.notes[:0] = run.remarks
        if kernel.remark is not None and not run.own:
            verdict.notes.append(kernel.remark)
            kernel.remark = None
        files = _no_files if run.own else self._changed_files
        networked = self._config.online
        return build_result(run, verdict, session=self._session, epoch=supervisor.epoch, files=files, networked=networked)

    async def _from_cache(
        self, caching: CachedResults, run: Turn, supervisor: Keeper, stored: ExecutionResult
    ) -> ExecutionResult | str:
        """Return a stored result as the result of a run, to its caller and to all observers; the cell does not run."""
        await self._announce(run, supervisor)
        if supervisor.renewing:
            return _RESTARTED
        run.clock.sent = run.clock.ended = time.monotonic()
        run.collector = self._run_collector(run, self._collector())
        feed(run.collector, stored)
        caching.skip(run)
        return replace(
            stored,
            execution_id=run.execution_id,
            session=self._session,
            kernel_epoch=supervisor.epoch,
            notes=(FROM_CACHE, *run.remarks),
            timing=run.clock.timing(),
            cached=True,
        )

    def _collector(self) -> Callable[..., Collector]:
        """Return the constructor of the two collectors of a cell, which share the masking of secrets."""
        return Collector if self._secrets is None else partial(MaskedCollector, Veil(self._secrets.masker))

    def _run_collector(self, run: Turn, collector: Callable[..., Collector]) -> Collector:
        output = self._config.output
        run.spill = SpillFile(self._spills / run.execution_id, output.spill_bytes)
        return collector(output, spill=run.spill, on_output=self._output_callback(run, run.heard))

    def _changed_files(self, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """Return the files that a cell wrote, with those of its displays."""
        saver = DisplayFiles(self._workspace, self._config.output.files_bytes if self._config.save_displays else 0)
        saved = saver.save(cell, outputs)
        return tuple(dict.fromkeys((*self._changes.changes(), *saved)))

    async def _announce(self, run: Turn, supervisor: Keeper) -> None:
        """Report to the hooks that a cell is about to be sent, and write that to the disk if its request has an id."""
        if not run.own:
            epoch, name = supervisor.epoch, run.request_id
            self._dispatch(CellStarted(self._session, run.execution_id, run.shown, epoch, name, run.timeout))
        if run.request_id is not None:
            await self._requests.fsync(run.request_id)

    async def _resume(
        self, run: Turn, supervisor: Keeper, kernel: Kernel, collector: Collector, late: Collector
    ) -> Execution | None:
        """Take up a cell that another owner sent; return None, and kill the kernel, where it does not answer."""
        seconds = max(self._remaining_seconds(run), self._config.budgets.start)
        try:
            return await kernel.client.resume(run.execution_id, collector, late, patience=seconds)
        except KernelNotAnswering:
            logger.exception("kernelexec.cell_not_resumed", extra={"session": self._session})
            await supervisor.kill("timeout")
            return None

    def _remaining_seconds(self, run: Turn) -> float:
        """Return the seconds that a run may still take; one in flight gets time at least to send its output so far."""
        if not run.in_flight:
            return run.timeout
        return max(run.timeout - (time.monotonic() - run.clock.sent), self._config.budgets.grace)

    def _output_callback(self, run: Turn, callback: OnOutput | None) -> OnOutput | None:
        """Return a callback that passes outputs to the hooks first, if any of them wants outputs."""
        dispatch = self._dispatch_output
        if dispatch is None or run.own:
            return callback

        def pass_on(output: Output) -> None:
            dispatch(OutputHeard(self._session, run.execution_id, output))
            if callback is not None:
                callback(output)

        return pass_on

    def _display_updated(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self._dispatch(DisplayUpdated(self._session, display_id, data, metadata))


def _no_files(_cell: int, _outputs: tuple[Output, ...]) -> tuple[str, ...]:
    return ()


def teller(session: str, hooks: Iterable[Hook]) -> Callable[[Event], None]:
    """Return a function that passes an event to all hooks; an error of a hook is logged and affects nothing else."""
    all_hooks = tuple(hooks)

    def dispatch(event: Event) -> None:
        for hook in all_hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("kernelexec.hook_failed", extra={"session": session, "event": type(event).__name__})

    return dispatch
