"""The session of one agent: cells run one at a time in one kernel, within limits, and each result has a checked state."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.events import (
    Event,
    Hook,
    SessionAdopted,
    SessionClosed,
    SessionClosing,
    SessionOpened,
    SessionReplayed,
    wants_output,
)
from kernelexec.imports import EXECUTE_KEYWORDS, SESSION, explain_attribute, explain_keywords
from kernelexec.provisioning import Backend
from kernelexec.provisioning.runtime.discovery import write_session_file
from kernelexec.results import ExecutionResult, OnInput, Output, Replay, Statistics
from kernelexec.results.one_line import count_things, join_parts, list_some
from kernelexec.rules.policy.decisions import Approver, Validator
from kernelexec.session.cells.approval import CellApproval
from kernelexec.session.cells.cell_repeats import CellRepeats
from kernelexec.session.cells.cell_run import CommandStreams, OnBytes, OnOutput
from kernelexec.session.cells.idempotency import RequestIds
from kernelexec.session.cells.queue import CellQueue, FinishedExecutions
from kernelexec.session.cells.result_builder import ResultMasking
from kernelexec.session.cells.result_cache import CellResultCache
from kernelexec.session.cells.runner import CellRunner, make_dispatcher
from kernelexec.session.context import SessionContext, SessionSettings
from kernelexec.session.features.background_commands import BackgroundCommands
from kernelexec.session.features.executions import Attachments, Executions, KernelRestarts, iterate_outputs
from kernelexec.session.features.inspection import Inspection, SessionPrompts
from kernelexec.session.features.limits import IdleCulling, IdleTimer, SessionLimits, StatisticsHook
from kernelexec.session.features.packages.installer import PackageInstaller, Preinstaller
from kernelexec.session.features.saved_state.branches import (
    BranchKeywords,
    BranchOrigin,
    OpenBranch,
    SessionBranches,
    open_no_branch,
)
from kernelexec.session.features.saved_state.checkpoints import SessionCheckpoints
from kernelexec.session.features.saved_state.snapshots import VariableSnapshots
from kernelexec.session.features.trials import CodeTests, Retries
from kernelexec.session.features.variable_values import VariableValues
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.kernels.starts import NO_WARM_KERNEL, WarmKernel
from kernelexec.session.kernels.verdict import FormerSession
from kernelexec.session.lifecycle import TaskScope, run_in_thread
from kernelexec.session.notebook_writer import NotebookWriter
from kernelexec.text import escape_line
from kernelexec.workspace import FileChanges, Workspace

if TYPE_CHECKING:
    from kernelexec.records.journal import Journal
    from kernelexec.records.notebook.recorder import Recorder
    from kernelexec.rules.recorded_history import History
    from kernelexec.session.cells.takeover import OrphanedSession
    from kernelexec.session.features.session_files import AsyncFiles

logger = logging.getLogger("kernelexec")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_files_lock = threading.Lock()
#: The names of variables that an ending session reports.
_NAMES_MAX = 100


def _delegate(part: str, method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[AsyncSession, _P], _R]:
    """Return a method of a session, with signature and docstring, that calls the method of one of its parts."""
    cast("Any", method).__qualname__ = f"Session.{method.__name__}"  # Python names it where arguments do not fit

    @wraps(method)
    def call(session: AsyncSession, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return method(getattr(session, part), *args, **kwargs)

    return call


class AsyncSession:
    """One agent's persistent kernel, created by ``AsyncExecutor.session``. Concurrent cells run one after the other."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(SESSION)

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        runtime: Path,
        config: Config,
        hooks: Iterable[Hook] = (),
        *,
        record: Recorder | None,
        ledger: Journal | None,
        backend: Backend,
        warm_kernel: WarmKernel = NO_WARM_KERNEL,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        on_close: Callable[[AsyncSession], None],
        notes: Sequence[str] = (),
        changes: FileChanges | None = None,
        former: FormerSession | None = None,
        origin: BranchOrigin | None = None,
        others: Collection[AsyncSession] = (),
        open_branch: OpenBranch = open_no_branch,
    ) -> None:
        self.name = name
        self.replay: Replay | None = None
        self.notebook = notebook = record.path if record else None
        self.journal = ledger.path if ledger else None
        self.workspace = workspace.path
        self.workspace_inside = backend.cwd
        """The same directory, by its path as kernels see it."""
        self.isolation = backend.isolation
        self.scope = TaskScope(f"Session {name!r}", self._stop, self._remove)
        self._runtime = runtime
        self._ledger = ledger
        self._on_close, self._others = on_close, others
        settings = SessionSettings(config)
        self._requests = requests = RequestIds(name, ledger)
        self._notebook_writer = NotebookWriter(name, record, self.scope)
        self._statistics = StatisticsHook(settings)
        timer, history = IdleTimer(), FinishedExecutions()
        repeats = CellRepeats(config, workspace.path, history.runs)
        own_hooks = (self._notebook_writer, self._statistics, timer, repeats, self._note_event)
        all_hooks = [hook for hook in (ledger, *hooks, record, *own_hooks) if hook is not None]
        output_hooks = [hook for hook in all_hooks if wants_output(hook)]
        self._dispatch = dispatch = make_dispatcher(name, all_hooks)
        self._kernels = kernels = LanguageKernels(config, name, runtime, backend, self.scope, dispatch)
        self._supervisor = supervisor = kernels.python
        supervisor.use_warm(warm_kernel)
        supervisor.notes, supervisor.losses.former, supervisor.repeater = [*supervisor.notes, *notes], former, repeats
        approval = CellApproval(name, config, validators, approver, backend.secrets)
        self._result_cache = CellResultCache.open(config, backend, workspace.path)
        self._changes = changes or FileChanges(workspace.path, ignore=frozenset({notebook.name} if notebook else ()))
        cell_runner = CellRunner(
            session=name,
            config=config,
            kernels=kernels,
            approval=approval,
            requests=requests,
            secrets=backend.secrets,
            result_cache=self._result_cache,
            workspace=workspace.path,
            changes=self._changes,
            spills=runtime / "out",
            dispatch=dispatch,
            dispatch_output=make_dispatcher(name, output_hooks) if output_hooks else None,
        )
        self._queue = queue = CellQueue(
            session=name,
            limit=config.capacity.queue,
            scope=self.scope,
            kernels=kernels,
            approval=approval,
            runner=cell_runner,
            requests=requests,
            secrets=backend.secrets,
            dispatch=dispatch,
            history=history,
            notebook_writer=self._notebook_writer,
        )
        self._masking = ResultMasking(name, backend.secrets)
        self._context = context = SessionContext(
            name=name,
            isolation=backend.isolation,
            workspace=workspace,
            runtime_dir=runtime,
            settings=settings,
            scope=self.scope,
            queue=queue,
            kernels=kernels,
            approval=approval,
            masking=self._masking,
            dispatch=dispatch,
        )
        self._files: AsyncFiles | None = None
        self.attachments = Attachments(name)
        self._executions = Executions(context, requests, self.attachments)
        self._inspection = Inspection(context)
        self._checkpoints = SessionCheckpoints(context, repeats, self._list_notebooks)
        self._branches = SessionBranches(context, self._checkpoints, record, self.journal, origin, open_branch)
        self._snapshots = VariableSnapshots(context, self._checkpoints)
        self._values = VariableValues(context)
        self._background = BackgroundCommands(context)
        self._packages = PackageInstaller(context, self._inspection)
        self._preinstaller = Preinstaller(context, self._packages)
        self._limits = SessionLimits(context)
        self._tests = CodeTests(context)
        self._prompts = SessionPrompts(context, self._inspection)
        self._restarts = KernelRestarts(context, self._packages)
        self._retries = Retries(self.execute, self.restart, self._snapshots)
        self._culling = IdleCulling(context, timer, self._background)

    run_internally = _delegate("_context", SessionContext.run_internally)
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
    checkpoint = _delegate("_checkpoints", SessionCheckpoints.checkpoint)
    checkpoints = _delegate("_checkpoints", SessionCheckpoints.checkpoints)
    undo = _delegate("_checkpoints", SessionCheckpoints.undo)
    restart = _delegate("_restarts", KernelRestarts.restart)
    promote = _delegate("_branches", SessionBranches.promote)
    put = _delegate("_values", VariableValues.put)
    get = _delegate("_values", VariableValues.get)
    delete = _delegate("_values", VariableValues.delete)
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
    save_notebook = _delegate("_notebook_writer", NotebookWriter.save_notebook)
    guidance = _delegate("_prompts", SessionPrompts.guidance)
    debugging = _delegate("_prompts", SessionPrompts.debugging)
    execute_with_retry = _delegate("_retries", Retries.execute_with_retry)
    mask_value = _delegate("_masking", ResultMasking.mask_value)
    mask_history = _delegate("_masking", ResultMasking.mask_history)
    check_kernelspec = _delegate("_kernels", LanguageKernels.check_kernelspec)
    read_language_info = _delegate("_kernels", LanguageKernels.read_language_info)

    @property
    def kernel_epoch(self) -> int:
        """The number of kernel processes that this session has had."""
        return self._supervisor.epoch

    @property
    def statistics(self) -> Statistics:
        """The time and memory that cells have used: each of the newest thousand cells, and the total."""
        return self._statistics.statistics

    @property
    def names(self) -> tuple[str, ...]:
        """The sorted names of variables that the kernel reported last, without names that begin with ``_``."""
        return tuple(sorted(self._supervisor.known_names))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def describe_end(self) -> FormerSession | None:
        """Return what was there, for the first result of a later session of this name; None if no cell ran."""
        lost_state = self._supervisor.losses.lost_state
        if not self._supervisor.has_run or lost_state is None:
            return None
        how = "was closed" if lost_state.cause == "closed" else f"has ended ({lost_state.cause})"
        reason = f"the session of this name before {how}"
        return FormerSession(reason, lost_state.cause, lost_state.names, lost_state.name_count)

    @property
    def has_run(self) -> bool:
        """Whether its Python kernel has run a cell."""
        return self._supervisor.has_run

    @property
    def start_notes(self) -> tuple[str, ...]:
        """Those notes of the first result that are about the Python kernel and its place, not about the cell."""
        return self._masking.mask_texts(self._supervisor.start_notes)

    @property
    def connection_file(self) -> Path | None:
        """The connection file by which any Jupyter client can attach to the living kernel; None without a living kernel.

        Each kernel has another file. Access to the file is access to the kernel: it is private to this user. JupyterLab runs
        the scripts of all outputs with the rights of its server: attach ``jupyter console`` to a kernel that is not trusted.
        """
        kernel = self._supervisor.kernel
        return kernel.connection_file if kernel is not None and kernel.alive else None

    @property
    def culled_at(self) -> float | None:
        """The time, on the monotonic clock, at which idle kernels were ended; None while a kernel lives or may live."""
        return self._culling.culled_at if self._kernels.has_culled_kernels else None

    @property
    def files(self) -> AsyncFiles:
        """The session's files, for use without a cell; ``InvalidConfig`` is raised if a context path no longer exists."""
        from kernelexec.session.features.session_files import AsyncFiles  # noqa: PLC0415 - few sessions use it

        with _files_lock:  # callers may be in any thread
            if self._files is None:
                self._files = AsyncFiles(self._context)
            return self._files

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._queue.first is not None

    @property
    def summary(self) -> str:
        """Name, isolation, what it does, its variables and its workspace, in one line."""
        doing = "closed" if self.scope.is_stopping else "busy" if self.busy else "idle"
        names = self.names
        variables = list_some(count_things("variable", len(names)), names) if names else None
        return join_parts(f"{self.name} {self.isolation} {doing}", variables, escape_line(str(self.workspace)))

    def __repr__(self) -> str:
        return f"<AsyncSession {self.summary}>"

    def mask(self, text: str) -> str:
        """Return a text in which the names of secrets replace their values, as in the outputs of this session's kernels."""
        return self._masking.mask_text(text)

    async def write_handover(self) -> None:
        """Write everything that the next owner of the session's kernel needs, before this process ends without ending it."""
        from kernelexec.session.cells.takeover import write_results  # noqa: PLC0415 - at the end of a server only

        await self.save_notebook()
        results = [run.result for run in self._queue.history.runs.values() if run.result is not None]
        await run_in_thread(write_results, self._runtime, results)

    async def open(self, *, replays: str | None = None, orphan: OrphanedSession | None = None) -> None:
        """Start the first kernel: a new one, or that of an ``orphan``, a dead owner's session, with its running cell.

        If the state of an earlier session is lost, and the executor does not replay its notebook or journal (``replays``) next,
        the first result reports that. The executor calls this method.

        Raises:
            KernelStartFailed: no kernel started.
        """
        await self.scope.started.wait()
        self.scope.check_open()
        self.scope.tasks.start_soon(self._notebook_writer.run)
        try:
            write_session_file(self._runtime, self.name, self.workspace, self.notebook, self.journal)
        except OSError:
            logger.exception("kernelexec.session_file_not_written", extra={"session": self.name})
        async with self.scope.hold_open(), self._queue.run_lock:
            await self._open_kernel(orphan, replays)
            if (idle := self._context.config.capacity.idle_seconds) is not None:
                self.scope.tasks.start_soon(self._culling.run, idle)

    async def _open_kernel(self, orphan: OrphanedSession | None, replays: str | None) -> None:
        """Take over the kernel of a dead owner with its cell, or start the first one."""
        self._kernels.ended_epochs = {} if orphan is None else orphan.ended_epochs
        if orphan is not None and (kernel := await self._supervisor.take_over(orphan.handover)) is not None:
            run = orphan.make_run(self.isolation)
            if self._result_cache is not None:
                self._result_cache.adopt_kernel(self._supervisor.epoch)
            running = None if run is None else run.execution_id
            event = SessionAdopted(self.name, self.workspace, self._supervisor.epoch, kernel.container, running)
            self._dispatch(event)
            for finished_run in orphan.make_finished_runs():
                self._queue.history.add(finished_run)
            if run is not None:
                self._queue.add(run)
                self._requests.adopt(run)
            return
        self._dispatch(SessionOpened(self.name, self.workspace, replays, self._branches.point))
        if (start := self._branches.start_point) is not None:
            await self._supervisor.start_branch(start)
            return
        if replays is not None:
            self._supervisor.losses.former = None  # its state comes back
        await self._supervisor.start_first(
            previous_lost=replays is None and self._ledger is not None and self._ledger.owner_was_killed
        )

    def report_replay(self, replay: Replay, past: History) -> None:
        """Report a replay of an earlier session's cells to the hooks. The executor calls it."""
        self.replay = replay
        self._dispatch(SessionReplayed(self.name, replay, self.mask_history(past)))

    @explain_keywords(EXECUTE_KEYWORDS)
    async def execute(
        self,
        code: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        language: str = "python",
        stdin: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
        cache: bool = False,
    ) -> ExecutionResult:
        """Run a cell of code or shell magic and return its result.

        The failure of a cell is a result; ``result.raise_for_error()`` raises it as an exception. If the caller is cancelled,
        the cell continues, and ``wait_for`` returns its result.

        Args:
            code: the cell's source.
            inputs: variables of a Python cell that are set before it, as by ``put``; cells that wait already run before it.
            language: ``python``, or the name or language of an installed kernelspec, whose kernel the session then keeps
                in addition to its Python kernel. Without such a kernelspec ``bash`` is ``execute_command``, and
                ``javascript`` runs through node.
            stdin: text for the standard input of a bash or node command; other cells have no standard input.
            timeout: seconds that the cell may run from its start, with or without output; the configuration's by default.
            wait: seconds that this call blocks at most; then it returns the result so far with status ``running``.
            request_id: 1 to 200 printable characters that identify this request. A repeated request, also after a restart
                of the caller, joins the running cell or gets its first result, and nothing runs twice. The status is
                ``unknown`` where no result is recorded. A cell that was never sent runs.
            on_output: called in the event loop with every output as it arrives; its exceptions are raised here at once,
                while the cell continues. A repeated request gets only the outputs of its result.
            approver: decides about this cell instead of the executor's approver; see ``policy.decisions``.
            on_input: answers the cell's ``input()`` within ``budgets.approval`` seconds, which do not count as the cell's.
            cache: says that this Python cell only computes and shows a value, from variables that the cells before it set to
                the same values each time. If it succeeded before, in this workspace and environment and after the same
                cells, its stored result is returned and the cell does not run. See ``Config.cache``.

        Raises:
            InvalidCode, InvalidTimeout, InvalidRequest, QueueFull, Closed: before anything ran.
            KernelStartFailed: a new kernel was needed and did not start; nothing ran.
            Refused: the kernel cannot hold the ``inputs``; the cell did not run.
        """
        with self._executions.report_refusals("code", code, request_id):
            self.scope.check_open()
            cell = await self._kernels.make_cell(code, language, stdin)
            prepare = self._values.prepare_inputs(inputs, cell, request_id)
            submitted = await self._executions.submit(
                cell, timeout, wait, on_output, request_id, approver, on_input, prepare=prepare, uses_cache=cache
            )
        return await submitted.get_result()

    def stream(
        self, code: str, *, language: str = "python", stdin: str | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run a cell; return an iterator over its outputs as they arrive, whose last item is the result.

        Of streams each item is the text that is new. If the caller stops iterating, the cell goes on; ``interrupt`` ends it.
        Arguments and errors are those of ``execute``, raised by the iterator.
        """
        execute = partial(self.execute, code, language=language, stdin=stdin, timeout=timeout)
        return iterate_outputs(execute, self.wait_for)

    @explain_keywords(EXECUTE_KEYWORDS)
    async def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        on_stdout: OnBytes | None = None,
        approver: Approver | None = None,
    ) -> ExecutionResult:
        """Run a shell command in the kernel's environment, in its own process group; stdout and stderr are separate.

        ``cd`` and ``export`` last from one command to the next until the kernel is replaced. If the caller is cancelled, the
        command continues, and ``wait_for`` returns its result.

        Args:
            command: the text for bash, or for sh where bash is missing.
            timeout: seconds that the command may run; the configuration's by default.
            work_dir: the directory of this command only, inside the workspace, by its path here or as kernels see it.
            stdin: text, or bytes of any number, for the standard input, which is empty by default.
            env: further variables of this command only. Records have their names and not their values.
            user: name or number of the account that this command runs as. As another account than the kernel's it has its
                own HOME and begins in the workspace, and ``cd`` and ``export`` of other commands do not apply to it. In
                containers it may be any of the image, ``root`` included, which has the container's capabilities (by default
                none). On this machine it needs root and kernels without confinement.
            wait: seconds that this call blocks at most; then it returns the result so far with status ``running``.
            request_id: see ``execute``.
            on_output: see ``execute``.
            on_stdout: called in the event loop with the standard output as bytes, unchanged and with secrets in it, as they
                arrive; the result has then no stdout, and the command waits until the function returns. An exception is
                raised here, and closes the command's standard output.
            approver: see ``execute``.

        Raises:
            InvalidWorkDir: the path is missing, not a directory, or outside of the workspace.
            InvalidRequest: ``env`` or ``user`` is invalid, or commands cannot run as that user.
            Exception: all errors of ``execute``.
        """
        with self._executions.report_refusals("command", command, request_id):
            directory, limit = self._context.resolve_work_dir(work_dir), self._context.config.capacity.code_bytes
            text, content = (None, stdin) if isinstance(stdin, bytes | bytearray | memoryview) else (stdin, None)
            options = await self._executions.make_options(env, user, content, on_stdout)
            cell = cells.make_command_cell(command, work_dir=directory, stdin=text, limit_bytes=limit, options=options)
            streams = CommandStreams(b"" if content is None else bytes(content), on_stdout)
            submitted = await self._executions.submit(cell, timeout, wait, on_output, request_id, approver, streams=streams)
        return await submitted.get_result()

    @overload
    async def branch(self, name: str | None = ..., *, n: None = ..., **options: Unpack[BranchKeywords]) -> AsyncSession: ...

    @overload
    async def branch(
        self, name: str | None = ..., *, n: int, **options: Unpack[BranchKeywords]
    ) -> tuple[AsyncSession, ...]: ...

    async def branch(
        self, name: str | None = None, *, n: int | None = None, **options: Unpack[BranchKeywords]
    ) -> AsyncSession | tuple[AsyncSession, ...]:
        """Return a branch: a new session of the same executor whose kernel is a copy of this one; both go their own ways.

        A branch has all variables and imports, its own queue, notebook and journal, and begins with a checkpoint ``start``.
        Paths that its variables hold lead where they led. A copy in a container shares the limits of this session's container.

        Args:
            name: the new session's name; by default this one's with a number.
            n: return a tuple of so many branches instead of one; each has the name with a number.
            options: see ``BranchKeywords``.

        Raises:
            CheckpointRefused, KernelStartFailed: the kernel cannot be copied now, or the copy did not start.
            InvalidRequest, InvalidTimeout, CapacityReached, QueueFull, Closed: there is no branch.
        """
        return await self._branches.open(name, n, **options)  # type: ignore[no-any-return]  # sessions are a layer above it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session: abort waiting cells, end the kernels with all their processes, and delete private files.

        A caller that closes an ending session waits for its end too.
        """
        self.scope.check_caller()
        await self.scope.stop()

    async def _stop(self) -> None:
        """End all runs, in the session's task."""
        names = map(self.mask, self.names[:_NAMES_MAX] if self.has_run else ())
        self._dispatch(SessionClosing(self.name, tuple(names)))
        self._notebook_writer.stop()
        self._culling.stop()
        if self._files is not None:
            self._files.stop_transfers()
        self._queue.abort_waiting()
        self._queue.report_late_outputs()
        await self._kernels.stop(0.0 if self.busy else self._context.config.budgets.grace)

    async def _remove(self) -> None:
        """Remove the session's files, in its task, after the last run has ended."""
        try:
            self._queue.abort_unstarted_runs()
            await self._kernels.stop(0.0)
            await self._notebook_writer.close()
            await run_in_thread(self._remove_files)
        finally:
            self._dispatch(SessionClosed(self.name, self._kernels.cut))
            if self._ledger is not None:
                self._ledger.close()
            self._on_close(self)

    def _note_event(self, event: Event) -> None:
        self._checkpoints.note_event(event)

    def _list_notebooks(self) -> frozenset[str]:
        """Return the paths in the workspace of its notebook, and of those of the executor's other open sessions."""
        paths = [session.notebook for session in (self, *self._others) if session.notebook is not None]
        return frozenset(str(path.relative_to(self.workspace)) for path in paths if path.is_relative_to(self.workspace))

    def _remove_files(self) -> None:
        self._changes.close()
        self._queue.history.clear()
        self._branches.remove_directories()
