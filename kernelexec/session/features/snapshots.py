"""Snapshots of a session's variables: the kernel saves them into its workspace and loads them again."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from kernelexec.errors import InvalidRequest, nearest
from kernelexec.events import SnapshotTaken
from kernelexec.launcher import protocol
from kernelexec.results import LeftOut, Restored, SavedVariable, Snapshot
from kernelexec.session.context import SessionContext
from kernelexec.session.lifecycle import in_thread
from kernelexec.text import clean_text
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import copy_between

#: The directory of snapshots in a workspace. The kernel writes, reads and counts them.
SNAPSHOTS = Path(".kernelexec", "snapshots")
#: The number of variables in one snapshot at most.
VARIABLES_MAX = 1000
_TEXT_CHARS = 300
_FILE = re.compile(r"\d{1,4}\.pickle", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class VariableSnapshots:
    """The variables of one session as a whole."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    @property
    def names(self) -> tuple[str, ...]:
        """The variables' names, sorted, as the kernel last reported them; without those that begin with ``_``."""
        kernel = self._context.kernels.python.kernel
        return tuple(sorted(kernel.variable_names.known)) if kernel is not None else ()

    async def snapshot(self, names: Iterable[str] | None = None, *, timeout: float | None = None) -> Snapshot:
        """Save variables, each into a file of its own in the workspace; the result says why others were not saved.

        A variable is left out if it cannot be pickled or does not fit into ``Config(capacity={"snapshot_bytes": ...})``.
        Objects that variables share are saved with each of them: they come back as separate copies. It takes its turn like
        a cell, but is none: no notebook has it.

        Args:
            names: the variables; the first thousand by default.
            timeout: seconds that it may take; the configuration's for cells by default. Over it, nothing is saved.

        Raises:
            InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            ExecutionFailed: it was ended before it was done, or could not write; its result has the verdict on the state.
        """
        wanted = None if names is None else _checked(names)
        context, snapshot_id = self._context, uuid.uuid4().hex
        directory, limit = str(context.workspace / SNAPSHOTS / snapshot_id), context.config.capacity.snapshot_bytes
        try:
            call = protocol.save_variables_source(context.inside(directory), wanted, limit)
            answer = await context.call_launcher(call, timeout)
        except Exception:
            await in_thread(remove_within, context.workspace, SNAPSHOTS / snapshot_id)
            raise
        saved = (_saved(entry) for entry in _entries(answer, "saved"))
        left_out = (_left_out(entry) for entry in _entries(answer, "left_out"))
        snapshot = Snapshot(snapshot_id, directory, tuple(filter(None, saved)), tuple(filter(None, left_out)))
        context.dispatch(SnapshotTaken(context.name, snapshot))
        return snapshot

    async def restore(
        self, snapshot: Snapshot, *, names: Iterable[str] | None = None, timeout: float | None = None
    ) -> Restored:
        """Load the variables of a snapshot into the kernel, over those of the same names. Pickles are read in the kernel only.

        Their classes and functions must be there already. A file that is missing or changed, and an object that cannot be made
        again, leave their variable as it is; the result names them.

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
            (saved.name, saved.file, saved.sha256)
            for saved in snapshot.variables
            if saved.name in wanted and _FILE.fullmatch(saved.file)
        ]
        async with self._directory(snapshot, [file for _, file, _ in files]) as directory:
            call = protocol.load_variables_source(self._context.inside(directory), files)
            answer = await self._context.call_launcher(call, timeout)
        back = answer.get("back")
        restored = {name for name in (back if isinstance(back, list) else []) if isinstance(name, str)}
        reasons = {left.name: left for entry in _entries(answer, "missing") if (left := _left_out(entry))}
        missing = (
            reasons.get(name, LeftOut(name, "the kernel said nothing of it")) for name in sorted(wanted) if name not in restored
        )
        return Restored(tuple(sorted(restored & set(wanted))), tuple(missing))

    @asynccontextmanager
    async def _directory(self, snapshot: Snapshot, files: list[str]) -> AsyncIterator[str]:
        """Yield the snapshot's directory in this workspace, for another session's a temporary copy: kernels see no other."""
        workspace = self._context.workspace
        source, relative = Path(snapshot.directory), SNAPSHOTS / Path(snapshot.directory).name
        if source.is_relative_to(workspace) or source.parts[-len(relative.parts) :] != relative.parts:
            yield snapshot.directory
            return
        copy = partial(copy_between, source.parents[len(relative.parts) - 1], workspace, relative, files)
        try:
            with suppress(OSError):  # the kernel reports then that it is not there
                await in_thread(copy)
            yield str(workspace / relative)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(remove_within, workspace, relative)


def _check_type(snapshot: object) -> None:
    if not isinstance(snapshot, Snapshot):
        message = f"snapshot={snapshot!r:.100} must be a result of `snapshot()`, not {type(snapshot).__name__}."
        raise InvalidRequest(message)


def _checked(names: object) -> list[str]:
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [None]
    if not all(isinstance(name, str) for name in texts) or len(texts) > VARIABLES_MAX:
        message = f"names={names!r:.100} must be a list of names of variables, {VARIABLES_MAX} at most."
        raise InvalidRequest(message)
    return sorted({name for name in texts if isinstance(name, str)})


def _entries(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = answer.get(key)
    return [entry for entry in (entries if isinstance(entries, list) else [])[:VARIABLES_MAX] if isinstance(entry, dict)]


def _saved(entry: dict[str, Any]) -> SavedVariable | None:
    """Return a variable from the kernel's answer, if that is of the right form."""
    texts = [entry.get(key) for key in ("name", "type", "file", "sha256")]
    size, seconds = entry.get("size_bytes"), entry.get("seconds")
    name, kind, file, digest = (text if isinstance(text, str) else "" for text in texts)
    if not name or not _FILE.fullmatch(file) or not _DIGEST.fullmatch(digest):
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
        return None
    duration = float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0 else 0.0
    return SavedVariable(clean_text(name)[:_TEXT_CHARS], clean_text(kind)[:_TEXT_CHARS], size, duration, file, digest)


def _left_out(entry: dict[str, Any]) -> LeftOut | None:
    name, reason = entry.get("name"), entry.get("why")
    if not isinstance(name, str) or not isinstance(reason, str):
        return None
    return LeftOut(clean_text(name)[:_TEXT_CHARS], clean_text(reason)[:_TEXT_CHARS], entry.get("defined") is True)
