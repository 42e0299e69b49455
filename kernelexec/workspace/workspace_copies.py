"""Copies of a workspace's files, for branches and checkpoints, and the way back of changes.

On file systems with shared blocks, such as Btrfs and XFS, a copy takes no space until either side is written.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernelexec.errors import InvalidRequest
from kernelexec.results.one_line import count_things
from kernelexec.workspace.agent_files.access import WalkEntry, walk
from kernelexec.workspace.cell_files import IGNORED
from kernelexec.workspace.directory import give_to_owner, numbered_paths
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import (
    DIRECTORY,
    closing_fd,
    copy_content,
    final_name,
    open_directory_chain,
    open_top,
    short_temporary_name,
)
from kernelexec.workspace.system_calls import open_beneath

#: Directories of tools and of session journals, shared by both sides. A repository belongs to the files.
_SHARED = IGNORED - {".git"} | {".journals"}
#: The most bytes of all files of a copy together.
COPIED_BYTES = 1024 * 1024 * 1024
_ENTRIES_MAX = 100_000
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED_MAX = 20
#: The errors of a file whose kind, rights or place have changed meanwhile. Other errors, such as a full disk, end the copy.
_OF_SOURCE = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.EAGAIN, errno.ENXIO}
)


@dataclass(frozen=True, slots=True)
class CopyDirectory:
    """A directory for a copy in a workspace, open since its creation: a kernel may replace the path by a link."""

    workspace: Path
    relative: Path
    fd: int

    @property
    def path(self) -> Path:
        """The path, for functions of paths: call ``check`` before."""
        return self.workspace / self.relative

    def check(self) -> None:
        """Check that the path still leads to the directory.

        Raises:
            OSError: the path leads to another directory by now, or over a link.
        """
        with closing_fd(open_top(self.path)) as fd:
            if not os.path.samestat(os.fstat(fd), os.fstat(self.fd)):
                raise FileNotFoundError(errno.ENOENT, "another directory is in its place", str(self.path))

    def close(self) -> None:
        """Close the descriptor. The directory stays."""
        os.close(self.fd)

    def remove(self) -> None:
        """Remove the directory, without following a link, and close the descriptor."""
        remove_within(self.workspace, self.relative)
        self.close()


@dataclass(slots=True)
class CopiedFiles:
    """The copied files: each path with the state of the copy, for finding later changes."""

    states: dict[str, tuple[int, ...]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    """The removed paths."""
    left_out: list[str] = field(default_factory=list)
    """The paths without a copy: beyond the bound of bytes, unreadable, or neither files nor links."""
    is_complete: bool = True
    """Whether the entries were within the bound."""

    def knows(self, path: str) -> bool:
        """Return whether the absence of a path here means absence from the workspace at the time of the copy."""
        return self.is_complete and not any(path == left_out or path.startswith(f"{left_out}/") for left_out in self.left_out)

    def describe_left_out(self) -> str | None:
        """Return a sentence on files without a copy, or None if all files were copied."""
        paths = self._name_left_out()
        return f"These files were not copied: {_list_paths(paths)}." if paths else None

    def describe_return(self) -> tuple[str, ...]:
        """Return sentences on the restored, removed and unchanged files after the return of a copy."""
        parts = []
        if self.states:
            parts.append(f"{count_things('file', len(self.states))} came back: {_list_paths(sorted(self.states))}.")
        if self.removed:
            were = "was" if len(self.removed) == 1 else "were"
            parts.append(f"{count_things('file', len(self.removed))} {were} removed: {_list_paths(sorted(self.removed))}.")
        if paths := self._name_left_out():
            parts.append(f"These are as they are now: {_list_paths(paths)}.")
        return tuple(parts) or ("No file has changed since.",)

    def _name_left_out(self) -> list[str]:
        more = [] if self.is_complete else [f"what follows the first {_ENTRIES_MAX} entries"]
        return [*sorted(set(self.left_out)), *more]


def copy_workspace(source: Path | int, target: Path | int, *, ignore: frozenset[str] = frozenset()) -> CopiedFiles:
    """Copy the files of a workspace into a new, empty directory. For a thread. Links are copied, not followed.

    Files larger than the rest of ``COPIED_BYTES`` are left out.

    Args:
        source: the workspace, or the descriptor of a directory of ours inside.
        target: the directory, or its descriptor.
        ignore: paths of excluded files in the workspace. Their unfinished replacements are excluded too.

    Raises:
        OSError: the workspace cannot be listed, or the target cannot be written.
    """
    copied, left = CopiedFiles(), COPIED_BYTES
    with _opened(source) as top, _opened(target) as target_fd:
        walked = walk(top, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
        for entry in walked.entries:
            if _stays(entry, ignore):
                continue
            path = "/".join(entry.parts)
            if entry.kind == "other" or (entry.kind == "file" and entry.seen.st_size > left):
                copied.left_out.append(path)
                continue
            try:
                copied.states[path] = _copy(top, target_fd, entry)
            except OSError as exc:
                if exc.errno not in _OF_SOURCE:
                    raise
                copied.left_out.append(path)
            else:
                left -= entry.seen.st_size if entry.kind == "file" else 0
        copied.left_out += ("/".join(parts) for parts, _ in walked.unreadable)
        copied.is_complete = walked.complete
    return copied


@dataclass(frozen=True, slots=True)
class BranchChanges:
    """The changes of a branch's files since the copy."""

    entries: Mapping[str, WalkEntry]
    """New and changed entries, by path."""
    removed: Sequence[str]
    """The missing paths, each before the directories above."""
    unreadable: Sequence[str]
    is_complete: bool


