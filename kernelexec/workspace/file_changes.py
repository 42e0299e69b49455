"""Files that a cell created or changed in the workspace, found by comparing names, sizes and times.

Links are not followed. The time of the inode counts too, because a program can reset the other one: new rights or a new hard
link are a change.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelexec.text import clean_text
from kernelexec.workspace.safe_files import DIRECTORY, closing_fd

#: Directories that tools fill, which are not reported.
IGNORED = frozenset(
    {".git", ".venv", "node_modules", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".kernelexec"}
)
#: The bound of entries; in a larger workspace only the first ones are compared.
ENTRIES_MAX = 5000
#: The temporary name of a file that is being replaced, which contains its final name.
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")


class FileChanges:
    """The changes of a directory's files since the last call.

    Args:
        root: the directory.
        ignore: paths in it that are not reported, nor the files that they are replaced by.
    """

    def __init__(self, root: Path, *, ignore: frozenset[str] = frozenset()) -> None:
        self._root = str(root)
        self._ignore = ignore
        self._known = self.scan()

    def changes(self) -> tuple[str, ...]:
        """Return the files that are new or changed since the last call, sorted, relative to the workspace."""
        now = self.scan()
        known, self._known = self._known, now
        return tuple(sorted(clean_text(path) for path, seen in now.items() if known.get(path) != seen))

    def _is_ignored(self, path: str) -> bool:
        unfinished = _UNFINISHED.fullmatch(path)
        return path in self._ignore or (unfinished is not None and unfinished[1] in self._ignore)

    def scan(self) -> dict[str, tuple[int, ...]]:
        """Return of each file its rights, the times of its inode and of its content, and its size."""
        files: dict[str, tuple[int, ...]] = {}
        pending: list[tuple[str, os.stat_result | None]] = [("", None)]
        entries = 0
        while pending:
            relative, expected = pending.pop()
            with suppress(OSError), _listing(os.path.join(self._root, relative), expected) as listing:  # noqa: PTH118 - speed
                for entry in listing:
                    entries += 1
                    if entries > ENTRIES_MAX:
                        return files
                    path = f"{relative}/{entry.name}" if relative else entry.name
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in IGNORED:
                                pending.append((path, entry.stat(follow_symlinks=False)))
                        elif not self._is_ignored(path) and entry.is_file(follow_symlinks=False):
                            seen = entry.stat(follow_symlinks=False)
                            files[path] = (seen.st_mode, seen.st_ctime_ns, seen.st_mtime_ns, seen.st_size)
        return files


@contextmanager
def _listing(path: str, expected: os.stat_result | None) -> Iterator[Iterator[os.DirEntry[str]]]:
    """List a directory if it is still the expected one: a program may put a link in its place, or above it."""
    with closing_fd(os.open(path, DIRECTORY)) as fd:
        if expected is not None and not os.path.samestat(os.fstat(fd), expected):
            raise NotADirectoryError(errno.ENOTDIR, "It is another directory", path)
        with os.scandir(fd) as listing:
            yield listing
