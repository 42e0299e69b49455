"""The submission of cells to the queue, and the access to submitted executions: progress, output, interruption and restart.

Clients in other processes are attached to a session, and its owner learns of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.cells import Cell, CommandOptions
from kernelexec.config import check_seconds
from kernelexec.config.types import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.results import ExecutionResult, OnInput, Output, OutputPage, Progress
from kernelexec.rules.policy.decisions import Approver, check_callables
from kernelexec.session.cells.cell_run import NO_STREAMS, CellRun, CommandStreams, OnBytes, OnOutput
from kernelexec.session.cells.idempotency import RequestIds, refresh_state
from kernelexec.session.cells.result_cache import check_cacheable
from kernelexec.session.context import SessionContext, check_account, check_variables, check_whole_number
from kernelexec.session.features.packages.installer import PackageInstaller

#: The bytes of a cell's stream output in one page of ``read_output``.
PAGE_BYTES = 64 * 1024
_COUNT_MEANING = "a whole number of bytes"
logger = logging.getLogger("kernelexec")
#: The client in another process that makes the current call; None for the owner.
calling_client: ContextVar[str | None] = ContextVar("calling_client", default=None)
_interrupts: ContextVar[bool] = ContextVar("interrupts", default=False)


@contextmanager
def interrupting_cells() -> Iterator[None]:
    """Interrupt a cell of this block, or remove it from the queue, if its caller is cancelled; else it would go on."""
    token = _interrupts.set(True)
    try:
        yield
    finally:
        _interrupts.reset(token)


@dataclass(frozen=True, slots=True)
class SubmittedCell:
    """A cell in the queue from the view of one caller. ``joined`` marks the run of an earlier call with the same request."""

    context: SessionContext
    run: CellRun
    seconds: float | None
    joined: bool = False

    async def get_result(self) -> ExecutionResult:
        """Wait for the result, or return the result so far after ``seconds``; see ``interrupting_cells``."""
        try:
            result = await self.context.queue.wait_for_result(self.run, self.seconds, joined=self.joined)
        except asyncio.CancelledError:
            if _interrupts.get() and not self.joined:
                self.run.request_interrupt()
                await await_to_end(self.run.done.wait())
            raise
        return refresh_state(result, self.context.kernels.get_supervisor(self.run.cell)) if self.joined else result


class Executions:
    """The submitted executions of one session: remembered, running and waiting."""

    def __init__(self, context: SessionContext, requests: RequestIds, attachments: Attachments) -> None:
        self._context = context
        self._requests = requests
        self._attachments = attachments
        self._scope = context.scope
        self._queue = context.queue

    async def submit(
        self,
        cell: Cell,
        timeout: float | None,
        wait: float | None,
        on_output: OnOutput | None,
        request_id: str | None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
        streams: CommandStreams = NO_STREAMS,
        prepare: Callable[[], Awaitable[None]] | None = None,
        *,
        uses_cache: bool = False,
    ) -> SubmittedCell:
        """Submit a cell, or join the execution of the same request. ``prepare`` runs after the checks of all arguments."""
        context = self._context
        context.scope.check_open()
        self._requests.check(request_id)
        if not isinstance(uses_cache, bool):
            raise InvalidRequest(f"cache={uses_cache!r:.100} must be True or False.")
        if uses_cache:
            has_inputs = prepare is not None or on_input is not None
            check_cacheable(cell, context.config, context.kernels.backend, context.workspace_path, has_inputs=has_inputs)
        budget = context.choose_timeout(timeout)
        wait_seconds = None if wait is None else check_seconds(wait, "wait")
        _check_callback("on_output", on_output, "output")
        _check_callback("on_stdout", streams.on_stdout, "piece of bytes")
        check_callables((), approver, on_input)
        options: dict[str, Any] = {"on_output": on_output, "request_id": request_id, "approver": approver, "streams": streams}
        options |= {"on_input": on_input, "uses_cache": uses_cache, "by_client": calling_client.get() is not None}
        run = context.make_run(cell, budget, **options)
        run.notes += self._attachments.take_notes()
        if prepare is not None:
            await prepare()
        if request_id is None:
            context.queue.add(run)
            return SubmittedCell(context, run, wait_seconds)
        submitted = await self._requests.submit_once(request_id, run, context.queue.add, context.kernels.get_supervisor(cell))
        return SubmittedCell(context, submitted, wait_seconds, joined=submitted is not run)

    async def make_options(
        self, env: object, user: object, stdin: bytes | None, on_stdout: OnBytes | None
    ) -> CommandOptions | None:
        """Return what a command has of its own; None for a plain command.

        Raises:
            InvalidRequest: ``env`` or ``user`` is invalid, or commands cannot run as that user.
        """
        variables, account = check_variables(env), check_account(user)
        if not (variables or account or on_stdout) and stdin is None:
            return None
        owner_runs = account is not None and self._context.kernels.backend.check_user(account)
        digest = None if stdin is None else await anyio.to_thread.run_sync(lambda: sha256(stdin).hexdigest())
        return CommandOptions(variables, account, owner_runs, digest, on_stdout is not None)

    @contextmanager
    def report_refusals(self, kind: Literal["code", "command"], source: object, request_id: object) -> Iterator[None]:
        """Report errors that refuse a cell to the hooks, with masked secrets."""
        try:
            yield
        except (InvalidRequest, Refused) as exc:
            self._context.dispatch(self._context.masking.make_refusal(kind, source, exc, request_id))
            raise

    def executions(self) -> tuple[str, ...]:
        """Return the ids of remembered, running and waiting executions, the oldest first."""
        return self._queue.list_ids()

    async def wait_for(self, execution_id: str, *, cursor: int = 0, wait: float | None = None) -> Progress:
        """Wait for the end of an execution, ``wait`` seconds at most; return its new outputs since ``cursor``.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidTimeout: ``wait`` is not a number of seconds.
        """
        run = self.find(execution_id)
        check_whole_number(cursor, "cursor", _COUNT_MEANING, 0)
        with anyio.move_on_after(None if wait is None else check_seconds(wait, "wait")):
            await run.done.wait()
        outputs, position, missed_outputs = run.collector.since(cursor) if run.collector else ((), 0, 0)
        queue_position = self._queue.runs.index(run) if run in self._queue.runs else 0
        result = self._queue.get_result(run)
        status = "running" if result is None else result.status
        remark = run.execution.remark if run.execution is not None and result is None else ""
        return Progress(execution_id, status, outputs, position, missed_outputs, queue_position, result, remark)

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
        run = self.find(execution_id)
        try:
            return await self._context.read_in_thread(run.read_page, offset, limit, grep)
        except FileNotFoundError:
            self._scope.check_open()
            raise

    async def interrupt(self, execution_id: str | None = None) -> ExecutionResult | None:
        """Interrupt the running or the named cell; return its result, or None if no cell runs. Errors: see ``wait_for``."""
        self._scope.check_caller()
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

    def find(self, execution_id: str) -> CellRun:
        """Return a remembered, running or waiting run; raise ``UnknownExecution`` if there is none with that id."""
        self._scope.check_caller()
        return self._queue.find(execution_id)


class KernelRestarts:
    """The restarts of one session's kernels."""

    def __init__(self, context: SessionContext, packages: PackageInstaller) -> None:
        self._context = context
        self._packages = packages

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or the kernel of one language; their state and a running cell are lost.

        Waiting cells run in the new kernels. ``fresh_venv`` also removes the packages of the session's virtual environment.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: a kernel did not start.
        """
        context, queue = self._context, self._context.queue
        context.scope.check_open()
        supervisors = context.kernels.select_supervisors(language)
        if fresh_venv:
            await self._packages.replace_venv()
        first_run = queue.first
        first_supervisor = context.kernels.get_supervisor(first_run.cell) if first_run is not None else None
        is_sent = first_run is not None and (first_run.execution is not None or first_run.in_flight)
        for supervisor in supervisors:
            if is_sent and supervisor is first_supervisor:
                await supervisor.kill("request")
            else:
                supervisor.is_restart_pending = True
        if first_run is not None and first_supervisor in supervisors and first_run.collector is not None:
            await first_run.done.wait()
        if queue.first is None:
            async with context.scope.hold_open(), queue.run_lock:
                for supervisor in supervisors:
                    if supervisor.epoch:
                        await supervisor.acquire()


def _check_callback(name: str, function: object, argument: str) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        raise InvalidRequest(f"{name}={function!r} must be a plain function of one {argument}, not a coroutine function.")


async def iterate_outputs(
    execute: Callable[..., Awaitable[ExecutionResult]],
    wait_for: Callable[..., Coroutine[Any, Any, Progress]],
    on_begin: Callable[[ExecutionResult], object] = lambda _: None,
) -> AsyncGenerator[Output | ExecutionResult, None]:
    """Yield the outputs of a cell as they arrive, then its result; output that a slow caller has missed is in the result.

    Args:
        execute: submits the cell; takes ``wait`` and ``on_output``.
        wait_for: returns the outputs since a cursor.
        on_begin: called when the cell is submitted, with its result so far.
    """
    changed = asyncio.Event()
    with anyio.CancelScope(shield=True):  # a cell that is submitted is known to the caller
        begun = await execute(wait=SHORTEST_TIMEOUT, on_output=lambda _: changed.set())
        on_begin(begun)
    ending = asyncio.ensure_future(wait_for(begun.execution_id))
    ending.add_done_callback(lambda _: changed.set())
    cursor = 0
    try:
        while True:
            changed.clear()
            progress = await wait_for(begun.execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)
            for output in progress.outputs:
                yield output
            if progress.result is not None:
                yield progress.result
                return
            cursor = progress.cursor
            await changed.wait()
    finally:
        ending.cancel()


class Attachments:
    """The attached clients of one session. The owner's next result names new ones, and counts their cells."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._held: dict[object, str] = {}
        self._new: dict[str, None] = {}
        self._cells: dict[str, int] = {}
        self._returned: dict[str, None] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """The attached clients, the oldest first."""
        return tuple(dict.fromkeys(self._held.values()))

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Count a client as attached within the block."""
        hold, extra = object(), {"session": self._session, "client": client}
        self._held[hold], self._new[client] = client, None
        logger.info("kernelexec.client_attached", extra=extra)
        try:
            yield
        finally:
            del self._held[hold]
            logger.info("kernelexec.client_detached", extra=extra)

    def note_return(self, client: str) -> None:
        """Note that a client has gone back to an earlier state of the session."""
        self._returned[client] = None

    def take_notes(self) -> list[str]:
        """Count a cell of a client; for the owner's cell, return the notes about clients since the last one."""
        if (client := calling_client.get()) is not None:
            self._cells[client] = self._cells.get(client, 0) + 1
            return []
        notes = [f"{name} has attached to this session: its cells run in turn with yours." for name in self._new]
        for name, count in self._cells.items():
            notes.append(f"{count} cell{'s' * (count > 1)} of {name} ran here since your last one.")
        notes += [f"{name} has gone back to an earlier state of this session." for name in self._returned]
        self._new, self._cells, self._returned = {}, {}, {}
        return notes
