"""Deleting files for an agent: nothing that it has not read, nothing that a project lives by, no root; and saying what not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from kernelexec.config import FileBounds
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest
from kernelexec.results import FilesDeleted, NotDeleted
from kernelexec.workspace.agent_files.access import LISTED, Access, Target
from kernelexec.workspace.agent_files.globs import Globs
from kernelexec.workspace.agent_files.paths import Spot, system_error
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.agent_files.walk import Found, Walk, kind_of, walk
from kernelexec.workspace.openat2 import open_beneath
from kernelexec.workspace.rmtree import clear

#: What a project or its owner lives by: neither it nor what is in it is deleted here, in whatever case it is written.
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
        access: finds and opens them.
        bounds: how much one call looks at, and whether what is deleted must have been read.
    """

    def __init__(self, access: Access, bounds: FileBounds) -> None:
        self.tracker = ReadTracker(access, enforced=bounds.read_before_delete, entries=bounds.entries)
        self._access = access
        self.bounds = bounds

    def delete(self, path: str | os.PathLike[str], *, recursive: bool = False) -> FilesDeleted:
        """Delete a file, a link itself, an empty directory, or with ``recursive`` a directory with all that is in it.

        Raises:
            InvalidPath: it is not there, or nowhere that may be named.
            FileRefused: it stays; the message says why.
        """
        spot = self._access.spot(path)
        self._delete(spot, recursive=recursive)
        return FilesDeleted((spot.shown,))

    def delete_many(self, include: str | Iterable[str], exclude: str | Iterable[str] = ()) -> FilesDeleted:
        """Delete the files of the workspace that a pattern of ``include`` matches, and none of ``exclude``.

        A pattern that matches a directory matches all in it; such a directory goes too once it is empty. Each file by itself is
        deleted or refused.

        Raises:
            InvalidRequest: a pattern is none; nothing was deleted.
            InvalidPath, FileRefused, InvalidWorkDir: the workspace cannot be looked through.
        """
        included, excluded = Globs(include, "include"), Globs(exclude, "exclude")
        if not included:
            message = "include names no pattern: say which files, as in include=['*.tmp']."
            raise InvalidRequest(message)
        top = self._access.spot(".")
        with self._access.directory(top) as fd:
            seen = walk(fd, self.bounds.entries, enters=lambda entry: not is_critical(entry.parts[-1]))
        chosen = [entry for entry in seen.found if included.covers(entry.parts) and not excluded.covers(entry.parts)]
        refused = [
            NotDeleted((top / "/".join(parts)).shown, f"It cannot be looked into: {exc.strerror}.")
            for parts, exc in seen.closed
        ]
        deleted: list[str] = []
        directories = [entry for entry in reversed(chosen) if entry.kind == "directory"]  # the deeper ones first
        for entry in (*(one for one in chosen if one.kind != "directory"), *directories):
            spot = self._access.spot_at(top.path.joinpath(*entry.parts))
            try:
                if self._delete_one(spot, entry):
                    deleted.append(spot.shown)
            except (FileRefused, InvalidPath) as exc:
                if not isinstance(exc.__cause__, FileNotFoundError):  # it went by itself, as files that are written anew do
                    refused.append(NotDeleted(spot.shown, str(exc)))
        return FilesDeleted(tuple(deleted), tuple(refused), complete=seen.complete)

    def _delete_one(self, spot: Spot, entry: Found) -> bool:
        """Delete what a pattern matched; a directory that still holds something stays, without a word."""
        if entry.kind != "directory" or is_critical(entry.parts[-1]):
            self._delete(spot, recursive=False)
            return True
        if self._access.holds_fixed(spot.path):
            return False
        with self._access.changing(spot) as target:
            try:
                os.rmdir(target.name, dir_fd=target.directory)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
        return True

    def _delete(self, spot: Spot, *, recursive: bool) -> None:
        self._check(spot)
        with self._access.changing(spot) as target:
            if target.seen is None:
                raise system_error(errno.ENOENT)
            if kind_of(target.seen) == "directory":
                self._delete_directory(spot, target, recursive=recursive)
            elif why := self.tracker.unread(spot, target.seen):
                raise FileRefused(why)
            else:
                os.unlink(target.name, dir_fd=target.directory)
        self.tracker.forget(spot)

    def _check(self, spot: Spot) -> None:
        if not spot.parts:
            message = f"{spot.shown} is not deleted: it is the directory, or the file, that was given to work with."
            raise FileRefused(message)
        if self._access.holds_fixed(spot.path):
            message = f"{spot.shown} is not deleted: it is, or holds, what was given to work with or is protected."
            raise FileRefused(message)
        critical = next(filter(is_critical, spot.parts), None)
        if critical is not None:
            message = f"{spot.shown} is not deleted: a project may live by its {critical}. Do it by a command if it has to be."
            raise FileRefused(message)

    def _delete_directory(self, spot: Spot, target: Target, *, recursive: bool) -> None:
        fd = open_beneath(target.directory, target.name, LISTED)
        try:
            seen = walk(fd, self.bounds.entries, enters=lambda _: True)
            if seen.found and not recursive:
                message = f"{spot.shown} is not empty: give recursive=True to delete it with all that is in it."
                raise FileRefused(message)
            if why := self._against(spot, seen):
                raise FileRefused(why)
            clear(fd)
        finally:
            os.close(fd)
        try:
            os.rmdir(target.name, dir_fd=target.directory)
        except OSError as exc:
            if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            message = f"{spot.shown} was emptied but for what came to it meanwhile, or cannot be deleted: look, and try again."
            raise FileRefused(message) from exc
        for entry in seen.found:
            self.tracker.forget(self._access.spot_at(spot.path.joinpath(*entry.parts)))

    def _against(self, spot: Spot, seen: Walk) -> str | None:
        """What speaks against deleting all that was seen in a directory."""
        fixed = self._access.rights()
        for entry in seen.found:
            if is_critical(entry.parts[-1]) or (entry.seen.st_dev, entry.seen.st_ino) in fixed:
                held = (spot / "/".join(entry.parts)).shown
                return f"{spot.shown} is not deleted: it holds {held}, which stays. Delete what is beside that by itself."
        if not seen.complete:
            return f"{spot.shown} holds more than {self.bounds.entries} entries: delete parts of it, or do it by a command."
        for parts, exc in seen.closed:
            return f"{spot.shown} is not deleted: {(spot / '/'.join(parts)).shown} cannot be looked into: {exc.strerror}."
        return self.tracker.unread_among(spot, seen.found)


def is_critical(name: str) -> bool:
    """Whether a name is of what is never deleted here."""
    plain = name.casefold()
    return plain in CRITICAL or plain.startswith(_CRITICAL_BEGINNING)
