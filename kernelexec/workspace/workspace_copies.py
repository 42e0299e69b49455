"""Copies of a workspace's files, for branches and checkpoints, and the way back of what has changed.

Where a file system shares the blocks of copies, as Btrfs and XFS do, a copy takes no space until one side is written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.workspace.agent_files.walk import WalkEntry, walk
from kernelexec.workspace.directory import give_to_owner, numbered_paths
from kernelexec.workspace.file_changes import IGNORED
from kernelexec.workspace.openat2 import open_beneath
from kernelexec.workspace.safe_files import DIRECTORY, closing_fd, final_name, open_directory_chain, short_temporary_name

#: Directories of tools, and of the journals of sessions, which both sides use together; a repository belongs to the files.
_SHARED = IGNORED - {".git"} | {".journals"}
_ENTRIES_MAX = 100_000
_PIECE_BYTES = 2**20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED_MAX = 20
#: The errors for a file that has changed its kind, its rights or its place meanwhile.
_OF_SOURCE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EAGAIN, errno.ENXIO}
)


@dataclass(slots=True)
class CopiedFiles:
    """What was copied: each path with the state of the copy, by which a later change of it is known."""

    states: dict[str, tuple[int, ...]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    """The paths that were removed."""
    left_out: list[str] = field(default_factory=list)
    """The paths that were not copied: beyond the bound of bytes, unreadable, or neither files nor links."""
    is_complete: bool = True
    """Whether there were no more entries than the bound."""

    def knows(self, path: str) -> bool:
        """Return whether a path that is not here was not there either when the copy was made."""
        return self.is_complete and not any(path == left_out or path.startswith(f"{left_out}/") for left_out in self.left_out)

    def describe_left_out(self) -> str | None:
        """Return a sentence on what was not copied; None if there is nothing."""
        paths = [*self.left_out, *([] if self.is_complete else [f"what follows the first {_ENTRIES_MAX} entries"])]
        return f"These files were not copied: {list_paths(paths)}." if paths else None


def copy_workspace(source: Path, target: Path, *, limit_bytes: int, ignore: frozenset[str] = frozenset()) -> CopiedFiles:
    """Copy the files of a workspace into a new, empty directory. For a thread. No link is followed; links are copied.

    Args:
        source: the workspace.
        target: the directory.
        limit_bytes: the most bytes of all files together; files that exceed the rest of it are left out.
        ignore: names of files in the workspace itself that are not copied, nor what they are just replaced by.

    Raises:
        OSError: the workspace cannot be listed, or the target cannot be written.
    """
    copied, left = CopiedFiles(), limit_bytes
    with closing_fd(os.open(source, DIRECTORY)) as top, closing_fd(os.open(target, DIRECTORY)) as target_fd:
        walked = walk(top, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
        for entry in walked.entries:
            if _stays(entry, ignore):
                continue
            path = "/".join(entry.parts)
            if entry.kind == "other" or (entry.kind == "file" and entry.seen.st_size > left):
                copied.left_out.append(path)
                continue
            left -= entry.seen.st_size if entry.kind == "file" else 0
            try:
                copied.states[path] = _copy(top, target_fd, entry)
            except OSError as exc:
                if exc.errno not in _OF_SOURCE:
                    raise
                copied.left_out.append(path)
        copied.left_out += ("/".join(parts) for parts, _ in walked.unreadable)
        copied.is_complete = walked.complete
    return copied


def bring_back(source: Path, target: Path, copied: CopiedFiles, *, ignore: frozenset[str] = frozenset()) -> CopiedFiles:
    """Bring the changes of a branch into the workspace that it was copied from; return what is new or changed.

    Files that the branch has created or changed replace those of the workspace, those that it has removed are removed, and all
    others stay. Arguments and errors are those of ``copy_workspace``.
    """
    changed = CopiedFiles()
    with closing_fd(os.open(source, DIRECTORY)) as top, closing_fd(os.open(target, DIRECTORY)) as target_fd:
        walked = walk(top, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
        present = set()
        for entry in walked.entries:
            path = "/".join(entry.parts)
            present.add(path)
            if _stays(entry, ignore) or copied.states.get(path) == _state(entry.seen):
                continue
            try:
                if entry.kind == "other":
                    changed.left_out.append(path)
                else:
                    changed.states[path] = _copy(top, target_fd, entry)
            except OSError:
                changed.left_out.append(path)
        changed.left_out += ("/".join(parts) for parts, _ in walked.unreadable)
        changed.is_complete = walked.complete
        for path in sorted(copied.states.keys() - present, reverse=True):  # what a directory contains before itself
            if changed.knows(path) and _remove(target_fd, path, copied.states[path][0]):
                changed.removed.append(path)
    return changed


def put_back(source: Path, target: Path, copied: CopiedFiles, *, ignore: frozenset[str] = frozenset()) -> CopiedFiles:
    """Make the files of a workspace those of its copy again; return what was changed and removed.

    Files are compared by size, time and rights. Files that were not there when the copy was made are removed; those that were
    left out of it stay as they are. Arguments and errors are those of ``copy_workspace``.
    """
    changed = CopiedFiles()
    with closing_fd(os.open(source, DIRECTORY)) as top, closing_fd(os.open(target, DIRECTORY)) as target_fd:
        walked = walk(target_fd, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
        present = {"/".join(entry.parts): entry for entry in walked.entries if not _stays(entry, ignore)}
        for path in sorted(present, reverse=True):  # what a directory contains before itself
            mode = present[path].seen.st_mode
            is_new = path not in copied.states and copied.knows(path)
            is_other = path in copied.states and stat.S_IFMT(copied.states[path][0]) != stat.S_IFMT(mode)
            if (is_new or is_other) and _remove(target_fd, path, mode):
                del present[path]
                changed.removed += [path] if is_new else []
        for entry in walk(top, _ENTRIES_MAX, enters=lambda _: True).entries:
            path = "/".join(entry.parts)
            if path not in copied.states or (path in present and _state(present[path].seen) == copied.states[path]):
                continue
            try:
                changed.states[path] = _copy(top, target_fd, entry)
            except OSError:
                changed.left_out.append(path)
    return changed


def make_copy_directory(workspace: Path, above: Path, name: str) -> Path:
    """Create a directory of that name in ``above`` in a workspace, with a number if the name is taken. For a thread.

    Raises:
        OSError: it cannot be created.
    """
    top = os.open(workspace, DIRECTORY)
    with ExitStack() as opened:
        parent = open_directory_chain(top, above, opened, owner=os.fstat(top))
        for path in numbered_paths(Path(name)):
            with suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
                give_to_owner(open_directory_chain(os.dup(parent), path, opened), os.fstat(top))
                return workspace / above / path
    raise AssertionError


def list_paths(paths: Sequence[str]) -> str:
    """Return the first paths for a sentence, and how many more there are."""
    more = len(paths) - _NAMED_MAX
    return f"{', '.join(paths[:_NAMED_MAX])}{f' and {more} more' if more > 0 else ''}"


def _is_shared(entry: WalkEntry) -> bool:
    return entry.kind == "directory" and entry.parts[-1] in _SHARED


def _stays(entry: WalkEntry, ignore: frozenset[str]) -> bool:
    return _is_shared(entry) or final_name(entry.parts[0]) in ignore


def _state(seen: os.stat_result) -> tuple[int, ...]:
    """Return mode, size and time of a file; of a directory its mode alone."""
    if stat.S_ISDIR(seen.st_mode):
        return (seen.st_mode,)
    return seen.st_mode, seen.st_size, seen.st_mtime_ns


def _copy(top: int, target_fd: int, entry: WalkEntry) -> tuple[int, ...]:
    """Copy one entry in the place of what is there; return the state of the copy."""
    *above, name = entry.parts
    with ExitStack() as opened:
        owner = os.fstat(target_fd)
        directory = open_directory_chain(os.dup(target_fd), Path(*above), opened, owner=owner)
        if entry.kind == "directory":
            with suppress(FileExistsError):
                os.mkdir(name, stat.S_IMODE(entry.seen.st_mode) | stat.S_IRWXU, dir_fd=directory)
                with closing_fd(os.open(name, DIRECTORY, dir_fd=directory)) as added:
                    give_to_owner(added, owner)
            return _state(entry.seen)
        unfinished = short_temporary_name()
        try:
            if entry.kind == "link":
                above_fd = opened.enter_context(closing_fd(open_beneath(top, "/".join(above) or ".", DIRECTORY)))
                os.symlink(os.readlink(name, dir_fd=above_fd), unfinished, dir_fd=directory)
                times = (entry.seen.st_atime_ns, entry.seen.st_mtime_ns)
                os.utime(unfinished, ns=times, dir_fd=directory, follow_symlinks=False)
            else:
                _copy_file(top, entry, directory, unfinished, owner)
            os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=directory)
            raise
        return _state(os.stat(name, dir_fd=directory, follow_symlinks=False))


def _copy_file(top: int, entry: WalkEntry, directory: int, name: str, owner: os.stat_result) -> None:
    with closing_fd(open_beneath(top, "/".join(entry.parts), _READ)) as source:
        seen = os.fstat(source)
        if not stat.S_ISREG(seen.st_mode):
            raise FileNotFoundError(f"{name} is no plain file")
        with closing_fd(os.open(name, _CREATE, 0o600, dir_fd=directory)) as target:
            give_to_owner(target, owner)
            _copy_content(source, target, entry.seen.st_size)
            os.fchmod(target, stat.S_IMODE(seen.st_mode) & 0o777)
            os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _copy_content(source: int, target: int, size: int) -> None:
    """Copy the first bytes of a file, which may grow or shrink meanwhile."""
    left = size
    with suppress(OSError, AttributeError):  # of another file system, or of a system that cannot do it
        while left and (count := os.copy_file_range(source, target, left)):
            left -= count
    while left and (piece := os.read(source, min(left, _PIECE_BYTES))):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]
        left -= len(piece)


def _remove(target_fd: int, path: str, mode: int) -> bool:
    """Remove a file, or an empty directory; return whether it is gone: what cannot be removed stays."""
    parent, _, name = path.rpartition("/")
    with suppress(OSError), closing_fd(open_beneath(target_fd, parent or ".", DIRECTORY)) as directory:
        (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(name, dir_fd=directory)
        return True
    return False
