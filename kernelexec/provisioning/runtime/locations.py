"""Base directories of private directories: short enough for unix sockets, and writable."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.runtime.owned_directory import ROOT_PREFIX
from kernelexec.workspace.safe_files import create_file

#: Longest path of a unix socket (sockaddr_un.sun_path without the final NUL).
SOCKET_PATH_BYTES = 107
#: The directory of this package.
_PACKAGE = Path(__file__).resolve().parents[2]


def new_root() -> Path:
    """Create a private directory for one executor, with a path as short as the machine allows.

    Raises:
        KernelStartFailed: the machine's runtime directory is too deep for unix sockets.
    """
    for base in runtime_bases():
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=ROOT_PREFIX, dir=base))
    message = f"No directory for unix sockets: TMPDIR must be writable, and short for paths of {SOCKET_PATH_BYTES} bytes."
    raise KernelStartFailed(message)


def runtime_bases() -> Iterator[Path]:
    """Yield the directories for private directories of executors, the best first."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - private by mkdtemp
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


def own_code_paths() -> list[Path]:
    """Return the directories of this program: the package, and the environment that it is installed in."""
    environment = [Path(sys.prefix).resolve()] if sys.prefix != sys.base_prefix else []
    return [*environment, *(path for path in (_PACKAGE,) if not any(map(path.is_relative_to, environment)))]
