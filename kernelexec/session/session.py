"""The session of one agent: cells take turns in one kernel, within their budgets, and each ends with a checked verdict."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.events import (
    Hook,
    Ledger,
    Record,
    SessionAdopted,
    SessionClosed,
    SessionClosing,
    SessionOpened,
    SessionReplayed,
    wants_output,
)
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.provisioning import Place
from kernelexec.provisioning.runtime.discovery import note
from kernelexec.provisioning.runtime.temp_dirs import remove_private
from kernelexec.recorded_history import Past
from kernelexec.results import ExecutionResult, OnInput, Replay, Statistics
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import OnOutput
from kernelexec.session.cells.executions import Executions
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.masking import ResultMasking
from kernelexec.session.cells.queue import Queue
from kernelexec.session.cells.result_cache import cached_results
from kernelexec.session.cells.runner import Runner, teller
from kernelexec.session.cells.submit import CellSubmission
from kernelexec.session.cells.takeover import OrphanedSession
from kernelexec.session.context import SessionContext, SessionSettings
from kernelexec.session.features.background import BackgroundCommands
from kernelexec.session.features.culling import IdleCulling, IdleTimer
from kernelexec.session.features.files import AsyncFiles
from kernelexec.session.features.inspection import Inspection
from kernelexec.session.features.limits import SessionLimits
from kernelexec.session.features.packages import PackageInstaller
from kernelexec.session.features.preinstall import Preinstaller
from kernelexec.session.features.prompts import SessionPrompts
from kernelexec.session.features.retry import Retries
from kernelexec.session.features.run_tests import CodeTests
from kernelexec.session.features.snapshots import VariableSnapshots
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.kernels.warm_start import NOT_READY, Ready
from kernelexec.session.lifecycle import Life, in_thread
from kernelexec.session.observers.notebook_writer import NotebookWriter
from kernelexec.session.observers.statistics import StatisticsHook
from kernelexec.workspace import Workspace

logger = logging.getLogger("kernelexec")


_P = ParamSpec("_P")
_R = TypeVar("_R")
_creating_files = threading.Lock()


def _delegate(part: str, method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[AsyncSession, _P], _R]:
    """Return a method of a session, with signature and docstring, that calls the method of one of its parts."""

    @wraps(method)
    def call(session: AsyncSession, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(getattr(session, part), *args, **kwargs)

    return call


class AsyncSession:
    """One agent's persistent kernel. Made by ``AsyncExecutor.session``; concurrent cells run one after the other."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        runtime: Path,
        config: Config,
        hooks: Iterable[Hook] = (),
        *,
        record: Record | None,
        ledger: Ledger | None,
        place: Place,
        ready: Ready = NOT_READY,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        on_close: Callable[[AsyncSession], None],
    ) -> None:
        self.name = name
        self.replay: Replay | None = None
        self.notebook = notebook = record.path if record else None
        self.journal = ledger.path if ledger else None
        self.workspace = workspace.path
        self.workspace_inside = place.cwd
        """The same directory, by its path as kernels see it."""
        self.isolation = place.isolation
        self.life = Life(f"Session {name!r}", self._stop, self._remove)
        self._runtime = runtime
        self._ledger = ledger
        self._on_close = on_close
        settings = SessionSettings(config)
        self._requests = requests = Requests(name, ledger)
        self._notebook_writer = NotebookWriter(name, record, self.life)
        self._statistics = StatisticsHook(settings)
        timer = IdleTimer()
        own_hooks = (self._notebook_writer, self._statistics, timer)
        all_hooks = [hook for hook in (ledger, *hooks, record, *own_hooks) if hook is not None]
        output_hooks = [hook for hook in all_hooks if wants_output(hook)]
        self._dispatch = dispatch = teller(name, all_hooks)
        self._kernels = kernels = Kernels(config, name, runtime, place, self.life, dispatch)
        self._keeper = kernels.python
        self._keeper.use_warm(ready)
        approval = Permission(name, config, validators, approver, place.secrets)
        self._caching = cached_results(config, place, workspace.path)
        runner = Runner(
            name,
            config,
            kernels,
            workspace=workspace.path,
            spills=runtime / "out",
            notebook=notebook,
            requests=requests,
            secrets=place.secrets,
            tell=dispatch,
            tell_output=teller(name, output_hooks) if output_hooks else None,
            approval=approval,
            caching=self._caching,
        )
        capacity = config.capacity
        self._queue = queue = Queue(
            name,
            capacity,
            self.life,
            kernels=kernels,
            approval=approval,
            runner=runner,
            requests=requests,
            secrets=place.secrets,
            tell=dispatch,
        )
        self._context = context = SessionContext(
            name=name,
            isolation=place.isolation,
            directory=workspace,
            runtime=runtime,
            settings=settings,
            scope=self.life,
            queue=queue,
            kernels=kernels,
            approval=approval,
            masking=ResultMasking(name, place.secrets),
            dispatch=dispatch,
        )
        self._files: AsyncFiles | None = None
        self._submission = CellSubmission(context, requests)
        self._executions = Executions(context)
        self._inspection = Inspection(context)
        self._snapshots = VariableSnapshots(context)
        self._background = BackgroundCommands(context)
        self._packages = PackageInstaller(context, self._inspection)
        self._preinstaller = Preinstaller(context, self._packages)
        self._limits = SessionLimits(context)
        self._tests = CodeTests(context)
        self._prompts = SessionPrompts(context, self._executions, self._inspection)
        self._retries = Retries(self.execute, self.restart, self._snapshots)
        self._culling = IdleCulling(context, timer, self._background)

    executions = _delegate("_executions", Executions.executions)
    wait_for = _delegate("_executions", Executions.wait_for)
    read_output = _delegate("_executions", Executions.read_output)
    interrupt = _delegate("_executions", Executions.interrupt)
    request_interrupt = _delegate("_executions", Executions.request_interrupt)
    variables = _delegate("_inspection", Inspection.variables)
    environment = _delegate("_inspection", Inspection.environment)
    complete = _delegate("_inspection", Inspection.complete)
    inspect = _delegate("_inspection", Inspection.inspect)
    is_complete = _delegate("_inspection", Inspection.is_complete)
    snapshot = _delegate("_snapshots", VariableSnapshots.snapshot)
    restore = _delegate("_snapshots", VariableSnapshots.restore)
    start_background = _delegate("_background", BackgroundCommands.start_background)
    check_command = _delegate("_background", BackgroundCommands.check_command)
    background = _delegate("_background", BackgroundCommands.background)
    background_commands = _delegate("_background", BackgroundCommands.background_commands)
    background_output = _delegate("_background", BackgroundCommands.background_output)
    kill_background = _delegate("_background", BackgroundCommands.kill_background)
    install = _delegate("_packages", PackageInstaller.install)
    rebuild = _delegate("_packages", PackageInstaller.rebuild)
    preinstall = _delegate("_preinstaller", Preinstaller.preinstall)
    stats = _delegate("_limits", SessionLimits.stats)
    set_limits = _delegate("_limits", SessionLimits.set_limits)
    run_tests = _delegate("_tests", CodeTests.run_tests)
    guidance = _delegate("_prompts", SessionPrompts.guidance)
    debugging = _delegate("_prompts", SessionPrompts.debugging)
    execute_with_retry = _delegate("_retries", Retries.execute_with_retry)

    @property
    def kernel_epoch(self) -> int:
        """The number of kernel processes that this session has had."""
        return self._keeper.epoch

    @property
    def statistics(self) -> Statistics:
        """The use of its cells so far, of each of the newest thousand, and of all together."""
        return self._statistics.statistics

    @property
    def names(self) -> tuple[str, ...]:
        """The variables' names, sorted, as the kernel last reported them; without those that begin with ``_``."""
        return self._snapshots.names

    @property
    def connection_file(self) -> Path | None:
        """The connection file of the living kernel, by which any Jupyter client can attach to it; None while there is none.

        A new kernel has another one. Access to it is access to the kernel: it is private to this user.
        """
        return self._inspection.connection_file

    @property
    def culled(self) -> float | None:
        """The time, on the monotonic clock, at which its idle kernels were ended; None while one lives, or may."""
        return self._culling.culled

    @property
    def files(self) -> AsyncFiles:
        """Its files, without a cell.

        Raises:
            InvalidConfig: a context path is not there any more.
        """
        with _creating_files:  # callers may be in any thread
            if self._files is None:
                self._files = AsyncFiles(self._context)
            return self._files

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._queue.first is not None

    def mask(self, text: str) -> str:
        """Return a text with the names of secrets in the place of their values, as in the outputs of this session's kernels.

        For callers that show a piece of a cell before it was sent, as a line of its source.
        """
        return self._context.masking.text(text)

    def masked_past(self, past: Past) -> Past:
        """Return an earlier session's cells as they may be shown; the same object where there is nothing to mask."""
        return self._context.masking.past(past)

    async def save_notebook(self) -> None:
        """Return once the notebook shows every cell that has ended: it is written some milliseconds after a result.

        A disk that hangs is waited for 10 s.
        """
        self.life.check_here()
        await self._notebook_writer.flush()

    async def open(self, *, replays: str | None = None, left: OrphanedSession | None = None) -> None:
        """Start the first kernel; ``replays`` names the notebook or journal to be replayed then. Called by the executor.

        The kernel is a new one, or the one that a dead owner has ``left``, with the cell that runs in it; where that cannot be
        had, or is not repeated, the first result reports the loss.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        await self.life.begun.wait()
        self.life.check_open()
        self.life.tasks.start_soon(self._notebook_writer.run)
        if (idle := self._context.config.capacity.idle_seconds) is not None:
            self.life.tasks.start_soon(self._culling.run, idle)
        try:
            note(self._runtime, self.name, self.workspace, self.notebook, self.journal)
        except OSError:
            logger.exception("kernelexec.session_not_noted", extra={"session": self.name})
        async with self.life.held(), self._queue.order:
            self._kernels.ended = {} if left is None else left.ended
            if left is not None and (kernel := await self._keeper.take_over(left.handover)) is not None:
                turn = left.turn(self.isolation)
                if self._caching is not None:
                    self._caching.take_over(self._keeper.epoch)
                running = None if turn is None else turn.execution_id
                event = SessionAdopted(self.name, self.workspace, self._keeper.epoch, kernel.container, running)
                self._dispatch(event)
                if turn is not None:
                    self._queue.add(turn)
                    self._requests.adopt(turn)
                return
            self._dispatch(SessionOpened(self.name, self.workspace, replays))
            await self._keeper.start_first(previous_lost=replays is None and self._ledger is not None and self._ledger.was_left)

    def replayed(self, replay: Replay, past: Past) -> None:
        """Report a replay of an earlier session's cells. Called by the executor."""
        self.replay = replay
        self._dispatch(SessionReplayed(self.name, replay, self.masked_past(past)))

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
    ) -> ExecutionResult:
        """Run a cell of code or shell magic and return its result.

        A cell that fails is a result; ``result.raise_for_error()`` makes it an exception. If the caller is cancelled, the cell
        goes on, and ``wait_for`` returns its result.

        Args:
            code: the cell's source.
            language: ``python``, or the name or language of an installed kernelspec, whose kernel the session then keeps
                beside its Python one; without one ``bash`` is ``execute_command``, and ``javascript`` runs through node.
            stdin: text for the standard input of such a command; nothing else has one.
            timeout: seconds that the cell may run from its start, whatever it prints; the configuration's by default.
            wait: seconds that this call blocks at most; then the result so far comes back with status ``running``.
            request_id: 1 to 200 printable characters that name this request. Sent again, also after a restart of the caller,
                it joins the running cell or gets its first result, and nothing runs twice; where its end cannot be known,
                the status is ``unknown``. A cell that never ran is run.
            on_output: called in the event loop with every output as it comes; its exceptions are raised here at once,
                while the cell goes on. A request that is sent again brings no outputs but those of its result.
            approver: decides about this cell, in the place of the executor's; see ``policy.decisions``.
            on_input: answers the cell's ``input()``, within ``budgets.approval`` seconds, which are not the cell's.

        Raises:
            InvalidCode, InvalidTimeout, InvalidRequest, QueueFull, Closed: before anything ran.
            KernelStartFailed: a new kernel was needed and did not come up; nothing ran.
        """
        with self._submission.report_refusals("code", code, request_id):
            self.life.check_open()
            cell = await self._kernels.cell(code, language, stdin)
            submitted = await self._submission.submit(cell, timeout, wait, on_output, request_id, approver, on_input)
        return await submitted.result()

    async def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> ExecutionResult:
        """Run a shell command in the kernel's environment: stdout and stderr apart, its exit code, its own process group.

        ``cd`` and ``export`` last from one command to the next until the kernel is replaced. ``work_dir`` (inside the
        workspace, by its path here or as kernels see it) counts for this command only; ``stdin`` is text for its standard
        input, empty by default.

        Raises:
            InvalidWorkDir: missing, not a directory, or outside of the workspace; and what ``execute`` raises.
        """
        with self._submission.report_refusals("command", command, request_id):
            directory, limit = self._context.command_directory(work_dir), self._context.config.capacity.code_bytes
            cell = cells.command(command, work_dir=directory, stdin=stdin, limit_bytes=limit)
            submitted = await self._submission.submit(cell, timeout, wait, on_output, request_id, approver)
        return await submitted.result()

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or that of one language; their state is lost, a running cell with it.

        Waiting cells run in the new ones. ``fresh_venv`` removes the packages of the session's virtual environment too.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: no kernel came up.
        """
        self.life.check_open()
        chosen = self._kernels.chosen(language)
        if fresh_venv:
            await self._packages.replace_venv()
        first = self._queue.first
        of_first = self._kernels.of(first.cell) if first is not None else None
        is_sent = first is not None and (first.execution is not None or first.in_flight)
        for supervisor in chosen:
            if is_sent and supervisor is of_first:
                await supervisor.kill("request")
            else:
                supervisor.restart_before_next()
        if first is not None and of_first in chosen and first.collector is not None:
            await first.done.wait()
        if not self.busy:
            async with self.life.held(), self._queue.order:
                for supervisor in chosen:
                    if supervisor.epoch:
                        await supervisor.acquire()

    async def close(self) -> None:
        """End the session: waiting cells are aborted, the kernel and all its processes end, its private files go.

        A caller that closes an ending session waits for its end too.
        """
        self.life.check_here()
        await self.life.end()

    async def _stop(self) -> None:
        """End every turn, in the session's task, when the session is to end."""
        self._dispatch(SessionClosing(self.name))
        self._notebook_writer.stop()
        self._culling.stop()
        self._queue.abort_waiting()
        await self._kernels.stop(0.0 if self.busy else self._context.config.budgets.stop)

    async def _remove(self) -> None:
        """Remove the session's files, in its task, once no turn runs any more."""
        try:
            self._queue.end()
            await self._kernels.stop(0.0)
            await self._notebook_writer.close()
            await in_thread(self._remove_files)
        finally:
            self._dispatch(SessionClosed(self.name))
            if self._ledger is not None:
                self._ledger.close()
            self._on_close(self)

    def _remove_files(self) -> None:
        self._queue.forget()
        remove_private(self._runtime)
