"""Snapshots of a session's variables. The kernel saves them into the workspace and loads them from there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from kernelexec.cancellation import await_to_end
from kernelexec.errors import InvalidRequest, Refused, did_you_mean
from kernelexec.events import SnapshotTaken
from kernelexec.launcher import protocol
from kernelexec.results import Restored, SavedVariable, SkippedVariable, Snapshot
from kernelexec.results.json_values import is_count, read_list, read_seconds, read_text
from kernelexec.session.context import KernelDirectory, SessionContext, check_names
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint, SessionCheckpoints
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import copy_between

SavedState: TypeAlias = Snapshot | AsyncCheckpoint | str | int
#: The directory of snapshots in a workspace. The kernel writes, reads and counts them.
SNAPSHOTS = Path(OURS, "snapshots")
#: The number of variables in one snapshot at most.
VARIABLES_MAX = 1000
_TEXT_CHARS = 300
_FILE = re.compile(r"\d{1,4}\.pickle", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class VariableSnapshots:
    """The variables of a session as a whole."""

    def __init__(self, context: SessionContext, checkpoints: SessionCheckpoints) -> None:
        self._context = context
        self._checkpoints = checkpoints

    async def snapshot(self, names: Iterable[str] | None = None, *, timeout: float | None = None) -> Snapshot:
        """Save variables, each into its own file in the workspace; the result lists skipped variables with reasons.

        A variable is skipped if it cannot be pickled or does not fit into ``Config(capacity={"value_bytes": ...})``.
        Objects shared by variables are saved with each variable and restored as separate copies. The snapshot waits in the
        queue like a cell, but no notebook records the snapshot.

        Args:
            names: the variables; the first thousand by default.
            timeout: seconds for the whole snapshot; the configuration's for cells by default. After that nothing is saved.

        Raises:
            InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            Refused: the workspace cannot have a directory for it.
            ExecutionFailed: the snapshot was interrupted; its result has the state of the kernel.
        """
        wanted = None if names is None else sorted(set(check_names(names, VARIABLES_MAX)))
        context, directory = self._context, KernelDirectory(self._context, SNAPSHOTS)
        call = protocol.save_variables_source(directory.kernel_path, wanted, context.config.capacity.value_bytes)
        try:
            prepare = partial(directory.prepare, call)
            answer = await context.call_launcher("", timeout, prepare=prepare, keeps_variables=True)
        except BaseException as exc:
            await directory.remove()
            if isinstance(exc, OSError):
                raise Refused(f"No snapshot can be saved: {exc.strerror or exc}.") from exc
            raise
        saved = (_parse_saved_variable(entry) for entry in _list_entries(answer, "saved"))
        left_out = (_parse_left_out(entry) for entry in _list_entries(answer, "left_out"))
        snapshot = Snapshot(directory.name, str(directory.path), tuple(filter(None, saved)), tuple(filter(None, left_out)))
        context.dispatch(SnapshotTaken(context.name, snapshot))
        return snapshot

    async def restore(
        self,
        saved: SavedState,
        *,
        names: Iterable[str] | None = None,
        files: bool = False,
        timeout: float | None = None,
    ) -> Restored:
        """Load the variables of a snapshot into the kernel, or go back to a checkpoint.

        A snapshot's variables replace variables of the same names. Pickles are read in the kernel only, and their classes and
        functions must exist there. After a missing or changed file, or a failed load, the variable stays unchanged; the
        result names these variables.

        A copy of a checkpoint replaces the kernel, so a checkpoint serves many times. The state of other processes stays, and
        so do files, unless requested otherwise.

        Args:
            saved: a result of ``snapshot`` or ``checkpoint``, or the name or number of a checkpoint.
            names: the variables of a snapshot; all by default.
            files: also make the workspace's files those of the checkpoint, if it was made with its files: new ones are
                removed, and changed ones replaced.
            timeout: seconds for it; the configuration's for cells by default.

        Raises:
            InvalidRequest, InvalidTimeout, QueueFull, Closed: before anything ran.
            ExecutionFailed: the call was interrupted.
            KernelStartFailed: the checkpoint's process is gone; the state is lost.
        """
        if not isinstance(saved, Snapshot):
            if names is not None:
                raise InvalidRequest("names: a checkpoint is restored as a whole. Omit names, or restore a snapshot.")
            return await self._checkpoints.restore(saved, timeout, files=files)
        if files:
            raise InvalidRequest("files: a snapshot has variables only. Omit files, or restore a checkpoint.")
        snapshot = saved
        wanted = snapshot.names if names is None else sorted(set(check_names(names, VARIABLES_MAX)))
        for name in wanted:
            if name not in snapshot.names:
                raise InvalidRequest(f"{name!r} is not in snapshot {snapshot.snapshot_id}{did_you_mean(name, snapshot.names)}.")
        variables = [saved for saved in snapshot.variables if saved.name in wanted and _FILE.fullmatch(saved.file)]
        async with self._kernel_directory(snapshot, {saved.file: saved.size_bytes for saved in variables}) as directory:
            sources = [(saved.name, saved.file, saved.sha256) for saved in variables]
            call = protocol.load_variables_source(self._context.to_kernel_path(directory), sources)
            answer = await self._context.call_launcher(call, timeout)
        restored = {name for name in read_list(answer.get("back")) if isinstance(name, str)}
        reasons = {
            left_out.name: left_out for entry in _list_entries(answer, "missing") if (left_out := _parse_left_out(entry))
        }
        missing = (
            reasons.get(name, SkippedVariable(name, "the kernel did not report it"))
            for name in sorted(wanted)
            if name not in restored
        )
        return Restored(tuple(sorted(restored & set(wanted))), tuple(missing))

    @asynccontextmanager
    async def _kernel_directory(self, snapshot: Snapshot, sizes: Mapping[str, int]) -> AsyncIterator[str]:
        """Yield the snapshot's directory; for another session's snapshot a temporary copy in this workspace.

        Files larger than in the snapshot, or above this session's ``capacity.value_bytes``, are left out.
        """
        # the kernel can reach its own workspace only; a snapshot is the caller's data, so its path is checked, not trusted
        workspace = self._context.workspace_path
        source, relative = Path(snapshot.directory), SNAPSHOTS / Path(snapshot.directory).name
        if source.is_relative_to(workspace) or source.parts[-len(relative.parts) :] != relative.parts:
            yield snapshot.directory
            return
        above, limit = source.parents[len(relative.parts) - 1], self._context.config.capacity.value_bytes
        copy = partial(copy_between, above, workspace, relative, sizes, limit_bytes=limit)
        try:
            with suppress(OSError):  # the kernel then reports missing files
                await await_to_end(run_in_thread(copy))
            yield str(workspace / relative)
        finally:
            await await_to_end(run_in_thread(remove_within, workspace, relative))


def _list_entries(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [entry for entry in read_list(answer.get(key))[:VARIABLES_MAX] if isinstance(entry, dict)]


def _parse_saved_variable(entry: dict[str, Any]) -> SavedVariable | None:
    """Return a variable from the kernel's answer, or None for a malformed entry."""
    name, kind, file, digest = (read_text(entry.get(key), _TEXT_CHARS) for key in ("name", "type", "file", "sha256"))
    size = entry.get("size_bytes")
    if not name or not _FILE.fullmatch(file) or not _DIGEST.fullmatch(digest) or not is_count(size):
        return None
    return SavedVariable(name, kind, size, read_seconds(entry.get("seconds")), file, digest)


def _parse_left_out(entry: dict[str, Any]) -> SkippedVariable | None:
    name, reason = entry.get("name"), entry.get("why")
    if not isinstance(name, str) or not isinstance(reason, str):
        return None
    return SkippedVariable(read_text(name, _TEXT_CHARS), read_text(reason, _TEXT_CHARS), entry.get("defined") is True)
