"""Files of a cell in the workspace: created and changed files, and displays saved as files.

The system reports changes, or else a comparison of names and times finds them. Links are not followed. The inode time counts
too, because a program can reset the time of the content: new rights or a new hard link are a change.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from kernelexec.results import DisplayData, ExecuteResult, Output, decode_base64, read_audio
from kernelexec.text import clean_text
from kernelexec.workspace.file_watch import (
    CHANGES_MAX,
    PATHS_BYTES_MAX,
    FileWatcher,
    Signature,
    WatchedTree,
    WatchRefused,
    read_inode_clock,
)
from kernelexec.workspace.safe_files import closing_fd, create_file, final_name, open_directory_chain, open_top

#: Directories of tools, whose files are not reported.
IGNORED = frozenset(
    {".git", ".venv", "node_modules", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".kernelexec"}
)
#: The bound of compared entries on systems without reports of changes.
ENTRIES_MAX = 10_000
#: The number that distinguishes the notebooks of several owners of a session's name.
_NUMBER = re.compile(r"-\d+(?=\.ipynb$)")
#: The most entries for a comparison in the event loop.
_QUICK_ENTRIES = 500
#: The directory of saved displays in a workspace.
OUTPUTS = "outputs"
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "application/vnd.plotly.v1+json": "plotly.json",
    "application/vnd.vega.v5+json": "vega.json",
    "application/geo+json": "geojson",
}
_AUDIO_EXTENSIONS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/ogg": "ogg", "audio/flac": "flac"}
#: The most files of a cell. Each takes a tenth of a millisecond, in which no other session runs.
_FILES_MAX = 200
#: The number of names in order that are tried for a file.
_TRIES = 20
_TEXT = frozenset({"image/svg+xml", "text/html"})


class FileChanges:
    """The changes of a directory's files since the last call.

    Args:
        root: the directory.
        ignore: paths inside that are not reported, nor their unfinished replacements, nor notebooks with a number behind
            the name, which belong to other owners.
        watcher: reports changes. If None, or if it refuses the directory, up to ``ENTRIES_MAX`` files are compared.
    """

    def __init__(self, root: Path, *, ignore: frozenset[str] = frozenset(), watcher: FileWatcher | None = None) -> None:
        self.note: str | None = None
        """The reason for missing files in the last answer, or None if the answer is complete."""
        self._root = str(root)
        self._ignore = {_NUMBER.sub("", path) for path in ignore}
        self._reason = "this system does not report changes" if watcher is None else ""
        self._tree: WatchedTree | None = None
        self._gathered: set[str] = set()
        self._unnamed = 0
        """The number of gathered changes without their paths."""
        self._is_gathered = False
        self._known: dict[str, Signature] = {}
        self._is_complete = True
        self._scanned_at = read_inode_clock()
        if watcher is not None:
            try:
                self._tree = WatchedTree(watcher, root, IGNORED, self._is_ignored)
            except WatchRefused as exc:
                self._reason = str(exc)
        if self._tree is None:
            self._known = self.scan()

    @property
    def is_slow(self) -> bool:
        """Whether to call ``gather`` in a thread before ``changes``, since a look may take long."""
        return len(self._known) > _QUICK_ENTRIES if self._tree is None else self._tree.is_slow

    def gather(self) -> None:
        """Gather changes for the next call of ``changes``. For any thread."""
        self._gathered |= self._compare() if self._tree is None else self._look(self._tree)
        self._is_gathered = True

    def changes(self, own: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the new and changed files since the last call, sorted, relative to the workspace.

        The caller's ``own`` files, which have just been written, are included. A note has the number of files beyond the bound.
        """
        # After a comparison in a thread, a second comparison here would block the loop: only the own files are looked at.
        if self._tree is None and self._is_gathered:
            self._known |= {path: seen for path in own if (seen := self._sign(path)) is not None}
        else:
            self.gather()
        self._is_gathered = False
        paths, self._gathered = self._gathered | set(own), set()
        return self._fit(sorted(clean_text(path) for path in paths if not self._is_ignored(path)))

    def close(self) -> None:
        """End the watches."""
        if self._tree is not None:
            self._tree.close()

    def _fit(self, names: list[str]) -> tuple[str, ...]:
        """Return the first names, up to a bound of memory: a cell chooses the number and length of names."""
        ends = accumulate(map(sys.getsizeof, names))
        count = sum(end <= PATHS_BYTES_MAX for end in ends)
        unnamed, self._unnamed = self._unnamed + len(names) - count, 0
        if unnamed:
            note = f"files is not complete: its names are too long together, and {unnamed} more files changed."
            self.note = note if self.note is None else f"{self.note} {note}"
        return tuple(names[:count])

    def _look(self, tree: WatchedTree) -> set[str]:
        try:
            paths = tree.look()
        except WatchRefused as exc:
            # From here on by comparison. The last look's time stands in for the states that were never recorded.
            self._reason, self._scanned_at, self._tree = str(exc), tree.since, None
            paths = tree.take_changes(tree.since)
            self._unnamed += tree.unnamed
            tree.close()
            self._is_complete = False
            return paths | self._compare()
        self.note = f"files is not complete: more than {CHANGES_MAX} files changed." if tree.omitted else None
        self._unnamed += tree.unnamed
        tree.omitted = tree.unnamed = 0
        return paths

    def _compare(self) -> set[str]:
        since, was_complete, known = self._scanned_at, self._is_complete, self._known
        self._known = now = self.scan()
        if was_complete and self._is_complete:
            return {path for path, seen in now.items() if known.get(path) != seen}
        # Not all files were known before: for unknown files the inode time decides.
        return {path for path, seen in now.items() if (known[path] != seen if path in known else seen[1] >= since)}

    def _is_ignored(self, path: str) -> bool:
        return _NUMBER.sub("", final_name(path)) in self._ignore

    def _sign(self, path: str) -> Signature | None:
        with suppress(OSError):
            return _sign(os.stat(os.path.join(self._root, path), follow_symlinks=False))  # noqa: PTH116, PTH118 - as ``scan``
        return None

    def scan(self) -> dict[str, Signature]:
        """Return the rights, inode time, content time and size of each file."""
        self._scanned_at, self._is_complete, self.note = read_inode_clock(), True, None
        files: dict[str, Signature] = {}
        pending: list[tuple[str, os.stat_result | None]] = [("", None)]
        entries = 0
        while pending:
            relative, expected = pending.pop()
            with suppress(OSError), _listing(os.path.join(self._root, relative), expected) as listing:  # noqa: PTH118 - speed
                for entry in listing:
                    entries += 1
                    if entries > ENTRIES_MAX:
                        self._is_complete = False
                        self.note = f"files may not be complete: {self._reason}, and only {ENTRIES_MAX} files were compared."
                        return files
                    path = f"{relative}/{entry.name}" if relative else entry.name
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name not in IGNORED:
                                pending.append((path, entry.stat(follow_symlinks=False)))
                        elif entry.is_file(follow_symlinks=False):
                            files[path] = _sign(entry.stat(follow_symlinks=False))
        return files


