"""Files of a cell: those that it created or changed in the workspace, and its displays, saved as files.

Changes are found by comparing names, sizes and times; links are not followed. The time of the inode counts too, because a
program can reset the other one: new rights or a new hard link are a change.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from kernelexec.results import DisplayData, ExecuteResult, Output, decode_base64
from kernelexec.text import clean_text
from kernelexec.workspace.safe_files import DIRECTORY, closing_fd, create_file, open_directory_chain

#: Directories that tools fill, which are not reported.
IGNORED = frozenset(
    {".git", ".venv", "node_modules", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".kernelexec"}
)
#: The bound of entries; in a larger workspace only the first ones are compared.
ENTRIES_MAX = 5000
#: The temporary name of a file that is being replaced, which contains its final name.
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
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
_TEXT = frozenset({"image/svg+xml", "text/html"})


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


class DisplayFiles:
    """The saved files of one cell's displays, each in its best representation, up to a number of bytes.

    The directory is opened without following links: a kernel that puts a link in its place gets no file written elsewhere.
    """

    def __init__(self, workspace: Path, limit_bytes: int) -> None:
        self._workspace = workspace
        self._left = limit_bytes

    def save(self, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """Write the files of cell number ``cell``; return their paths in the workspace, in the order of the outputs."""
        contents = [item for output in outputs if (item := _choose_content(output)) is not None] if self._left else []
        if not contents:
            return ()
        saved: list[str] = []
        with suppress(OSError), ExitStack() as opened:
            workspace = os.open(self._workspace, DIRECTORY)
            directory = open_directory_chain(workspace, Path(OUTPUTS), opened, owner=os.fstat(workspace))
            for number, (extension, content) in enumerate(contents, 1):
                if len(content) <= self._left:
                    self._left -= len(content)
                    saved.append(_write(directory, f"cell-{cell:04d}-{number}", extension, content))
        return tuple(f"{OUTPUTS}/{name}" for name in saved)


def _write(directory: int, stem: str, extension: str, content: bytes) -> str:
    for attempt in range(1000):
        name = f"{stem}.{extension}" if not attempt else f"{stem}-{attempt}.{extension}"
        with suppress(FileExistsError):
            create_file(Path(name), content, dir_fd=directory)
            return name
    raise FileExistsError(stem)


def _choose_content(output: Output) -> tuple[str, bytes] | None:
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
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
