"""The session of one agent: cells run one at a time in one kernel, within limits, and each result has a checked state."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

import anyio

from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest
from kernelexec.imports import EXECUTE_KEYWORDS, SESSION, explain_attribute, explain_keywords
from kernelexec.provisioning.launch.one_shot_task import Network
from kernelexec.results import (
    Attempts,
    BackgroundCommand,
    BackgroundOutput,
    CodeStatus,
    Completion,
    ExecutionResult,
    Installation,
    LimitsSet,
    OnInput,
    Output,
    OutputPage,
    Progress,
    PythonEnvironment,
    Restored,
    Snapshot,
    Statistics,
    Stats,
    TestReport,
    Variables,
)
from kernelexec.results.one_line import count_things, join_parts, list_some
from kernelexec.results.reports import CASE_SECONDS
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.rules.policy.decisions import Approver
from kernelexec.session.base import SessionBase
from kernelexec.session.cells.cell_run import CellRun, OnBytes, OnOutput
from kernelexec.session.cells.queue import SubmittedCell, iterate_outputs
from kernelexec.session.context import check_whole_number
from kernelexec.session.features.background_commands import BackgroundCommands
from kernelexec.session.features.inspection import INSPECTION_SECONDS, Inspection
from kernelexec.session.features.limits import SessionLimits
from kernelexec.session.features.packages.installer import PackageInstaller, Requirement
from kernelexec.session.features.saved_state.branches import (
    BranchKeywords,
    SessionBranches,
)
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint, SessionCheckpoints
from kernelexec.session.features.saved_state.snapshots import SavedState, VariableSnapshots
from kernelexec.session.features.trials import RETRIES, Between, CodeTests, Fix, run_with_retry
from kernelexec.session.features.variable_values import VariableValues
from kernelexec.session.notebook_writer import NotebookWriter
from kernelexec.text import escape_line

if TYPE_CHECKING:
    from kernelexec.rules.recorded_history import History
    from kernelexec.session.features.session_files import AsyncFiles

logger = logging.getLogger("kernelexec")
_C = TypeVar("_C")
_files_lock = threading.Lock()
#: The bytes of a cell's stream output in one page of ``read_output``.
PAGE_BYTES = 64 * 1024
_COUNT_MEANING = "a whole number of bytes"


def _documented_by(*parts: type) -> Callable[[type[_C]], type[_C]]:
    """Return a decorator to give a class's methods the whole docstrings of the parts' methods behind them."""

    def copy(owner: type[_C]) -> type[_C]:
        for part in parts:
            for name, method in vars(part).items():
                own = vars(owner).get(name)
                if isfunction(own) and str(method.__doc__).startswith(str(own.__doc__)):
                    own.__doc__ = method.__doc__
        return owner

    return copy


@_documented_by(Inspection, VariableSnapshots, SessionCheckpoints, SessionBranches, VariableValues, BackgroundCommands)
@_documented_by(PackageInstaller, SessionLimits, CodeTests, NotebookWriter)
class AsyncSession(SessionBase):
    """One agent's persistent kernel, created by ``AsyncExecutor.session``. Concurrent cells run one after the other."""

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(SESSION)

    @property
    def kernel_epoch(self) -> int:
        """The number of kernel processes that this session has had."""
        return self._supervisor.epoch

    @property
    def statistics(self) -> Statistics:
        """The time and memory that cells have used: each of the newest thousand cells, and the total."""
        return self._limits.statistics

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def start_notes(self) -> tuple[str, ...]:
        """The notes of the first result about the Python kernel and its place, not about the cell."""
        return self._context.masking.mask_texts(self._supervisor.start_notes)

    @property
    def connection_file(self) -> Path | None:
        """The connection file by which any Jupyter client can attach to the living kernel; None without a living kernel.

        Each kernel has another file. Access to the file is access to the kernel, so the file is private to this user.
        JupyterLab runs the scripts of all outputs with the rights of its server: attach ``jupyter console`` to a kernel that is
        not trusted.
        """
        kernel = self._supervisor.kernel
        return kernel.connection_file if kernel is not None and kernel.alive else None

    @property
    def files(self) -> AsyncFiles:
        """The session's files, for use without a cell; ``InvalidConfig`` is raised if a context path no longer exists."""
        from kernelexec.session.features.session_files import AsyncFiles  # noqa: PLC0415 - few sessions use it

        with _files_lock:  # callers may be in any thread
            if self._files is None:
                self._files = AsyncFiles(self._context)
            return self._files

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
        return self._context.masking.mask_text(text)

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
        with self._queue.report_refusals("code", code, request_id):
            self.scope.check_open()
            seconds = _check_wait(wait)
            cell = await self._kernels.make_cell(code, language, stdin)
            prepare = self._values.prepare_inputs(inputs, cell, request_id)
            callbacks: dict[str, Any] = {"on_output": on_output, "approver": approver, "on_input": on_input}
            submitted = await self._queue.submit(cell, timeout, prepare, request_id=request_id, uses_cache=cache, **callbacks)
        return await submitted.wait(seconds)

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
        with self._queue.report_refusals("command", command, request_id):
            seconds = _check_wait(wait)
            cell, streams = await self._context.make_command(command, work_dir, stdin, env, user, on_stdout)
            options: dict[str, Any] = {"on_output": on_output, "approver": approver, "streams": streams}
            submitted = await self._queue.submit(cell, timeout, None, request_id=request_id, **options)
        return await submitted.wait(seconds)

    def executions(self) -> tuple[str, ...]:
        """Return the ids of remembered, running and waiting executions, the oldest first."""
        return self._queue.list_ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """Wait for the end of an execution, ``wait`` seconds at most; return its new outputs since ``cursor``.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidTimeout: ``wait`` is not a number of seconds.
        """
        run = self._queue.find(execution_id)
        check_whole_number(cursor, "cursor", _COUNT_MEANING, 0)
        with anyio.move_on_after(_check_wait(wait)):
            await run.done.wait()
        return SubmittedCell(self._queue, run).progress(cursor)

    async def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """Return a page of a cell's raw stream output, including the part that is cut from the result.

        Args:
            execution_id: the execution.
            offset: the first byte.
            limit: the number of bytes at most.
            grep: a regular expression; only lines that match are returned.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidRequest: a negative offset, a limit below 1, a malformed pattern, or a pattern that takes more than 5 s for
                one line; the page of a longer search ends after that time.
        """
        check_whole_number(offset, "offset", _COUNT_MEANING, 0)
        check_whole_number(limit, "limit", _COUNT_MEANING, 1)
        if not isinstance(grep, str | None):
            raise InvalidRequest(f"grep={grep!r:.100} must be str | None, not {type(grep).__name__}.")
        run = self._queue.find(execution_id)
        try:
            return await self._context.read_in_thread(run.read_page, offset, limit, grep)
        except FileNotFoundError:
            self.scope.check_open()
            raise

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """Interrupt the running or the named cell; return its result, or None if no cell runs. Errors: see ``wait_for``."""
        self.scope.check_caller()
        run = self._queue.find(execution_id) if execution_id is not None else self._queue.first
        if run is None:
            return None
        run.request_interrupt()
        await run.done.wait()
        return self._queue.get_result(run)

    def request_interrupt(self) -> None:
        """Interrupt the running cell without waiting for its end. Must be called in the event loop's thread."""
        if self._queue.first is not None:
            self._queue.first.request_interrupt()

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or the kernel of one language; their state and a running cell are lost.

        Waiting cells run in the new kernels. ``fresh_venv`` also removes the packages of the session's virtual environment.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: a kernel did not start.
        """
        self.scope.check_open()
        supervisors = self._kernels.select_supervisors(language)
        if fresh_venv:
            await self._packages.replace_venv()
        await self._queue.restart_kernels(supervisors)

    async def run_internally(
        self, source: str, timeout: float, *, on_output: OnOutput | None = None
    ) -> tuple[CellRun, ExecutionResult]:
        """Run an internal cell, which waits for its place in the queue and which no notebook records."""
        return await self._context.run_internally(source, timeout, on_output=on_output)

    async def variables(
        self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX, wait: float = INSPECTION_SECONDS
    ) -> Variables:
        """Return the user's variables, also while a cell runs, without running the user's code."""
        return await self._inspection.variables(names=names, limit=limit, wait=wait)

    async def environment(self, *, wait: float = INSPECTION_SECONDS) -> PythonEnvironment:
        """Return the Python, packages and programs of cells, also while a cell runs, without running the user's code."""
        return await self._inspection.environment(wait=wait)

    async def complete(self, code: str, cursor: int | None = None, *, wait: float = INSPECTION_SECONDS) -> Completion:
        """Return the kernel's completions at ``cursor`` (in characters, the end by default), after a running cell."""
        return await self._inspection.complete(code, cursor, wait=wait)

    async def inspect(
        self, code: str, cursor: int | None = None, *, detail: int = 0, wait: float = INSPECTION_SECONDS
    ) -> str | None:
        """Return the documentation of the name at ``cursor``, with ``detail=1`` its source too; None if there is none."""
        return await self._inspection.inspect(code, cursor, detail=detail, wait=wait)

    async def is_complete(self, code: str, *, wait: float = INSPECTION_SECONDS) -> tuple[CodeStatus, str]:
        """Return whether code is complete, and for incomplete code the indentation of the next line."""
        return await self._inspection.is_complete(code, wait=wait)

    async def snapshot(self, names: Iterable[str] | None = None, *, timeout: float | None = None) -> Snapshot:
        """Save variables, each into its own file in the workspace; the result lists skipped variables with reasons."""
        return await self._snapshots.snapshot(names, timeout=timeout)

    async def restore(
        self,
        saved: SavedState,
        *,
        names: Iterable[str] | None = None,
        files: bool = False,
        timeout: float | None = None,
    ) -> Restored:
        """Load the variables of a snapshot into the kernel, or go back to a checkpoint."""
        return await self._snapshots.restore(saved, names=names, files=files, timeout=timeout)

    async def checkpoint(
        self, name: str | None = None, *, files: bool = False, timeout: float | None = None
    ) -> AsyncCheckpoint:
        """Make a checkpoint: a stopped copy of the kernel with all its Python state, by a fork."""
        return await self._checkpoints.checkpoint(name, files=files, timeout=timeout)

    async def checkpoints(self) -> tuple[AsyncCheckpoint, ...]:
        """Return the checkpoints that are there, the oldest first; none without a living kernel."""
        return await self._checkpoints.checkpoints()

    async def undo(self, cells: int = 1, *, files: bool = False, timeout: float | None = None) -> Restored:
        """Go back to the state before the last ``cells`` cells."""
        return await self._checkpoints.undo(cells, files=files, timeout=timeout)

    async def promote(self, *, timeout: float | None = None) -> Restored:
        """Make this branch's state that of the session that it was branched off, and close the branch."""
        return await self._branches.promote(timeout=timeout)

    async def put(self, name: str | Mapping[str, Any] | None = None, value: Any = None, /, **values: Any) -> None:  # noqa: ANN401 - any value
        """Set variables in the kernel: ``put("x", 1)``, ``put({"x": 1})`` or ``put(x=1, table=frame)``."""
        await self._values.put(name, value, **values)

    async def get(self, name: str, default: Any = ..., /) -> Any:  # noqa: ANN401 - any value
        """Return the value of a variable as an object of the caller: see ``put`` for the types. Nothing of it is run here."""
        return await self._values.get(name, default)

    async def delete(self, name: str, /) -> None:
        """Delete a variable in the kernel, as ``del`` does."""
        await self._values.delete(name)

    async def start_background(
        self, command: str, *, work_dir: str | None = None, approver: Approver | None = None
    ) -> BackgroundCommand:
        """Start a background command, such as a server, a watcher or a long job, without timeout and stdin."""
        return await self._background.start_background(command, work_dir=work_dir, approver=approver)

    async def check_command(self, command: str, *, approver: Approver | None = None) -> None:
        """Apply rules, validators and approver to a command that runs elsewhere; raise ``SecurityError`` if they refuse it."""
        await self._background.check_command(command, approver=approver)

    async def background(self, command_id: str) -> BackgroundCommand:
        """Return a background command with its present status; errors: see ``background_output``."""
        return await self._background.background(command_id)

    async def background_commands(self) -> tuple[BackgroundCommand, ...]:
        """Return all remembered background commands with their present status, the oldest first; errors: see ``background``."""
        return await self._background.background_commands()

    async def background_output(self, command_id: str, *, lines: int = 1000) -> BackgroundOutput:
        """Return the newest ``lines`` of stdout and of stderr, 10,000 at most; the output of a lost command is gone."""
        return await self._background.background_output(command_id, lines=lines)

    async def kill_background(self, command_id: str) -> BackgroundCommand:
        """End a background command with all its processes: SIGTERM, and SIGKILL half a second later."""
        return await self._background.kill_background(command_id)

    async def install(
        self,
        packages: Requirement | Iterable[Requirement],
        *more: Requirement | Iterable[Requirement],
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Install packages into the session's virtual environment, and make them available to cells at once."""
        return await self._packages.install(packages, *more, wheels=wheels, network=network, timeout=timeout)

    async def rebuild(
        self,
        lock: str | os.PathLike[str] | None = None,
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Replace the virtual environment by one with exactly the packages of a lock, by default its own. See ``install``."""
        return await self._packages.rebuild(lock, wheels=wheels, network=network, timeout=timeout)

    async def stats(self) -> Stats:
        """Return the present use of the session's Python kernel and all its processes, also while a cell runs."""
        return await self._limits.stats()

    async def set_limits(
        self,
        profile: str | None = None,
        *,
        memory_bytes: int | str | None = None,
        cpus: float | None = None,
        timeout: float | None = None,
    ) -> LimitsSet:
        """Change the limits of the session's present and later kernels; the state is kept. None means no change."""
        return await self._limits.set_limits(profile, memory_bytes=memory_bytes, cpus=cpus, timeout=timeout)

    async def run_tests(
        self, code: str, cases: Iterable[str], *, timeout: float = CASE_SECONDS, approver: Approver | None = None
    ) -> TestReport:
        """Run Python code, then each test case after it, in forked processes: they can use the session's variables."""
        return await self._tests.run_tests(code, cases, timeout=timeout, approver=approver)

    async def save_notebook(self) -> None:
        """Wait, 10 s at most, until the notebook contains every cell that has ended; it is written soon after each result."""
        await self._notebook_writer.save_notebook()

    async def guidance(self, *, requirements: bool = False) -> str:
        """Return text for a system prompt: the session's directories, packages, network, limits, prefix and rules."""
        return await self._inspection.guidance(requirements=requirements)

    async def debugging(self, execution_id: str | None = None) -> str:
        """Return a prompt in five steps for fixing a failed cell: its code, its output, the known facts about the cause."""
        return await self._inspection.debugging(execution_id)

    async def execute_with_retry(
        self,
        code: str,
        fix: Fix | None = None,
        *,
        max_retries: int = RETRIES,
        between: Between = "keep",
        language: str = "python",
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> Attempts:
        """Run a cell until it succeeds, ``max_retries`` times at most, including the first try.

        Args:
            code: the first try's source.
            fix: called after a failure with the attempts so far; returns the next try's source, or None to give up. A plain
                function, which is called in a thread, or a coroutine function. Without it the same code runs again.
            max_retries: the number of all tries, 1 to 100.
            between: the change of the session between two tries: ``keep`` changes nothing, ``restore`` restores the
                variables from a snapshot before the first try, ``restart`` starts an empty kernel.
            language: the language of all tries, as in ``execute``.
            timeout: the timeout of each try.
            on_output: called with the outputs of all tries.
            approver: decides about each try.

        Raises:
            InvalidRequest: before anything ran; later too, if ``fix`` returns neither text nor None.
        """
        run = partial(self.execute, language=language, timeout=timeout, on_output=on_output, approver=approver)
        return await run_with_retry(run, self.restart, self._snapshots, code, fix, max_retries, between)

    def mask_value(self, value: Any) -> Any:  # noqa: ANN401 - JSON in, JSON out
        """Return a JSON value with masked secrets."""
        return self._context.masking.mask_value(value)

    def mask_history(self, history: History) -> History:
        """Return an earlier session's cells with masked secrets; the same object where there is nothing to mask."""
        return self._context.masking.mask_history(history)

    async def check_kernelspec(self, name: str) -> None:
        """Raise ``InvalidRequest`` if no kernelspec with this name or language is installed."""
        await self._kernels.check_kernelspec(name)

    async def read_language_info(self, language: str = "python") -> dict[str, Any]:
        """Return the ``language_info`` of a language's kernel, as in Jupyter's messages; empty without a kernel."""
        return await self._kernels.read_language_info(language)

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


def _check_wait(wait: float | None) -> float | None:
    return None if wait is None else check_seconds(wait, "wait")