def _sign(status: os.stat_result) -> Signature:
    return status.st_mode, status.st_ctime_ns, status.st_mtime_ns, status.st_size


@contextmanager
def _listing(path: str, expected: os.stat_result | None) -> Iterator[Iterator[os.DirEntry[str]]]:
    """List a directory, unless another has taken its place: a program may put a link there, or above it."""
    with closing_fd(open_top(path)) as fd:
        if expected is not None and not os.path.samestat(os.fstat(fd), expected):
            raise NotADirectoryError(errno.ENOTDIR, "It is another directory", path)
        with os.scandir(fd) as listing:
            yield listing


class DisplayFiles:
    """The saved files of a cell's displays, each in the best representation, up to a number of bytes and of files.

    The directory is opened without following links, so a link in its place leads no file elsewhere.
    """

    def __init__(self, workspace: Path, limit_bytes: int) -> None:
        self._workspace = workspace
        self._left = limit_bytes
        self.note: str | None = None
        """The reason for displays without a file, apart from the number of bytes; None without a reason."""

    def save(self, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """Write the files of cell number ``cell``. Return the paths in the workspace, in the order of the outputs."""
        contents = [item for output in outputs if (item := _choose_content(output)) is not None] if self._left else []
        if not contents:
            return ()
        saved: list[str] = []
        try:
            with ExitStack() as opened:
                workspace = open_top(self._workspace)
                directory = open_directory_chain(workspace, Path(OUTPUTS), opened, owner=os.fstat(workspace))
                for number, (extension, content) in enumerate(contents[:_FILES_MAX], 1):
                    if len(content) <= self._left:
                        self._left -= len(content)
                        saved.append(_write(directory, f"cell-{cell:04d}-{number}", extension, content))
        except OSError as exc:
            is_replaced = exc.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = f"{OUTPUTS} in the workspace is a link or a file" if is_replaced else exc.strerror
            self.note = f"{len(contents) - len(saved)} display(s) were not saved as files: {reason}."
        else:
            if len(contents) > _FILES_MAX:
                self.note = f"{len(contents) - _FILES_MAX} display(s) were not saved as files: a cell has {_FILES_MAX} at most."
        return tuple(f"{OUTPUTS}/{name}" for name in saved)


def _write(directory: int, stem: str, extension: str, content: bytes) -> str:
    numbers = *range(1, _TRIES), secrets.randbelow(10**12)  # a cell may have made files of many names
    for suffix in ("", *(f"-{number}" for number in numbers)):
        name = f"{stem}{suffix}.{extension}"
        with suppress(FileExistsError):
            create_file(Path(name), content, dir_fd=directory)
            return name
    raise FileExistsError(stem)


def _choose_content(output: Output) -> tuple[str, bytes] | None:
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    if (sound := read_audio(output)) is not None and sound.mime in _AUDIO_EXTENSIONS:
        return _AUDIO_EXTENSIONS[sound.mime], sound.content
    for mime, extension in _EXTENSIONS.items():
        value: Any = output.data.get(mime)
        if value is None:
            continue
        if mime.endswith("json"):
            if isinstance(value, dict | list):
                return extension, json.dumps(value).encode()
        elif isinstance(value, str):
            content = value.encode("utf-8", "replace") if mime in _TEXT else decode_base64(value)
            if content:
                return extension, content
    return None
