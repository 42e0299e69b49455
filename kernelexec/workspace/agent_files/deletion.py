"""Deletion of files for an agent: no unread files, no files that a project needs, no roots; refusals are reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from kernelexec.config import FileBounds
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest
from kernelexec.results import FilesDeleted, NotDeleted
from kernelexec.workspace.agent_files.access import LISTED, Access, Target
from kernelexec.workspace.agent_files.globs import Globs
from kernelexec.workspace.agent_files.paths import WorkspacePath, system_error
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.agent_files.walk import WalkEntry, WalkResult, kind_of, walk
from kernelexec.workspace.openat2 import open_beneath
from kernelexec.workspace.rmtree import clear

#: Names, in any case, of files and directories that a project or its owner needs: they and their content are not deleted.
CRITICAL = frozenset(
    {
        *(".git", ".hg", ".svn", ".env", ".venv", "venv", "node_modules"),
        *(".ssh", ".gnupg", ".kernelexec", ".journals"),
    }
)
_CRITICAL_BEGINNING = ".env."


class Deletions:
    """Deletes files and directories beneath the roots of one session. For a thread.

    Args:
        access: opens the files.
        bounds: the bound of entries of one call, and whether files must have been read before they are deleted.
    """

    def __init__(self, access: Access, bounds: FileBounds) -> None:
        self.tracker = ReadTracker(access, enforced=bounds.read_before_delete, entries=bounds.entries)
        self._access = access
        self.bounds = bounds

    def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link itself, an empty directory, or with ``recursive`` a directory with all that is in it.

        Raises:
            InvalidPath: the path is missing, or outside of all roots.
            FileRefused: it is not deleted; the message says why.
        """
        spot = self._access.spot(path)
        self._delete(spot, recursive=recursive)
        return FilesDeleted((spot.shown,))

    def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete the files of the workspace that match a pattern of ``include`` and none of ``exclude``.

        A pattern that matches a directory matches its content; the directory is deleted too once it is empty. Each file is
        deleted or refused by itself.

        Raises:
            InvalidRequest: a pattern is malformed; nothing was deleted.
            InvalidPath, FileRefused, InvalidWorkDir: the workspace cannot be listed.
        """
        included, excluded = Globs(include, "include"), Globs(exclude, "exclude")
        if not included:
            message = "include names no pattern: say which files, as in include=['*.tmp']."
            raise InvalidRequest(message)
        top = self._access.spot(".")
        with self._access.directory(top) as fd:
            seen = walk(fd, self.bounds.entries, enters=lambda entry: not is_critical(entry.parts[-1]))
        chosen = [entry for entry in seen.entries if included.covers(entry.parts) and not excluded.covers(entry.parts)]
        refused = [
            NotDeleted((top / "/".join(parts)).shown, f"It cannot be looked into: {exc.strerror}.")
            for parts, exc in seen.unreadable
        ]
        deleted: list[str] = []
        directories = [entry for entry in reversed(chosen) if entry.kind == "directory"]  # the deeper ones first
        for entry in (*(text for text in chosen if text.kind != "directory"), *directories):
            spot = self._access.spot_at(top.path.joinpath(*entry.parts))
            try:
                if self._delete_one(spot, entry):
                    deleted.append(spot.shown)
            except (FileRefused, InvalidPath) as exc:
                if not isinstance(exc.__cause__, FileNotFoundError):  # files that are being replaced disappear by themselves
                    refused.append(NotDeleted(spot.shown, str(exc)))
        return FilesDeleted(tuple(deleted), tuple(refused), complete=seen.complete)

    def _delete_one(self, spot: WorkspacePath, entry: WalkEntry) -> bool:
        """Delete a matched entry; a directory that is not empty stays, and is not reported."""
        if entry.kind != "directory" or is_critical(entry.parts[-1]):
            self._delete(spot, recursive=False)
            return True
        if self._access.contains_root(spot.path):
            return False
        with self._access.changing(spot) as target:
            try:
                os.rmdir(target.name, dir_fd=target.directory)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        return True

    def _delete(self, spot: WorkspacePath, *, recursive: bool) -> None:
        self._check(spot)
        with self._access.changing(spot) as target:
            if target.seen is None:
                raise system_error(errno.ENOENT)
            if kind_of(target.seen) == "directory":
                self._delete_directory(spot, target, recursive=recursive)
            elif reason := self.tracker.reason_unread(spot, target.seen):
                raise FileRefused(reason)
            else:
                os.unlink(target.name, dir_fd=target.directory)
        self.tracker.forget(spot)

    def _check(self, spot: WorkspacePath) -> None:
        if not spot.parts:
            message = f"{spot.shown} is not deleted: it is the workspace or a context path."
            raise FileRefused(message)
        if self._access.contains_root(spot.path):
            message = f"{spot.shown} is not deleted: it is, or contains, the workspace, a context path or a protected path."
            raise FileRefused(message)
        critical = next(filter(is_critical, spot.parts), None)
        if critical is not None:
            message = f"{spot.shown} is not deleted: a project may live by its {critical}. Do it by a command if it has to be."
            raise FileRefused(message)

    def _delete_directory(self, spot: WorkspacePath, target: Target, *, recursive: bool) -> None:
        fd = open_beneath(target.directory, target.name, LISTED)
        try:
            seen = walk(fd, self.bounds.entries, enters=lambda _: True)
            if seen.entries and not recursive:
                message = f"{spot.shown} is not empty: give recursive=True to delete it with all that is in it."
                raise FileRefused(message)
            if reason := self._against(spot, seen):
                raise FileRefused(reason)
            clear(fd)
        finally:
            os.close(fd)
        try:
            os.rmdir(target.name, dir_fd=target.directory)
        except OSError as exc:
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            message = f"{spot.shown} was emptied except for new files, or cannot be deleted: list it, and try again."
            raise FileRefused(message) from exc
        for entry in seen.entries:
            self.tracker.forget(self._access.spot_at(spot.path.joinpath(*entry.parts)))

    def _against(self, spot: WorkspacePath, seen: WalkResult) -> str | None:
        """Return the reasons against deleting the entries of a directory."""
        fixed = self._access.rights()
        for entry in seen.entries:
            if is_critical(entry.parts[-1]) or (entry.seen.st_dev, entry.seen.st_ino) in fixed:
                held = (spot / "/".join(entry.parts)).shown
                return f"{spot.shown} is not deleted: it contains {held}, which stays. Delete the other entries one by one."
        if not seen.complete:
            return f"{spot.shown} holds more than {self.bounds.entries} entries: delete parts of it, or do it by a command."
        for parts, exc in seen.unreadable:
            return f"{spot.shown} is not deleted: {(spot / '/'.join(parts)).shown} cannot be looked into: {exc.strerror}."
        return self.tracker.unread_among(spot, seen.entries)


def is_critical(name: str) -> bool:
    """Return whether files of a name are never deleted here."""
    plain = name.casefold()
    return plain in CRITICAL or plain.startswith(_CRITICAL_BEGINNING)
