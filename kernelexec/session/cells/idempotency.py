"""Requests that name themselves: sent again, by whomever, they join their execution or get its outcome, and never run twice."""

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
from kernelexec.session.cells.result_builder import lost_track
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import in_thread

ID_CHARS = 200
#: How long the disk is waited for, in seconds.
_PATIENCE = 10.0


class Requests:
    """Knows the executions of one session by their requests' ids: those in memory by itself, all others by the journal."""

    def __init__(self, session: str, ledger: Ledger | None) -> None:
        self._session = session
        self._ledger = ledger
        self._turns: WeakValueDictionary[str, Turn] = WeakValueDictionary()
        self._admitting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check(self, request_id: object) -> None:
        """Refuse what cannot name a request here.

        Raises:
            InvalidRequest: no text of 1 to 200 printable characters, or the session keeps no journal.
        """
        if request_id is None:
            return
        if not isinstance(request_id, str) or not 1 <= len(request_id) <= ID_CHARS or not request_id.isprintable():
            message = f"request_id={request_id!r:.300}: it is a text of 1 to {ID_CHARS} printable characters."
            raise InvalidRequest(message)
        if self._ledger is None:
            message = (
                f"request_id={request_id!r}: session {self._session!r} keeps no journal: leave it out, or set journal=True."
            )
            raise InvalidRequest(message)

    async def admit(self, turn: Turn, add: Callable[[Turn], None], keeper: Keeper) -> Turn | ExecutionResult:
        """Have a turn added if its request is new; else the turn that it was first, or the outcome that the journal knows.

        An execution that never ran is none: its request, sent again, is new.

        Raises:
            InvalidRequest: the id names another cell.
            Refused: nobody here can know, or there is no room.
        """
        name = turn.request_id
        if name is None:
            add(turn)
            return turn
        async with self._admitting.setdefault(name, asyncio.Lock()):
            known = self._turns.get(name)
            if known is not None and not known.never_ran:
                self._check_same(name, cells.fingerprint(known.shown), turn)
                return known
            earlier = await self._look_up(name)
            if earlier is not None:
                self._check_same(name, earlier.fingerprint, turn)
                found = earlier.result or lost_track(earlier.execution_id, self._session, keeper.epoch, turn.isolation)
                return self.as_of_now(found, keeper) if earlier.here else outlived(found)
            add(turn)
            self._turns[name] = turn
            return turn

    def resumed(self, turn: Turn) -> None:
        """Know a turn that another owner had begun: its request, sent again, joins it."""
        if turn.request_id is not None:
            self._turns[turn.request_id] = turn

    def as_of_now(self, result: ExecutionResult, keeper: Keeper) -> ExecutionResult:
        """An outcome that a request gets which was sent again: what it says of the state is said anew."""
        return result if keeper.lives(result.kernel_epoch) or result.status == "running" else outlived(result)

    async def secure(self, name: str) -> None:
        """Have the journal on the disk before a named cell is sent: else, after its owner's end, it could run twice.

        Raises:
            Refused: it cannot be written; nothing was sent.
        """
        assert self._ledger is not None
        if (why := self._ledger.failure) is None:
            try:
                with anyio.fail_after(_PATIENCE):
                    await in_thread(self._ledger.secure, abandon=True)
            except TimeoutError:
                why = f"the disk did not answer within {_PATIENCE:.0f} s"
            except OSError as exc:
                why = exc.strerror or str(exc)
        if why is not None:
            message = (
                f"request_id={name!r}: the journal cannot be written ({why}), so that a retry could run the cell twice. "
                "Nothing ran: make room on the disk, or leave request_id out."
            )
            raise Refused(message)

    def noted(self, result: ExecutionResult) -> ExecutionResult:
        """The result, which says so if the journal does not have it."""
        failure = self._ledger.failure if self._ledger is not None else None
        if failure is None:
            return result
        return dataclasses.replace(result, notes=(*result.notes, f"Not recorded in the journal: {failure}."))

    async def _look_up(self, name: str) -> Earlier | None:
        assert self._ledger is not None
        return await anyio.to_thread.run_sync(partial(self._ledger.look_up, name))

    def _check_same(self, name: str, fingerprint: str, turn: Turn) -> None:
        if fingerprint != cells.fingerprint(turn.shown):
            message = f"request_id={name!r} was sent with another cell before: give each request an id of its own."
            raise InvalidRequest(message)


def outlived(result: ExecutionResult) -> ExecutionResult:
    """The result of a cell whose kernel has ended since: what it left there is gone."""
    if result.state != "kept":
        return result
    note = "It ran before, in a kernel that has ended since: what it left there is gone, unless it was replayed here."
    note += " A new request_id runs it again."
    return dataclasses.replace(result, state="lost", notes=(*result.notes, note))
