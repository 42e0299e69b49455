"""Files in private directories for finding living and orphaned sessions and kernels from other processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from kernelexec.errors import InvalidRequest
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.provisioning.runtime.owned_directory import (
    ROOT_NAME,
    ROOT_PREFIX,
    OwnerRecord,
    has_living_owner,
    is_private,
    runtime_bases,
)
from kernelexec.workspace.directory import check_name
from kernelexec.workspace.safe_files import DIRECTORY, replace_file

HANDOVER_FILE = "kernel.json"
_BYTES = 64 * 1024
_SESSION_FILE, _SESSION_FILE_BYTES, _LANGUAGE_FILE = "session.json", 16 * 1024, "language"
_FILES = ("notebook", "journal")
#: Names in an executor's private directory: the control socket of its server, and the key for it.
CONTROL, CONTROL_KEY = "control", "control.key"
#: In the directory of a dead owner: the path of the directory of the executor that has adopted it, which has the socket.
_ADOPTER = "adopter"
#: The files of a session in its private directory, besides the directories of its kernels.
SESSION_FILES = frozenset({_SESSION_FILE, HANDOVER_FILE, "identity"})
_ROOTS_MAX, _SESSIONS_MAX = 1000, 1000


@dataclass(frozen=True, slots=True)
class Handover:
    """A kernel prepared to wait for a new owner after the owner's death."""

    epoch: int
    """The number of the kernel in the session: the name of the kernel's private directory."""
    token: str
    """The token in replies of the launcher."""
    about: Mapping[str, Any]
    """The launcher's report at readiness."""
    provisioner: Mapping[str, Any]
    """The provisioner's information for finding the process."""

    def write(self, directory: Path) -> None:
        """Write the file into a session's private directory atomically, readable by this user only."""
        replace_file(directory / HANDOVER_FILE, json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the file in a session's private directory; None if missing or invalid."""
        with suppress(ValueError, RecursionError, TypeError, LookupError):
            content = json.loads(RuntimeDirectory(directory).read_file(HANDOVER_FILE, _BYTES))
            epoch, token, about, provisioner = (content[name] for name in cls.__dataclass_fields__)
            # Kernels without confinement can write here: no value may reach the engine or a path with another type.
            is_valid = isinstance(token, str) and isinstance(about, dict) and isinstance(provisioner, dict)
            is_valid = is_valid and isinstance(provisioner.get("container", ""), str)
            if is_valid and isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
                return cls(epoch, token, about, provisioner)
        return None


def remove_handover(directory: Path) -> None:
    """Remove the handover file of an ended kernel."""
    with suppress(OSError):
        (directory / HANDOVER_FILE).unlink()


@dataclass(frozen=True, slots=True)
class LiveSession:
    """A session open in a process of this user; ``kernel`` is the private directory of the newest kernel.

    ``root`` is the own private directory of the executor, also for a session adopted from a dead owner.
    """

    name: str
    workspace: str
    pid: int
    epoch: int
    kernel: RuntimeDirectory | None
    root: Path
    journal: Path | None = None

    @property
    def address(self) -> str:
        """The unique address NAME@PROCESS.EXECUTOR: a process may have several executors."""
        return f"{self.name}@{self.pid}.{self.root.name.removeprefix(ROOT_PREFIX)}"


@dataclass(frozen=True, slots=True)
class OrphanedSessionFile:
    """A dead owner's session with a kernel possibly waiting for a new owner."""

    name: str
    workspace: Path
    directory: Path
    notebook: Path | None
    handover: Handover
    journal: Path | None = None


def list_orphaned_sessions(root: Path) -> list[OrphanedSessionFile]:
    """Return the sessions with a handover file in a dead owner's private directory, sorted by name."""
    sessions = []
    for directory, content in _read_session_files(root, _SESSIONS_MAX):
        if (handover := Handover.read(directory)) is not None:
            notebook, journal = (Path(path) if isinstance(path := content.get(name), str) else None for name in _FILES)
            workspace = Path(content["workspace"])
            sessions.append(OrphanedSessionFile(content["name"], workspace, directory, notebook, handover, journal))
    return sorted(sessions, key=lambda session: session.name)


def write_session_file(
    directory: Path, name: str, workspace: Path, notebook: Path | None = None, journal: Path | None = None
) -> None:
    """Write or replace the session file in a session's private directory."""
    files = {kind: path and str(path) for kind, path in zip(_FILES, (notebook, journal), strict=True)}
    content = {"name": name, "workspace": str(workspace), "pid": os.getpid(), **files}
    replace_file(directory / _SESSION_FILE, json.dumps(content).encode(), mode=0o600)


def write_language_file(directory: Path, language: str) -> None:
    """Write the name of another language into the private directory of kernels of that language."""
    (directory / _LANGUAGE_FILE).write_text(language, encoding="utf-8")


def find_ended_languages(directory: Path) -> dict[str, int]:
    """Return a session's other languages, whose kernels ended with the owner, each with the newest kernel's number."""
    languages = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError, UnicodeDecodeError):
                language = RuntimeDirectory(Path(entry.path)).read_file(_LANGUAGE_FILE, _SESSION_FILE_BYTES).decode()
                epochs = [int(name) for name in os.listdir(entry.path) if name.isdecimal() and len(name) < 10]  # noqa: PLR2004, PTH208
                if language and epochs:
                    languages[language] = max(epochs)
    return languages


