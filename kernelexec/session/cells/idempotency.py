"""Idempotent requests: sending a ``request_id`` again joins the running cell or returns its stored result."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from kernelexec import cells
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.result_builder import build_unknown_result
from kernelexec.session.kernels.supervisor import KernelSupervisor
from kernelexec.session.lifecycle import run_in_thread

if TYPE_CHECKING:
    from kernelexec.records.journal import Journal

ID_CHARS_MAX = 200
#: The time limit for writing the journal to the disk.
_DISK_SECONDS = 10.0


class RequestIds:
    """The executions of a session by request id, in memory and in the journal."""

    def __init__(self, session: str, journal: Journal | None) -> None:
        self._session = session
        self._journal = journal
        # weak: the queue and the history keep runs alive; after that the journal answers. A lock lives as long as a call.
        self._runs: WeakValueDictionary[str, CellRun] = WeakValueDictionary()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check(self, request_id: object) -> None:
        """Raise ``InvalidRequest`` unless the id is 1 to 200 printable characters and the session keeps a journal."""
        if request_id is None:
            return
        if not isinstance(request_id, str) or not 1 <= len(request_id) <= ID_CHARS_MAX or not request_id.isprintable():
            raise InvalidRequest(f"request_id={request_id!r:.300}: must be a text of 1 to {ID_CHARS_MAX} printable characters.")
        if self._journal is None:
            raise InvalidRequest(
                f"request_id={request_id!r}: session {self._session!r} keeps no journal: omit request_id, or set journal=True."
            )

    async def submit_once(
        self, request_id: str, run: CellRun, enqueue: Callable[[CellRun], object], supervisor: KernelSupervisor
    ) -> CellRun:
        """Add the run of a new request to the queue; return the run, or the earlier run of the same request.

        For a request found only in the journal, the run gets the recorded result and is not added. A request with an unsent
        cell counts as new.

        Raises:
            InvalidRequest: the id belongs to another cell.
            Refused: the journal cannot answer for the request, or the queue is full.
        """
        # two calls with a new id must not both miss it in the journal, which is read in a thread, and both enqueue a run
        async with self._locks.setdefault(request_id, asyncio.Lock()):
            earlier_run = self._runs.get(request_id)
            if earlier_run is not None and not earlier_run.has_not_run:
                self._check_same_cell(request_id, cells.fingerprint(earlier_run.masked_cell), run)
                return earlier_run
            assert self._journal is not None
            earlier = await anyio.to_thread.run_sync(self._journal.find_request, request_id)
            if earlier is not None:
                self._check_same_cell(request_id, earlier.fingerprint, run)
                result = earlier.result
                if result is None:
                    result = build_unknown_result(run, self._session, supervisor.epoch, earlier.execution_id)
                run.finish(refresh_state(result, supervisor) if earlier.in_this_run else _mark_state_lost(result))
                run.wake_callers()
                return run
            enqueue(run)
            self._runs[request_id] = run
            return run

    def adopt(self, run: CellRun) -> None:
        """Register a run of a previous owner. A repeated request then joins the run."""
        if run.request_id is not None:
            self._runs[run.request_id] = run

    async def fsync(self, request_id: str) -> None:
        """Write the journal to disk before a cell is sent, or raise ``Refused``. So no cell runs twice after a crash."""
        assert self._journal is not None
        if (failure := self._journal.failure) is None:
            try:
                with anyio.fail_after(_DISK_SECONDS):
                    await run_in_thread(self._journal.flush_to_disk, abandon=True)
            except TimeoutError:
                failure = f"the disk did not answer within {_DISK_SECONDS:.0f} s"
            except OSError as exc:
                failure = exc.strerror or str(exc)
        if failure is not None:
            raise Refused(
                f"request_id={request_id!r}: the journal cannot be written ({failure}), so that a retry could run the cell "
                "twice. Nothing ran: free space on the disk, or omit request_id."
            )

    def add_journal_note(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result, with a note if the journal lacks it."""
        failure = self._journal.failure if self._journal is not None else None
        if failure is None:
            return result
        return dataclasses.replace(result, notes=(*result.notes, f"Not recorded in the journal: {failure}."))

    def _check_same_cell(self, request_id: str, fingerprint: str, run: CellRun) -> None:
        if fingerprint != cells.fingerprint(run.masked_cell):
            message = f"request_id={request_id!r} was sent with another cell before: use a new request_id for each request."
            raise InvalidRequest(message)


def refresh_state(result: ExecutionResult, supervisor: KernelSupervisor) -> ExecutionResult:
    """Return the result of a repeated request with the present state of its kernel."""
    return result if supervisor.is_alive(result.kernel_epoch) or result.status == "running" else _mark_state_lost(result)


def _mark_state_lost(result: ExecutionResult) -> ExecutionResult:
    """Return the result of a cell of an ended kernel, with the state ``lost``."""
    if result.state not in ("kept", "new"):
        return result
    note = "The cell ran in a kernel that has ended since: its variables are lost, unless it was replayed here."
    note += " A new request_id runs it again."
    return dataclasses.replace(result, state="lost", notes=(*result.notes, note))
