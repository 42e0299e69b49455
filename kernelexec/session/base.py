"""The life of a session: its parts, its beginning and its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from kernelexec.provisioning import Backend
from kernelexec.provisioning.runtime.discovery import write_session_file
from kernelexec.results import Replay
from kernelexec.rules.policy.decisions import Approver, Validator
from kernelexec.session.cells.approval import CellApproval
from kernelexec.session.cells.cell_repeats import CellRepeats
from kernelexec.session.cells.idempotency import RequestIds
from kernelexec.session.cells.queue import Attachments, CellQueue, FinishedExecutions
from kernelexec.session.cells.result_builder import ResultMasking
from kernelexec.session.cells.result_cache import CellResultCache
from kernelexec.session.cells.runner import CellRunner, RunContext, SessionSettings, make_dispatcher
from kernelexec.session.context import SessionContext
from kernelexec.session.features.background_commands import BackgroundCommands
from kernelexec.session.features.inspection import Inspection
from kernelexec.session.features.limits import IdleCulling, SessionLimits
from kernelexec.session.features.packages.installer import PackageInstaller
from kernelexec.session.features.saved_state.branches import (
    BranchStart,
    OpenBranch,
    SessionBranches,
)
from kernelexec.session.features.saved_state.checkpoints import SessionCheckpoints
from kernelexec.session.features.saved_state.snapshots import VariableSnapshots
from kernelexec.session.features.trials import CodeTests
from kernelexec.session.features.variable_values import VariableValues
from kernelexec.session.kernels.languages import LanguageKernels
from kernelexec.session.kernels.starts import NO_WARM_KERNEL, WarmKernel
from kernelexec.session.kernels.verdict import FormerSession
from kernelexec.session.lifecycle import TaskScope, run_in_thread
from kernelexec.session.notebook_writer import NotebookWriter
from kernelexec.workspace import FileChanges, Workspace

if TYPE_CHECKING:
    from kernelexec.records.journal import Journal
    from kernelexec.records.notebook.recorder import Recorder
    from kernelexec.rules.recorded_history import History
    from kernelexec.session.cells.takeover import OrphanedSession
    from kernelexec.session.features.session_files import AsyncFiles

logger = logging.getLogger("kernelexec")
#: The names of variables that an ending session reports.
_NAMES_MAX = 100


class SessionBase:
    """The parts and the life of a session; ``AsyncSession`` has the methods for agents."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        runtime: Path,
        config: Config,
        hooks: Iterable[Hook] = (),
        *,
        record: Recorder | None,
        journal: Journal | None,
        backend: Backend,
        warm_kernel: WarmKernel = NO_WARM_KERNEL,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        on_close: Callable[[Any], None],
        open_branch: OpenBranch,
        notes: Sequence[str] = (),
        changes: FileChanges | None = None,
        former: FormerSession | None = None,
        origin: BranchStart | None = None,
        others: Collection[SessionBase] = (),
    ) -> None:
        self.name = name
        self.replay: Replay | None = None
        self.notebook = notebook = record.path if record else None
        self.journal = journal.path if journal else None
        self.workspace = workspace.path
        self.workspace_inside = backend.cwd
        """The same directory, by the path seen by kernels."""
        self.isolation = backend.isolation
        self.scope = TaskScope(f"Session {name!r}", self._stop, self._remove)
        self._journal = journal
        self._on_close, self._others = on_close, others
        self._notebook_writer = NotebookWriter(name, record, self.scope)
        history = FinishedExecutions()
        repeats = CellRepeats(config, workspace.path, history.runs)
        own_hooks = (self._notebook_writer, repeats, self._note_event)
        all_hooks = [*([] if journal is None else [journal]), *hooks, *own_hooks]
        output_hooks = [hook for hook in all_hooks if wants_output(hook)]
        dispatch = make_dispatcher(name, all_hooks)
        self._kernels = kernels = LanguageKernels(config, name, runtime, backend, self.scope, dispatch)
        self._supervisor = supervisor = kernels.python
        supervisor.use_warm(warm_kernel)
        supervisor.notes, supervisor.losses.former, supervisor.repeater = [*supervisor.notes, *notes], former, repeats
        self._result_cache = CellResultCache.open(config, backend, workspace.path)
        self._changes = changes or FileChanges(workspace.path, ignore=frozenset({notebook.name} if notebook else ()))
        shared: dict[str, Any] = {
            "name": name,
            "isolation": backend.isolation,
            "workspace": workspace,
            "runtime_dir": runtime,
            "settings": SessionSettings(config),
            "scope": self.scope,
            "kernels": kernels,
            "approval": CellApproval(name, config, validators, approver, backend.secrets),
            "requests": RequestIds(name, journal),
            "masking": ResultMasking(name, backend.secrets),
            "dispatch": dispatch,
        }
        run_context, self.attachments = RunContext(**shared), Attachments(name)
        dispatch_output = make_dispatcher(name, output_hooks) if output_hooks else None
        runner = CellRunner(run_context, self._result_cache, self._changes, dispatch_output)
        self._queue = CellQueue(run_context, runner, history, self._notebook_writer, self.attachments)
        self._context = context = SessionContext(**shared, queue=self._queue)
        self._files: AsyncFiles | None = None
        self._inspection = Inspection(context)
        self._checkpoints = SessionCheckpoints(context, repeats, self._list_notebooks)
        self._branches = SessionBranches(context, self._checkpoints, record, self.journal, origin, open_branch)
        self._snapshots = VariableSnapshots(context, self._checkpoints)
        self._values = VariableValues(context)
        self._background = BackgroundCommands(context)
        self._packages = PackageInstaller(context, self._inspection)
        self._limits = SessionLimits(context)
        self._tests = CodeTests(context)
        self._culling = IdleCulling(context, self._background)

    @property
    def names(self) -> tuple[str, ...]:
        """The sorted names of variables that the kernel reported last, without names that begin with ``_``."""
        return tuple(sorted(self._supervisor.known_names))

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
        """Whether the session's Python kernel has run a cell."""
        return self._supervisor.has_run

    @property
    def culled_at(self) -> float | None:
        """The time, on the monotonic clock, at which idle kernels were ended; None while a kernel lives or may live."""
        return self._culling.culled_at if self._kernels.has_culled_kernels else None

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._queue.first is not None

    async def write_handover(self) -> None:
        """Write everything that the next owner of the session's kernel needs, before this process ends without ending it."""
        from kernelexec.session.cells.takeover import write_results  # noqa: PLC0415 - at the end of a server only

        await self._notebook_writer.save_notebook()
        results = [run.result for run in self._queue.history.runs.values() if run.result is not None]
        await run_in_thread(write_results, self._context.runtime_dir, results)

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
            write_session_file(self._context.runtime_dir, self.name, self.workspace, self.notebook, self.journal)
        except OSError:
            logger.exception("kernelexec.session_file_not_written", extra={"session": self.name})
        async with self.scope.hold_open(), self._queue.run_lock:
            await self._open_kernel(orphan, replays)
            if (idle := self._context.config.capacity.idle_seconds) is not None:
                self.scope.tasks.start_soon(self._culling.run, idle)

    async def _open_kernel(self, orphan: OrphanedSession | None, replays: str | None) -> None:
        """Take over the kernel of a dead owner with the running cell, or start the first kernel."""
        self._kernels.ended_epochs = {} if orphan is None else orphan.ended_epochs
        if orphan is not None and (kernel := await self._supervisor.take_over(orphan.handover)) is not None:
            run = orphan.make_run(self.isolation)
            if self._result_cache is not None:
                self._result_cache.adopt_kernel(self._supervisor.epoch)
            running = None if run is None else run.execution_id
            event = SessionAdopted(self.name, self.workspace, self._supervisor.epoch, kernel.container, running)
            self._context.dispatch(event)
            for finished_run in orphan.make_finished_runs():
                self._queue.history.add(finished_run)
            if run is not None:
                self._queue.add(run)
                self._context.requests.adopt(run)
            return
        self._context.dispatch(SessionOpened(self.name, self.workspace, replays, self._branches.point))
        if await self._branches.start_kernel():
            return
        if replays is not None:
            self._supervisor.losses.former = None  # its state comes back
        await self._supervisor.start_first(
            previous_lost=replays is None and self._journal is not None and self._journal.owner_was_killed
        )

    def report_replay(self, replay: Replay, past: History) -> None:
        """Report a replay of an earlier session's cells to the hooks. Called by the executor."""
        self.replay = replay
        self._context.dispatch(SessionReplayed(self.name, replay, self._context.masking.mask_history(past)))

    async def preinstall(self) -> None:
        """Install the configured system, Python and npm packages, for the executor. The next result reports a failure."""
        await self._packages.preinstall()

    async def _stop(self) -> None:
        """End all runs, in the session's task."""
        names = map(self._context.masking.mask_text, self.names[:_NAMES_MAX] if self.has_run else ())
        self._context.dispatch(SessionClosing(self.name, tuple(names)))
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
            self._context.dispatch(SessionClosed(self.name, self._kernels.cut))
            if self._journal is not None:
                self._journal.close()
            self._on_close(self)

    def _note_event(self, event: Event) -> None:
        self._limits.note_event(event)
        self._culling.note_event(event)
        self._checkpoints.note_event(event)

    def _list_notebooks(self) -> frozenset[str]:
        """Return the notebooks of this session and of the executor's other open sessions, as paths in the workspace."""
        paths = [session.notebook for session in (self, *self._others) if session.notebook is not None]
        return frozenset(str(path.relative_to(self.workspace)) for path in paths if path.is_relative_to(self.workspace))

    def _remove_files(self) -> None:
        self._changes.close()
        self._queue.history.clear()
        self._branches.remove_directories()
