"""One agent's session: cells take turns in one kernel, within their budgets, and each ends with a checked verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import UnionType

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from kernelexec import cells
from kernelexec.cells import Cell
from kernelexec.config import Config, seconds
from kernelexec.errors import Closed, InvalidRequest, QueueFull
from kernelexec.hooks import CellExecuted, Hook, SessionClosed, SessionOpened
from kernelexec.results import ExecutionResult, OutputPage, Progress
from kernelexec.session.keeper import Keeper
from kernelexec.session.memory import Memory
from kernelexec.session.runner import Runner, teller
from kernelexec.session.turn import OnOutput, Turn, broke_off, never_ran, snapshot
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
        tasks: TaskGroup,
        hooks: Iterable[Hook] = (),
        *,
        notebook: Path | None,
        on_close: Callable[[AsyncSession], None],
    ) -> None:
        self.name = name
        self.notebook = notebook
        self.workspace = workspace.path
        self._place = workspace
        self._runtime = runtime
        self._config = config
        self._tasks = tasks
        self._tell = teller(name, hooks)
        self._order = asyncio.Lock()
        self._turns: list[Turn] = []
        self._memory = Memory(config.capacity.results)
        self._keeper = Keeper(config, name, runtime, str(workspace.path), tasks, self._tell)
        self._runner = Runner(
            name, config, self._keeper, workspace=workspace.path, spills=runtime / "out", notebook=notebook, tell=self._tell
        )
        self._on_close = on_close
        self._closed = False

    @property
    def kernel_epoch(self) -> int:
        """How many kernel processes this session has had."""
        return self._keeper.epoch

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return bool(self._turns)

    async def open(self) -> None:
        """Start the first kernel. Called by the executor.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        self._tell(SessionOpened(self.name))
        async with self._order:
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
        return (*self._memory.ids(), *(turn.execution_id for turn in self._turns))

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """What is new of an execution since ``cursor``; blocks until it has ended, ``wait`` seconds at most.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidTimeout: ``wait`` is no number of seconds.
        """
        turn = self._memory.find(execution_id, self._turns)
        _check_type(cursor, int, "cursor")
        with anyio.move_on_after(None if wait is None else seconds(wait, "wait")):
            await turn.done.wait()
        outputs, position, missed = turn.collector.since(cursor) if turn.collector else ((), 0, 0)
        place = self._turns.index(turn) if turn in self._turns else 0
        result = self._with_late(turn)
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
        if not isinstance(offset, int) or not isinstance(limit, int) or offset < 0 or limit < 1:
            message = f"offset={offset!r}, limit={limit!r}: whole bytes, offset 0 at least, limit 1 at least."
            raise InvalidRequest(message)
        _check_type(grep, str | None, "grep")
        turn = self._memory.find(execution_id, self._turns)
        return await anyio.to_thread.run_sync(turn.page, offset, limit, grep)

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """End the running cell (or the one named, which may still wait) and return its result; None if nothing runs.

        Raises:
            UnknownExecution: no execution of that id is remembered.
        """
        turn = self._memory.find(execution_id, self._turns) if execution_id is not None else next(iter(self._turns), None)
        if turn is None:
            return None
        turn.ask_interrupt()
        await turn.done.wait()
        return self._with_late(turn)

    def request_interrupt(self) -> None:
        """Ask for the end of the running cell without waiting for it. Call it in the event loop's thread."""
        if self._turns:
            self._turns[0].ask_interrupt()

    async def restart(self) -> None:
        """Replace the kernel; its state is lost, the running cell with it. Waiting cells run in the new kernel.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        self._check_open()
        running = self._turns[0] if self._turns and self._turns[0].execution is not None else None
        if running is not None:
            await self._keeper.kill("request")
            await running.done.wait()
        else:
            self._keeper.renew()
        if not self._turns:
            async with self._order:
                await self._keeper.start()

    async def close(self) -> None:
        """End the session: waiting cells are aborted, the kernel and all that it started end, its private files go."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            for turn in self._turns:
                turn.waiting.cancel()
            await self._keeper.stop(0.0 if self.busy else self._config.budgets.stop)
            for turn in list(self._turns):
                await turn.done.wait()
            await self._keeper.stop(0.0)
            self._memory.clear()
            shutil.rmtree(self._runtime, ignore_errors=True)
            self._on_close(self)
            self._tell(SessionClosed(self.name))

    async def _submit(
        self, cell: Cell, timeout: float | None, wait: float | None, on_output: OnOutput | None
    ) -> ExecutionResult:
        self._check_open()
        budget = self._config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        patience = None if wait is None else seconds(wait, "wait")
        if on_output is not None and (not callable(on_output) or inspect.iscoroutinefunction(on_output)):
            message = f"on_output={on_output!r}: it is a plain function of one output, not a coroutine function."
            raise InvalidRequest(message)
        if len(self._turns) > self._config.capacity.queue:
            message = f"{len(self._turns) - 1} cells wait in session {self.name!r}, its limit: wait for one to end."
            raise QueueFull(message)
        turn = Turn(cell, timeout=budget, on_output=on_output)
        self._turns.append(turn)
        self._tasks.start_soon(self._run, turn)
        return await self._outcome(turn, patience)

    async def _outcome(self, turn: Turn, patience: float | None) -> ExecutionResult:
        with anyio.move_on_after(patience):
            await turn.answered.wait()
        if turn.failure is not None:
            failure, turn.failure = turn.failure, None
            raise failure
        return self._with_late(turn) or snapshot(turn, self.name, self._keeper.epoch)

    async def _run(self, turn: Turn) -> None:
        """The turn's task: wait for the order, run, conclude. Never raises: a failure belongs to who asked."""
        result = None
        try:
            with turn.waiting:
                await self._order.acquire()
            if turn.waiting.cancelled_caught:
                why = "The session was closed." if self._closed else "Cancelled while it waited for its turn."
                result = never_ran(turn, self.name, self._keeper.epoch, why)
                return
            try:
                turn.clock.turn = time.monotonic()
                result = await self._runner.run(turn)
            finally:
                self._order.release()
            self._tell(CellExecuted(self.name, turn.cell, result))
        except Exception as exc:  # noqa: BLE001 - given to who asked
            turn.failure = exc
            result = (never_ran if turn.execution is None else broke_off)(turn, self.name, self._keeper.epoch, str(exc))
        finally:
            self._turns.remove(turn)
            turn.finish(result or never_ran(turn, self.name, self._keeper.epoch, "The executor was closed."))
            self._memory.keep(turn)

    def _with_late(self, turn: Turn) -> ExecutionResult | None:
        late = turn.execution.late.outputs() if turn.execution else ()
        if turn.result is not None and late != turn.result.late:
            turn.result = dataclasses.replace(turn.result, late=late)
        return turn.result

    def _check_open(self) -> None:
        if self._closed:
            message = f"Session {self.name!r} is closed."
            raise Closed(message)


def _check_type(value: object, kind: type | UnionType, name: str) -> None:
    if not isinstance(value, kind):
        message = f"{name}={value!r}: it is {getattr(kind, '__name__', kind)}, not {type(value).__name__}."
        raise InvalidRequest(message)
