"""The living sessions of this user on this machine, each known by a note in its private directory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidRequest
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.handover import NAME as NOTE_OF_KERNEL
from kernelexec.provisioning.runtime.handover import Handover
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.provisioning.runtime.owned_directory import NAME, Owner, is_held
from kernelexec.workspace.directory import check_name
from kernelexec.workspace.rmtree import DIRECTORY
from kernelexec.workspace.safe_files import replace_file

_NOTE, _NOTE_BYTES, _LANGUAGE = "session.json", 16 * 1024, "language"
_FILES = ("notebook", "journal")
#: Where the server that has an executor takes commands from its user, and the key that these need, in its private directory.
CONTROL, CONTROL_KEY = "control", "control.key"
#: What is a session's own in its private directory, beside the directories of its kernels.
KEPT = frozenset({_NOTE, NOTE_OF_KERNEL, "identity"})
_ROOTS_MAX, _SESSIONS_MAX = 1000, 1000


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A session that some process of this user has open; ``kernel`` is the private directory of its newest kernel."""

    name: str
    workspace: str
    pid: int
    epoch: int
    kernel: RuntimeDirectory | None
    root: Path
    journal: Path | None = None


@dataclass(frozen=True, slots=True)
class LeftSession:
    """A session that a dead owner left, and its kernel, which may still wait for a new one."""

    name: str
    workspace: Path
    directory: Path
    notebook: Path | None
    handover: Handover
    journal: Path | None = None


def left_sessions(root: Path) -> list[LeftSession]:
    """The sessions in a dead owner's private directory whose kernels may wait for a new one."""
    found = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in islice(entries, _SESSIONS_MAX):
            if entry.is_dir(follow_symlinks=False) and (handover := Handover.read(Path(entry.path))) is not None:
                said = _noted(Path(entry.path))
                if said is not None:
                    notebook, journal = (Path(path) if isinstance(path := said.get(name), str) else None for name in _FILES)
                    place = Path(said["workspace"])
                    found.append(LeftSession(said["name"], place, Path(entry.path), notebook, handover, journal))
    return sorted(found, key=lambda session: session.name)


def note(directory: Path, name: str, workspace: Path, notebook: Path | None = None, journal: Path | None = None) -> None:
    """Write into a session's private directory which session it is, whatever an owner before wrote there.

    Raises:
        OSError: it cannot be written.
    """
    files = {kind: path and str(path) for kind, path in zip(_FILES, (notebook, journal), strict=True)}
    content = {"name": name, "workspace": str(workspace), "pid": os.getpid(), **files}
    replace_file(directory / _NOTE, json.dumps(content).encode(), mode=0o600)


def note_language(directory: Path, language: str) -> None:
    """Write into the private directory of another language's kernels which language that is.

    Raises:
        OSError: it cannot be written.
    """
    (directory / _LANGUAGE).write_text(language, encoding="utf-8")


def ended_beside(directory: Path) -> dict[str, int]:
    """The languages of a session whose kernels ended with its owner, each with the number of the newest kernel."""
    found = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError, UnicodeDecodeError):
                language = RuntimeDirectory(Path(entry.path)).read(_LANGUAGE, _NOTE_BYTES).decode()
                epochs = [int(name) for name in os.listdir(entry.path) if name.isdecimal() and len(name) < 10]  # noqa: PLR2004, PTH208
                if language and epochs:
                    found[language] = max(epochs)
    return found


def live_sessions(bases: Iterable[Path]) -> list[LiveSession]:
    """All living sessions of executors whose private directories are in these directories, in the order of their names."""
    roots = (root for base in dict.fromkeys(bases) for root in _live_roots(base))
    found = (session for root, pid in islice(roots, _ROOTS_MAX) for session in _sessions_in(root, pid))
    return sorted(islice(found, _SESSIONS_MAX), key=lambda session: (session.name, session.pid))


def live_roots(bases: Iterable[Path]) -> list[tuple[Path, int]]:
    """The private directories of this user's living executors in these directories, each with its process."""
    return [root for base in dict.fromkeys(bases) for root in islice(_live_roots(base), _ROOTS_MAX)]


def _live_roots(base: Path) -> Iterator[tuple[Path, int]]:
    """The private directories that are this user's and that a living process holds, each with its process."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if not NAME.fullmatch(entry.name):
                continue
            with suppress(OSError):
                fd = os.open(entry.path, DIRECTORY)
                try:
                    found, owner = os.fstat(fd), Owner.of(fd)
                    private = found.st_uid == platform.user() and not stat.S_IMODE(found.st_mode) & 0o077
                    if private and owner is not None and is_held(fd, owner):
                        yield Path(entry.path), owner.pid
                finally:
                    os.close(fd)


def _sessions_in(root: Path, pid: int) -> Iterator[LiveSession]:
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            if (said := _noted(Path(entry.path))) is not None:
                journal = Path(path) if isinstance(path := said.get("journal"), str) else None
                yield LiveSession(said["name"], said["workspace"], pid, *_newest_kernel(Path(entry.path)), root, journal)


def _noted(directory: Path) -> dict[str, Any] | None:
    """What ``note`` wrote of a session; None where there is nothing of use."""
    with suppress(ValueError, RecursionError, InvalidRequest):  # a kernel may have written anything there
        said = json.loads(RuntimeDirectory(directory).read(_NOTE, _NOTE_BYTES))
        if isinstance(said, dict) and isinstance(said.get("workspace"), str):
            check_name(said.get("name", ""))
            return said
    return None


def _newest_kernel(directory: Path) -> tuple[int, RuntimeDirectory | None]:
    """How many kernels there were, as far as it can be seen, and the directory of the newest if it is there."""
    with suppress(OSError):
        epochs = [int(name) for name in os.listdir(directory) if name.isdecimal() and len(name) < 10]  # noqa: PLR2004, PTH208
        runtime = RuntimeDirectory(directory / str(max(epochs, default=0)))
        if runtime.connection_file.is_file():
            return max(epochs), runtime
    return 0, None
