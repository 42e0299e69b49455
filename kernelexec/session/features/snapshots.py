"""What a session's caller can do with its variables as a whole: save them where the kernel runs, and load them again."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from kernelexec.cells import CodeCell
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest, KernelError, nearest
from kernelexec.events import Event, SnapshotTaken
from kernelexec.launcher import protocol
from kernelexec.results import ExecutionResult, LeftOut, Restored, SavedVariable, Snapshot
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.queue import Queue
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life, in_thread
from kernelexec.text import clean_text
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import copy_between

#: Where snapshots are in a workspace. The kernel writes, reads and counts them.
PLACE = Path(".kernelexec", "snapshots")
#: How many variables one snapshot has at most.
VARIABLES_MAX = 1000
_TEXT_CHARS = 300
_FILE = re.compile(r"\d{1,4}\.pickle", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Snapshots:
    """The part of a session that concerns its variables as a whole."""

    name: str
    life: Life
    isolation: str
    workspace: Path
    _tell: Callable[[Event], None]
    _config: Config
    _keeper: Keeper
    _queue: Queue
    _inside: Callable[[str], str]

    @property
    def names(self) -> tuple[str, ...]:
        """The variables' names, sorted, as the kernel last said them; those that begin with ``_`` are not among them."""
        kernel = self._keeper.kernel
        return tuple(sorted(kernel.names.known)) if kernel is not None else ()

    async def snapshot(self, names: Iterable[str] | None = None, *, timeout: float | None = None) -> Snapshot:
        """Save variables, each into a file of its own in the workspace, and say which were saved and why others were not.

        What cannot be pickled is left out, and so is what does not fit into ``Config(capacity={"snapshot_bytes": ...})``.
        Objects that variables share are saved with each of them: they come back as separate copies. It takes its turn like
        a cell, but is none: no notebook has it.

        Args:
            names: which variables; the first thousand by default.
            timeout: seconds that it may take; the configuration's for cells by default. Over it, nothing is saved.

        Raises:
            InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            ExecutionFailed: it was ended before it was done, or could not write; the result says what became of the state.
        """
        wanted = None if names is None else _checked(names)
        snapshot_id = uuid.uuid4().hex
        place = self.workspace / PLACE
        directory, limit = str(place / snapshot_id), self._config.capacity.snapshot_bytes
        try:
            request = protocol.save_variables_source(self._inside(directory), wanted, limit)
            answer = await self._have(request, timeout)
        except Exception:
            await in_thread(remove_within, self.workspace, PLACE / snapshot_id)
            raise
        saved = (_saved(said) for said in _listed(answer, "saved"))
        left_out = (_left_out(said) for said in _listed(answer, "left_out"))
        snapshot = Snapshot(snapshot_id, directory, tuple(filter(None, saved)), tuple(filter(None, left_out)))
        self._tell(SnapshotTaken(self.name, snapshot))
        return snapshot

    async def restore(
        self, snapshot: Snapshot, *, names: Iterable[str] | None = None, timeout: float | None = None
    ) -> Restored:
        """Load the variables of a snapshot into the kernel, over those of the same names. Pickles are read in the kernel only.

        Classes and functions that they are made of must be there already. A file that is missing or changed, and an object
        that cannot be made again, are said, and leave their variable as it is.

        Raises:
            InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            ExecutionFailed: it was ended before it was done.
        """
        _check_type(snapshot)
        wanted = snapshot.names if names is None else _checked(names)
        for name in wanted:
            if name not in snapshot.names:
                message = f"{name!r} is not in snapshot {snapshot.snapshot_id}{nearest(name, snapshot.names)}."
                raise InvalidRequest(message)
        files = [
            (one.name, one.file, one.sha256) for one in snapshot.variables if one.name in wanted and _FILE.fullmatch(one.file)
        ]
        async with self._within(snapshot, [file for _, file, _ in files]) as directory:
            answer = await self._have(protocol.load_variables_source(self._inside(directory), files), timeout)
        back = answer.get("back")
        there = {name for name in (back if isinstance(back, list) else []) if isinstance(name, str)}
        why = {left.name: left for said in _listed(answer, "missing") if (left := _left_out(said))}
        gone = (why.get(name, LeftOut(name, "the kernel said nothing of it")) for name in sorted(wanted) if name not in there)
        return Restored(tuple(sorted(there & set(wanted))), tuple(gone))

    @asynccontextmanager
    async def _within(self, snapshot: Snapshot, files: list[str]) -> AsyncIterator[str]:
        """The directory of a snapshot in this workspace; another session's is copied here for as long: kernels see no other."""
        source, relative = Path(snapshot.directory), PLACE / Path(snapshot.directory).name
        if source.is_relative_to(self.workspace) or source.parts[-len(relative.parts) :] != relative.parts:
            yield snapshot.directory
            return
        copy = partial(copy_between, source.parents[len(relative.parts) - 1], self.workspace, relative, files)
        try:
            with suppress(OSError):  # the kernel says then that it is not there
                await in_thread(copy)
            yield str(self.workspace / relative)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(remove_within, self.workspace, relative)

    async def _have(self, request: str, timeout: float | None) -> dict[str, Any]:
        """Have the launcher do something in the session's turn; what it answered, of which nothing is checked."""
        self.life.check_open()
        budget = self._config.budgets.timeout if timeout is None else seconds(timeout, "timeout")
        turn = Turn(CodeCell(request), timeout=budget, own=True, isolation=self.isolation)
        self._queue.add(turn)
        try:
            result: ExecutionResult = await self._queue.outcome(turn, None)
        except anyio.get_cancelled_exc_class():
            turn.ask_interrupt()  # nobody can take it up again
            raise
        answer = turn.said().get("answer")
        if not isinstance(answer, dict):
            result.raise_for_error()
            raise KernelError("The kernel did not say what it saved or loaded: it may not be the one that was started.")
        return answer


