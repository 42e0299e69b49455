"""What the files hold that a session's cells see, as one digest: equal where nothing has changed that they could read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kernelexec.workspace.displays import DIRECTORY
from kernelexec.workspace.file_changes import Watch
from kernelexec.workspace.safe_files import read_regular

#: Of a larger file the times count, not the content; in bytes.
_FILE_BYTES = 16 * 1024 * 1024
#: What a session writes into its workspace itself: files of displays, its notebook, and those that have its name and a number.
_OURS = rf"{DIRECTORY}/(?:cell-\d{{{{4,}}}}-\d+(?:-\d+)?\.\w+)?\Z|{{}}(?:-\d+)?\.ipynb\Z"
_NUMBER = re.compile(r"(?:-\d+)?\.ipynb\Z")


class Contents:
    """Remembers the digests of files that do not change. For a thread: files are read.

    Args:
        root: the workspace, without the files that are made of displays.
        others: directories and files that cells see besides.
        notebook: the session's name for its notebook; those of its earlier lives in the workspace do not count either.
    """

    def __init__(self, root: Path, others: Iterable[Path] = (), *, notebook: str | None = None) -> None:
        ignore = frozenset({notebook} if notebook else ())
        self._ours = re.compile(_OURS.format("" if notebook is None else re.escape(_NUMBER.sub("", notebook))))
        seen = [(root, ignore), *((other, frozenset[str]()) for other in others if other.is_dir())]
        self._roots = [(place, Watch(place, ignore=ignored, whole=True)) for place, ignored in seen]
        self._files = [other for other in others if not other.is_dir()]
        self._known: dict[str, tuple[object, str]] = {}
        self._root = root

    def stamp(self) -> str:
        """What stands for the times and sizes of all of them: another one where anything was written, whatever it holds."""
        looks = [sorted(watch.look().items()) for _, watch in self._roots]
        seen = [
            (place, path, times)
            for place, look in enumerate(looks)
            for path, times in look
            if place or not self._ours.match(path)
        ]
        return hashlib.sha256(repr(seen).encode("utf-8", "surrogateescape")).hexdigest()

    def digest(self) -> str | None:
        """The digest of now; None where there is too much to be looked at."""
        found: list[tuple[str, str]] = []
        for place, (root, watch) in enumerate(self._roots):
            for path, seen in watch.look().items():
                if place or not self._ours.match(path):
                    found.append((f"{place}/{path}", self._of(root / path, seen)))
            if watch.overfull:
                return None
        found += [(str(path), self._of(path, _seen(path))) for path in self._files]
        return hashlib.sha256(repr(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()

    def holds_module(self, name: str, besides: Iterable[str] = ()) -> bool:
        """Whether the workspace, or one of these directories, has an entry that Python could import by that first name."""
        places = (self._root, *map(Path, besides))
        return any(name == entry.partition(".")[0] for place in places for entry in _names(place))

    def _of(self, path: Path, seen: tuple[int, ...]) -> str:
        """What stands for a file: its rights and its content, or where that is much or cannot be read its times and size."""
        known = self._known.get(str(path))
        if known is not None and known[0] == seen:
            return known[1]
        text = repr(seen)
        if seen and seen[-1] <= _FILE_BYTES:
            try:
                text = f"{seen[0]:o} {hashlib.sha256(read_regular(path, _FILE_BYTES + 1)).hexdigest()}"
            except OSError:
                text = f"unread {seen}"
        self._known[str(path)] = seen, text
        return text


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - text out
    except OSError:
        return []


def _seen(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - links are not followed
    except OSError:
        return ()
    return found.st_mode, found.st_ctime_ns, found.st_mtime_ns, found.st_size
