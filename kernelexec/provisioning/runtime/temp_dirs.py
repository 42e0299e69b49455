"""Temporary directories of sessions, on a file system with room for large files, unlike many runtime directories."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.runtime.owned_directory import ROOT_PREFIX, OwnedDirectory
from kernelexec.workspace.safe_files import remove_tree

#: In an executor's private directory, a link to another one in the machine's temporary directory.
_TEMP_LINK, _TEMP_NAME = ".tmp", "tmp"


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


def remove_session_directories(session: Path) -> None:
    """Remove the private and the temporary directory of a session."""
    remove_tree(session.parent / _TEMP_LINK / session.name)
    remove_tree(session)
