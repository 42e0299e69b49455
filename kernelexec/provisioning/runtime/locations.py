"""The places of private and of temporary directories: short enough for unix sockets, or with room for large files."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.runtime.owned_directory import ROOT_PREFIX, OwnedDirectory
from kernelexec.workspace.rmtree import remove_tree
from kernelexec.workspace.safe_files import create_file

#: Longest path of a unix socket (sockaddr_un.sun_path without the final NUL).
SOCKET_PATH_BYTES = 107
#: The variable that names the directory for private directories of executors.
CHOSEN = "KERNELEXEC_RUNTIME_DIR"
#: In an executor's private directory, a link to another one in the machine's temporary directory.
_TEMP_LINK, _TEMP_NAME = ".tmp", "tmp"


def new_root() -> Path:
    """Create a private directory for one executor, with a path as short as the machine allows.

    Raises:
        KernelStartFailed: the machine's runtime directory is too deep for unix sockets.
    """
    for base in runtime_bases():
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=ROOT_PREFIX, dir=base))
    name = CHOSEN if os.environ.get(CHOSEN) else "TMPDIR"
    message = f"No directory for unix sockets: {name} must be writable, and short for paths of {SOCKET_PATH_BYTES} bytes."
    raise KernelStartFailed(message)


def runtime_bases() -> Iterator[Path]:
    """Yield the directories in which executors have their private directories and find each other, the best first.

    If ``KERNELEXEC_RUNTIME_DIR`` is set, only that one.
    """
    chosen = os.environ.get(CHOSEN)
    return _suitable_bases([chosen] if chosen else _default_bases())


def all_bases() -> Iterator[Path]:
    """Yield also the directories in which executors with other settings have theirs."""
    return _suitable_bases([os.environ.get(CHOSEN), *_default_bases()])


def swept_bases() -> Iterator[Path]:
    """Yield the directories in which executors with the settings of this one leave something when they are killed."""
    return _suitable_bases([*map(str, runtime_bases()), tempfile.gettempdir()])


def _default_bases() -> list[str | None]:
    return [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # noqa: S108 - private by mkdtemp


def _suitable_bases(bases: Iterable[str | None]) -> Iterator[Path]:
    for base in dict.fromkeys(bases):
        if base and _is_suitable(Path(base)):
            yield Path(base)


def load_identity(directory: Path) -> bytes:
    """Return the ZeroMQ identity of a session's connections, created once; the next owner of the session needs it."""
    path = directory / "identity"
    with suppress(FileNotFoundError):
        return path.read_bytes()
    identity = secrets.token_hex(16).encode()
    create_file(path, identity, mode=0o600)
    return identity


def _is_suitable(base: Path) -> bool:
    """Return whether a directory can hold sockets: absolute, writable, and short enough for a session's name in the path."""
    room = len(os.fsencode(base)) < SOCKET_PATH_BYTES - 40
    return room and base.is_absolute() and base.is_dir() and os.access(base, os.W_OK | os.X_OK)


def create_temp_root(root: Path) -> OwnedDirectory | None:
    """Create another private directory for an executor's temporary files; None if the first one is suitable."""
    base = Path(tempfile.gettempdir())
    if base == root.parent:
        return None
    with suppress(OSError, KernelStartFailed):  # then the first one is used
        temp_root = OwnedDirectory.claim(Path(tempfile.mkdtemp(prefix=ROOT_PREFIX, dir=base)))
        (root / _TEMP_LINK).symlink_to(temp_root.path)
        return temp_root
    return None


def create_temp_directory(session: Path) -> Path:
    """Return a session's temporary directory by its private one; it is created if missing, and outlives kernels."""
    path = session.parent / _TEMP_LINK / session.name
    if not path.parent.is_dir():
        path = session / _TEMP_NAME
    path.mkdir(mode=0o700, exist_ok=True)
    return path.resolve()


class SessionDirectories:
    """The private and the temporary directory of a session, in which its branches have theirs: the last one removes them."""

    def __init__(self, session: Path) -> None:
        self.path = session
        """The private one."""
        self._users = 1
        self._lock = threading.Lock()

    def join(self) -> Self:
        """Add a branch, which must call ``leave`` too."""
        with self._lock:
            self._users += 1
        return self

    def leave(self) -> None:
        """Remove them, unless others use them. For any thread."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            remove_tree(self.path.parent / _TEMP_LINK / self.path.name)
            remove_tree(self.path)