def find_changes(source: Path | int, copied: CopiedFiles, *, ignore: frozenset[str] = frozenset()) -> BranchChanges:
    """Find the changes of the ``copied`` files of a branch. See ``copy_workspace`` for other arguments and errors.

    Raises:
        InvalidRequest: the files to copy have more than ``COPIED_BYTES`` together, holes included; nothing has changed.
    """
    with _opened(source) as top:
        walked = walk(top, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
    present = {"/".join(entry.parts): entry for entry in walked.entries}
    changes = {
        path: entry
        for path, entry in present.items()
        if not _stays(entry, ignore) and copied.states.get(path) != _state(entry.seen)
    }
    if (size := sum(entry.seen.st_size for entry in changes.values() if entry.kind == "file")) > COPIED_BYTES:
        message = f"The changed files of the branch have {size} bytes, and at most {COPIED_BYTES} are copied"
        raise InvalidRequest(f"{message}: remove some there. Nothing has changed.")
    unreadable = ["/".join(parts) for parts, _ in walked.unreadable]
    return BranchChanges(changes, sorted(copied.states.keys() - present.keys(), reverse=True), unreadable, walked.complete)


def bring_back(
    source: Path | int, target: Path | int, copied: CopiedFiles, changes: BranchChanges, *, seconds: float = math.inf
) -> CopiedFiles:
    """Bring the ``changes`` of a branch into the original workspace, and return the new and changed files there.

    Files created or changed by the branch replace files of the workspace, and files removed by the branch are removed. All
    other files stay. Files not copied after ``seconds`` are left out. See ``copy_workspace`` for other arguments and errors.
    """
    changed, until = CopiedFiles(left_out=list(changes.unreadable), is_complete=changes.is_complete), time.monotonic() + seconds
    with _opened(source) as top, _opened(target) as target_fd:
        for path, entry in changes.entries.items():
            try:
                if entry.kind == "other" or time.monotonic() > until:
                    changed.left_out.append(path)
                else:
                    changed.states[path] = _copy(top, target_fd, entry)
            except OSError:
                changed.left_out.append(path)
        # A path in an unreadable directory may still exist. ``_remove`` leaves a directory with new files of the workspace.
        for path in changes.removed:
            if changed.knows(path) and _remove(target_fd, path, copied.states[path][0]):
                changed.removed.append(path)
    return changed


def put_back(
    source: Path | int, target: Path | int, copied: CopiedFiles, *, ignore: frozenset[str] = frozenset()
) -> CopiedFiles:
    """Restore the files of a workspace from a copy. Return the changed, the removed and the unchanged files.

    Files are compared by size, time and rights. Files created since the copy are removed. Files left out of the copy are not
    changed, nor are files whose copies a kernel has changed or removed. See ``copy_workspace`` for arguments and errors.
    """
    changed = CopiedFiles(left_out=list(copied.left_out))
    with _opened(source) as top, _opened(target) as target_fd:
        walked = walk(target_fd, _ENTRIES_MAX, enters=lambda entry: not _is_shared(entry))
        present = {"/".join(entry.parts): entry for entry in walked.entries if not _stays(entry, ignore)}
        for path in sorted(present, reverse=True):  # the content of a directory before the directory
            mode = present[path].seen.st_mode
            is_new = path not in copied.states and copied.knows(path)
            is_other = path in copied.states and stat.S_IFMT(copied.states[path][0]) != stat.S_IFMT(mode)
            if (is_new or is_other) and _remove(target_fd, path, mode):
                del present[path]
                changed.removed += [path] if is_new else []
            elif is_new:
                changed.left_out.append(path)
        changed.left_out += ("/".join(parts) for parts, _ in walked.unreadable)
        changed.is_complete = copied.is_complete and walked.complete
        # A kernel can write to the copy: a missing entry, or another state than at its creation, is not the file of the copy.
        kept = {"/".join(entry.parts): entry for entry in walk(top, _ENTRIES_MAX, enters=lambda _: True).entries}
        for path, state in copied.states.items():
            if path in present and _state(present[path].seen) == state:
                continue
            entry = kept.get(path)
            try:
                if entry is None or not _is_copy(entry, state):
                    changed.left_out.append(path)
                else:
                    changed.states[path] = _copy(top, target_fd, entry)
            except OSError:
                changed.left_out.append(path)
        for path in sorted(changed.states, reverse=True):  # after the files: a directory may be read-only in the end
            if stat.S_ISDIR(mode := copied.states[path][0]):
                with suppress(OSError):
                    _change_rights(target_fd, path, mode)
    return changed


def make_copy_directory(workspace: Path, above: Path, name: str) -> CopyDirectory:
    """Create a directory in ``above`` in a workspace, with a number if the ``name`` is taken. For a thread.

    Raises:
        OSError: the directory cannot be created.
    """
    top = open_top(workspace)
    with ExitStack() as opened:
        parent = open_directory_chain(top, above, opened, owner=os.fstat(top))
        for path in numbered_paths(Path(name)):
            with suppress(FileExistsError):
                os.mkdir(path.name, dir_fd=parent)
                directory = CopyDirectory(workspace, above / path, os.open(path.name, DIRECTORY, dir_fd=parent))
                give_to_owner(directory.fd, os.fstat(top))
                return directory
    raise AssertionError


def _list_paths(paths: Sequence[str]) -> str:
    """Return the first paths for a sentence, and the number of others."""
    more = len(paths) - _NAMED_MAX
    return f"{', '.join(paths[:_NAMED_MAX])}{f' and {more} more' if more > 0 else ''}"


def _opened(directory: Path | int) -> AbstractContextManager[int]:
    return closing_fd(os.dup(directory) if isinstance(directory, int) else open_top(directory))


def _is_shared(entry: WalkEntry) -> bool:
    return entry.kind == "directory" and entry.parts[-1] in _SHARED


def _stays(entry: WalkEntry, ignore: frozenset[str]) -> bool:
    return _is_shared(entry) or "/".join((*entry.parts[:-1], final_name(entry.parts[-1]))) in ignore


def _state(seen: os.stat_result) -> tuple[int, ...]:
    """Return mode, size and time of a file, or the mode alone of a directory."""
    # Size and time of a directory change with its entries, which have states of their own.
    if stat.S_ISDIR(seen.st_mode):
        return (seen.st_mode,)
    return seen.st_mode, seen.st_size, seen.st_mtime_ns


def _is_copy(entry: WalkEntry, state: tuple[int, ...]) -> bool:
    # The owner has more rights to the directories of a copy.
    return stat.S_ISDIR(state[0]) if entry.kind == "directory" else _state(entry.seen) == state


def _copy(top: int, target_fd: int, entry: WalkEntry) -> tuple[int, ...]:
    """Copy an entry, in the place of another if there is any. Return the state of the copy."""
    *above, name = entry.parts
    with ExitStack() as opened:
        owner = os.fstat(target_fd)
        directory = open_directory_chain(os.dup(target_fd), Path(*above), opened, owner=owner)
        if entry.kind == "directory":
            with suppress(FileExistsError):
                os.mkdir(name, stat.S_IRWXU, dir_fd=directory)
                with closing_fd(os.open(name, DIRECTORY, dir_fd=directory)) as added:
                    give_to_owner(added, owner)
            # The owner's rights are needed for the files inside; ``put_back`` sets the exact rights at its end.
            _change_rights(directory, name, entry.seen.st_mode | stat.S_IRWXU)
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


def _change_rights(top: int, path: str, mode: int) -> None:
    with closing_fd(open_beneath(top, path, DIRECTORY)) as directory:
        os.fchmod(directory, stat.S_IMODE(mode))


def _copy_file(top: int, entry: WalkEntry, directory: int, name: str, owner: os.stat_result) -> None:
    with closing_fd(open_beneath(top, "/".join(entry.parts), _READ)) as source:
        seen = os.fstat(source)
        if not stat.S_ISREG(seen.st_mode):
            raise FileNotFoundError(f"{name} is no plain file")
        with closing_fd(os.open(name, _CREATE, 0o600, dir_fd=directory)) as target:
            give_to_owner(target, owner)
            copy_content(source, target, entry.seen.st_size)
            # Without set-user-ID and the like: a copy may have another owner.
            os.fchmod(target, stat.S_IMODE(seen.st_mode) & 0o777)
            os.utime(target, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _remove(target_fd: int, path: str, mode: int) -> bool:
    """Remove a file or an empty directory. Return whether the removal succeeded."""
    parent, _, name = path.rpartition("/")
    with suppress(OSError), closing_fd(open_beneath(target_fd, parent or ".", DIRECTORY)) as directory:
        (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(name, dir_fd=directory)
        return True
    return False
