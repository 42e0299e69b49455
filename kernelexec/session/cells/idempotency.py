"""Idempotent requests: sending a ``request_id`` again joins the running cell or returns its stored result."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from kernelexec import cells
from kernelexec.errors import InvalidRequest, Refused
from kernelexec.events import Earlier, Ledger
from kernelexec.results import ExecutionResult
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.result_builder import unknown_result
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import in_thread

ID_CHARS = 200
#: How long the disk may take, in seconds.
_DISK_SECONDS = 10.0


class Requests:
    """The executions of one session by their request ids: in memory, or in the journal."""

    def __init__(self, session: str, ledger: Ledger | None) -> None:
        self._session = session
        self._ledger = ledger
        self._runs: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self._admitting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check(self, request_id: object) -> None:
        """Check a request id.

        Raises:
            InvalidRequest: it is not a text of 1 to 200 printable characters, or the session keeps no journal.
        """
        if request_id is None:
            return
        if not isinstance(request_id, str) or not 1 <= len(request_id) <= ID_CHARS or not request_id.isprintable():
            message = f"request_id={request_id!r:.300}: must be a text of 1 to {ID_CHARS} printable characters."
            raise InvalidRequest(message)
        if self._ledger is None:
            message = (
                f"request_id={request_id!r}: session {self._session!r} keeps no journal: leave it out, or set journal=True."
            )
            raise InvalidRequest(message)

    async def submit_once(self, name: str, run: Turn, add: Callable[[Turn], None], keeper: Keeper) -> Turn:
        """Add a run if its request is new; return it, or the earlier run of its request.

        Where only the journal knows the request, the run gets the recorded result and is not added. A run that never began
        does not count: its request, sent again, is new.

        Raises:
            InvalidRequest: the id names another cell.
            Refused: this session cannot know the request, or there is no room.
        """
        async with self._admitting.setdefault(name, asyncio.Lock()):
            known = self._runs.get(name)
            if known is not None and not known.never_ran:
                self._check_same(name, cells.fingerprint(known.shown), run)
                return known
            earlier = await self._look_up(name)
            if earlier is not None:
                self._check_same(name, earlier.fingerprint, run)
                result = earlier.result or unknown_result(run, self._session, keeper.epoch, earlier.execution_id)
                run.conclude(refresh_state(result, keeper) if earlier.here else mark_state_lost(result))
                run.answer()
                return run
            add(run)
            self._runs[name] = run
            return run

    def adopt(self, run: Turn) -> None:
        """Register a run of a previous owner: its request, sent again, joins it."""
        if run.request_id is not None:
            self._runs[run.request_id] = run

    async def fsync(self, name: str) -> None:
        """Write the journal to the disk before a named cell is sent: after a crash it could run twice otherwise.

        Raises:
            Refused: the journal cannot be written; nothing was sent.
        """
        assert self._ledger is not None
        if (failure := self._ledger.failure) is None:
            try:
                with anyio.fail_after(_DISK_SECONDS):
                    await in_thread(self._ledger.secure, abandon=True)
            except TimeoutError:
                failure = f"the disk did not answer within {_DISK_SECONDS:.0f} s"
            except OSError as exc:
                failure = exc.strerror or str(exc)
        if failure is not None:
            message = (
                f"request_id={name!r}: the journal cannot be written ({failure}), so that a retry could run the cell twice. "
                "Nothing ran: make room on the disk, or leave request_id out."
            )
            raise Refused(message)

    def noted(self, result: ExecutionResult) -> ExecutionResult:
        """Return the result, with a note if it is not in the journal."""
        failure = self._ledger.failure if self._ledger is not None else None
        if failure is None:
            return result
        return dataclasses.replace(result, notes=(*result.notes, f"Not recorded in the journal: {failure}."))

    async def _look_up(self, name: str) -> Earlier | None:
        assert self._ledger is not None
        return await anyio.to_thread.run_sync(partial(self._ledger.look_up, name))

    def _check_same(self, name: str, fingerprint: str, run: Turn) -> None:
        if fingerprint != cells.fingerprint(run.shown):
            message = f"request_id={name!r} was sent with another cell before: give each request an id of its own."
            raise InvalidRequest(message)


def refresh_state(result: ExecutionResult, keeper: Keeper) -> ExecutionResult:
    """Return the result of a repeated request, with the state as it is now."""
    return result if keeper.lives(result.kernel_epoch) or result.status == "running" else mark_state_lost(result)


def mark_state_lost(result: ExecutionResult) -> ExecutionResult:
    """Return the result of a cell whose kernel has ended since, with the state it has now."""
    if result.state != "kept":
        return result
    note = "It ran before, in a kernel that has ended since: its variables are gone, unless it was replayed here."
    note += " A new request_id runs it again."
    return dataclasses.replace(result, state="lost", notes=(*result.notes, note))
