"""One agent's session: cells take turns in one kernel, within their budgets, and each ends with a checked verdict."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import UnionType

import anyio
import anyio.to_thread

from kernelexec import cells
from kernelexec.cells import Cell
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest
from kernelexec.hooks import Hook, Record, SessionClosed, SessionOpened
from kernelexec.provisioning.trees import remove_tree
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session.keeper import Keeper
from kernelexec.session.life import Life, in_thread
from kernelexec.session.queue import Queue
from kernelexec.session.runner import Runner, teller
from kernelexec.session.scribe import Scribe
from kernelexec.session.turn import OnOutput, Turn
from kernelexec.workspace import Workspace

#: How much of a cell's stream output one page of ``read_output`` gives, in bytes.
PAGE_BYTES = 64 * 1024


class AsyncSession:
    """One agent's persistent kernel. Made by ``AsyncExecutor.session``; cells sent at once run one after the other."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        runtime: Path,
        config: Config,
        hooks: Iterable[Hook] = (),
        *,
        record: Record | None,
        on_close: Callable[[AsyncSession], None],
    ) -> None:
        self.name = name
        self.notebook = notebook = record.path if record else None
        self.workspace = workspace.path
        self.life = Life(f"Session {name!r}", self._stop, self._remove)
        self._place = workspace
        self._runtime = runtime
        self._config = config
        self._scribe = Scribe(name, record, self.life)
        self._tell = tell = teller(name, (*hooks, *([record] if record else []), self._scribe))
        self._keeper = keeper = Keeper(config, name, runtime, str(workspace.path), self.life, tell)
        runner = Runner(name, config, keeper, workspace=workspace.path, spills=runtime / "out", notebook=notebook, tell=tell)
        capacity, scribe = config.capacity, self._scribe
        self._queue = Queue(name, capacity, self.life, keeper=keeper, runner=runner, scribe=scribe, tell=tell)
        self._on_close = on_close

    @property
    def kernel_epoch(self) -> int:
        """How many kernel processes this session has had."""
        return self._keeper.epoch

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._queue.first is not None

    async def open(self) -> None:
        """Start the first kernel. Called by the executor.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        await self.life.begun.wait()
        self.life.check_open()
        self._tell(SessionOpened(self.name))
        async with self._queue.order:
            await self._keeper.start()

    async def execute(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a cell of code or shell magic and return what became of it.

        A cell that fails is a result; ``result.raise_for_error()`` makes it an exception. If the caller goes away
        (cancellation) the cell goes on and can be had by ``wait_for``.

        Args:
            code: the cell's source.
            timeout: seconds that the cell may run from its start, whatever it prints; the configuration's by default.
            wait: seconds that this call blocks at most; then the result so far comes back with status ``running``.
            on_output: called in the event loop with every output as it comes; what it raises is raised here at once,
                while the cell goes on.

        Raises:
            InvalidCode, InvalidTimeout, QueueFull, Closed: before anything ran.
            KernelStartFailed: a new kernel was needed and did not come up; nothing ran.
        """
        cell = cells.parse(code, limit_bytes=self._config.capacity.code_bytes)
        return await self._submit(cell, timeout, wait, on_output)

    async def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a shell command in the kernel's place: stdout and stderr apart, its exit code, its own process group.

        ``cd`` and ``export`` last from one command to the next until the kernel is replaced. ``work_dir`` (inside the
        workspace) counts for this command only; ``stdin`` is text for its standard input, empty by default.

        Raises:
            InvalidWorkDir: missing, not a directory, or outside of the workspace; and what ``execute`` raises.
        """
        place = None if work_dir is None else self._place.directory(work_dir)
        limit = self._config.capacity.code_bytes
        cell = cells.command(command, work_dir=place, stdin=stdin, limit_bytes=limit)
        return await self._submit(cell, timeout, wait, on_output)

    def executions(self) -> tuple[str, ...]:
        """The ids of all executions that can be had by ``wait_for``: remembered, running, waiting; the oldest first."""
        return self._queue.ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """What is new of an execution since ``cursor``; blocks until it has ended, ``wait`` seconds at most.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidTimeout: ``wait`` is no number of seconds.
        """
        turn = self._find(execution_id)
        _check_count(cursor, "cursor")
        with anyio.move_on_after(None if wait is None else seconds(wait, "wait")):
            await turn.done.wait()
        outputs, position, missed = turn.collector.since(cursor) if turn.collector else ((), 0, 0)
        place = self._queue.turns.index(turn) if turn in self._queue.turns else 0
        result = self._queue.result(turn)
        return Progress(execution_id, result.status if result else "running", outputs, position, missed, place, result)

    async def read_output(
        self, execution_id: str, *, offset: int = 0, limit: int = PAGE_BYTES, grep: str | None = None
    ) -> OutputPage:
        """A page of a cell's stream output, raw as it came, also of what its result had to cut.

        Args:
            execution_id: whose output.
            offset: where to begin, in bytes.
            limit: how much at most, in bytes.
            grep: a regular expression; only lines that match are given.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidRequest: a negative offset, a limit below 1, a malformed pattern, or one that takes more than 5 s.
        """
        _check_count(offset, "offset")
        _check_count(limit, "limit", least=1)
        _check_type(grep, str | None, "grep")
        turn = self._find(execution_id)
        try:
            return await anyio.to_thread.run_sync(turn.page, offset, limit, grep)
        except FileNotFoundError:
            self.life.check_open()
            raise

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """End the running cell (or the one named, which may still wait) and return its result; None if nothing runs.

        Raises:
            UnknownExecution: no execution of that id is remembered.
        """
        self.life.check_here()
        turn = self._queue.find(execution_id) if execution_id is not None else self._queue.first
        if turn is None:
            return None
        turn.ask_interrupt()
        await turn.done.wait()
        return self._queue.result(turn)

    def request_interrupt(self) -> None:
        """Ask for the end of the running cell without waiting for it. Call it in the event loop's thread."""
        if self._queue.first is not None:
            self._queue.first.ask_interrupt()

    async def restart(self) -> None:
        """Replace the kernel; its state is lost, the running cell with it. Waiting cells run in the new kernel.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        self.life.check_open()
        first = self._queue.first
        if first is not None and first.execution is not None:
            await self._keeper.kill("request")
            await first.done.wait()
        else:
            self._keeper.renew()
        if not self.busy:
            async with self._queue.order:
                await self._keeper.start()

    async def close(self) -> None:
        """End the session: waiting cells are aborted, the kernel and all that it started end, its private files go.

        Whoever calls it while the session closes already waits for its end too.
        """
        self.life.check_here()
        await self.life.end()

    async def _stop(self) -> None:
        """Called in the session's task when it is to end: every turn ends by this."""
        self._queue.let_none_begin()
        await self._keeper.stop(0.0 if self.busy else self._config.budgets.stop)

    async def _remove(self) -> None:
        """Called in the session's task when no turn runs any more."""
        try:
            self._queue.end()
            await self._keeper.stop(0.0)
            await self._scribe.close()
            await in_thread(self._remove_files)
        finally:
            self._on_close(self)
            self._tell(SessionClosed(self.name))

    def _remove_files(self) -> None:
        self._queue.forget()
        remove_tree(self._runtime)

    async def _submit(
        self, cell: Cell, timeout: float | None, wait: float | None, on_output: OnOutput | None
    ) -> ExecutionResult:
        self.life.check_open()
        budget = self._config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        patience = None if wait is None else seconds(wait, "wait")
        if on_output is not None and (not callable(on_output) or inspect.iscoroutinefunction(on_output)):
            message = f"on_output={on_output!r}: it is a plain function of one output, not a coroutine function."
            raise InvalidRequest(message)
        turn = Turn(cell, timeout=budget, on_output=on_output)
        self._queue.add(turn)
        return await self._queue.outcome(turn, patience)

    def _find(self, execution_id: str) -> Turn:
        self.life.check_here()
        return self._queue.find(execution_id)


def _check_count(value: object, name: str, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        message = f"{name}={value!r}: it is a whole number of bytes, {least} at least."
        raise InvalidRequest(message)


def _check_type(value: object, kind: type | UnionType, name: str) -> None:
    if not isinstance(value, kind):
        message = f"{name}={value!r}: it is {getattr(kind, '__name__', kind)}, not {type(value).__name__}."
        raise InvalidRequest(message)