def _check_type(snapshot: object) -> None:
    if not isinstance(snapshot, Snapshot):
        message = f"snapshot={snapshot!r:.100}: it is what `snapshot()` returned, not {type(snapshot).__name__}."
        raise InvalidRequest(message)


def _checked(names: object) -> list[str]:
    found = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [None]
    if not all(isinstance(name, str) for name in found) or len(found) > VARIABLES_MAX:
        message = f"names={names!r:.100}: they are the names of variables, in a list, {VARIABLES_MAX} at most."
        raise InvalidRequest(message)
    return sorted({name for name in found if isinstance(name, str)})


def _listed(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = answer.get(key)
    return [said for said in (found if isinstance(found, list) else [])[:VARIABLES_MAX] if isinstance(said, dict)]


def _saved(said: dict[str, Any]) -> SavedVariable | None:
    """A variable as the kernel says it, if that is of the right form."""
    texts = [said.get(key) for key in ("name", "type", "file", "sha256")]
    size, took = said.get("size_bytes"), said.get("seconds")
    name, kind, file, digest = (text if isinstance(text, str) else "" for text in texts)
    if not name or not _FILE.fullmatch(file) or not _DIGEST.fullmatch(digest):
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
        return None
    duration = float(took) if isinstance(took, int | float) and math.isfinite(took) and took >= 0 else 0.0
    return SavedVariable(clean_text(name)[:_TEXT_CHARS], clean_text(kind)[:_TEXT_CHARS], size, duration, file, digest)


def _left_out(said: dict[str, Any]) -> LeftOut | None:
    name, why = said.get("name"), said.get("why")
    if not isinstance(name, str) or not isinstance(why, str):
        return None
    return LeftOut(clean_text(name)[:_TEXT_CHARS], clean_text(why)[:_TEXT_CHARS], said.get("defined") is True)