def list_live_sessions(bases: Iterable[Path]) -> list[LiveSession]:
    """Return all living sessions of executors with private directories in ``bases``, sorted by name (at most 1000)."""
    roots = (root for base in dict.fromkeys(bases) for root in _find_live_roots(base))
    sessions = (session for root, pid in islice(roots, _ROOTS_MAX) for session in _find_sessions(root, pid))
    return sorted(islice(sessions, _SESSIONS_MAX), key=lambda session: (session.name, session.pid))


def find_session_elsewhere(name: str, workspace: Path, *, own_root: Path) -> LiveSession | None:
    """Return another executor's living session of that name in that workspace, or None."""
    others = (each for each in list_live_roots((own_root.parent, *runtime_bases())) if each[0] != own_root)
    sessions = (session for root, pid in islice(others, _ROOTS_MAX) for session in _find_sessions(root, pid, _SESSIONS_MAX))
    return next((each for each in sessions if each.name == name and each.workspace == str(workspace)), None)


def list_live_roots(bases: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the private directories of this user's living executors in ``bases``, each with the owner's process id."""
    return [root for base in dict.fromkeys(bases) for root in islice(_find_live_roots(base), _ROOTS_MAX)]


def list_live_executors(bases: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the own directories of this user's living executors, without adopted directories, each with the process id."""
    return list(dict.fromkeys((_find_own_root(root, pid), pid) for root, pid in list_live_roots(bases)))


def note_adopter(adopted: Path, own_root: Path) -> None:
    """Note the new executor of the sessions in a dead owner's directory, and remove the dead executor's socket and key."""
    for name in (CONTROL, CONTROL_KEY):
        with suppress(OSError):
            (adopted / name).unlink()
    replace_file(adopted / _ADOPTER, os.fsencode(own_root), mode=0o600)


def _find_own_root(root: Path, pid: int) -> Path:
    """Return the executor's own directory: for a directory adopted from a dead owner, another of the same process."""
    # The note counts only if the same living process owns both directories: a dead owner's kernels can write the file.
    adopter = Path(os.fsdecode(RuntimeDirectory(root).read_file(_ADOPTER, _BYTES)))
    is_known = ROOT_NAME.fullmatch(adopter.name) is not None and (adopter, pid) in _find_live_roots(adopter.parent)
    return adopter if is_known else root


def _find_live_roots(base: Path) -> Iterator[tuple[Path, int]]:
    """Yield this user's private directories with a living owner, each with the owner's process id."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if not ROOT_NAME.fullmatch(entry.name):
                continue
            with suppress(OSError):
                fd = os.open(entry.path, DIRECTORY)
                try:
                    owner = OwnerRecord.read(fd)
                    if is_private(os.fstat(fd)) and owner is not None and has_living_owner(fd, owner):
                        yield Path(entry.path), owner.pid
                finally:
                    os.close(fd)


def _find_sessions(root: Path, pid: int, entries_max: int | None = None) -> Iterator[LiveSession]:
    own_root = _find_own_root(root, pid)
    for directory, content in _read_session_files(root, entries_max):
        journal = Path(path) if isinstance(path := content.get("journal"), str) else None
        yield LiveSession(content["name"], content["workspace"], pid, *_find_newest_kernel(directory), own_root, journal)


def _read_session_files(root: Path, entries_max: int | None = None) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the private directory and session file of each session in an executor's private directory."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in islice(entries, entries_max):
            if entry.is_dir(follow_symlinks=False) and (content := _read_session_file(Path(entry.path))) is not None:
                yield Path(entry.path), content


def _read_session_file(directory: Path) -> dict[str, Any] | None:
    """Return the content of a session file; None if missing or invalid."""
    with suppress(ValueError, RecursionError, InvalidRequest):  # a kernel may have written anything there
        content = json.loads(RuntimeDirectory(directory).read_file(_SESSION_FILE, _SESSION_FILE_BYTES))
        if isinstance(content, dict) and isinstance(content.get("workspace"), str):
            check_name(content.get("name", ""))
            for path in map(content.get, ("workspace", *_FILES)):
                os.fsencode(path if isinstance(path, str) else "")  # half of a surrogate pair stands in no path
            return content
    return None


def _find_newest_kernel(directory: Path) -> tuple[int, RuntimeDirectory | None]:
    """Return the number and directory of the newest kernel; 0 and None without a connection file."""
    with suppress(OSError):
        epochs = [int(name) for name in os.listdir(directory) if name.isdecimal() and len(name) < 10]  # noqa: PLR2004, PTH208
        runtime = RuntimeDirectory(directory / str(max(epochs, default=0)))
        if runtime.connection_file.is_file():
            return max(epochs), runtime
    return 0, None
