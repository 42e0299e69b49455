"""Where private directories can be: short enough for unix sockets, and writable."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.runtime.owned_directory import PREFIX
from kernelexec.workspace.safe_files import create_file

#: Unix socket paths end here (sockaddr_un.sun_path, less the final NUL).
SOCKET_PATH_BYTES = 107


def new_root() -> Path:
    """A new private directory for one executor, as short as the machine allows.

    Raises:
        KernelStartFailed: the machine's runtime directory is too deep for unix sockets.
    """
    for base in bases():
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    message = f"No directory for unix sockets: TMPDIR is not writable or too long (a path ends at {SOCKET_PATH_BYTES} bytes)."
    raise KernelStartFailed(message)


def bases() -> Iterator[Path]:
    """The directories that executors' private directories can be in, the best first."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - private by mkdtemp
        if base and _is_fit(Path(base)):
            yield Path(base)


def stored_identity(directory: Path) -> bytes:
    """The name under which a session's connections are known to its kernels; whoever takes the session over needs it."""
    path = directory / "identity"
    with suppress(FileNotFoundError):
        return path.read_bytes()
    identity = secrets.token_hex(16).encode()
    create_file(path, identity, mode=0o600)
    return identity


def _is_fit(base: Path) -> bool:
    """Whether a directory takes sockets: absolute, writable, and with room for a session's name in their paths."""
    room = len(os.fsencode(base)) < SOCKET_PATH_BYTES - 40
    return room and base.is_absolute() and base.is_dir() and os.access(base, os.W_OK | os.X_OK)
