"""Temporary directories of sessions, on a file system with room for large files, unlike many runtime directories."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.runtime.owned_directory import PREFIX, Root
from kernelexec.workspace.rmtree import remove_tree

#: In an executor's private directory, a link to another one in the machine's temporary directory.
_ROOM, _OWN = ".tmp", "tmp"


def claim_room(root: Path) -> Root | None:
    """Create another private directory for an executor's temporary files; None if the first one is in a suitable place."""
    base = Path(tempfile.gettempdir())
    if base == root.parent:
        return None
    with suppress(OSError, KernelStartFailed):  # then the first one has to do
        room = Root.claim(Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)))
        (root / _ROOM).symlink_to(room.path)
        return room
    return None


def temporary_directory(session: Path) -> Path:
    """Return a session's temporary directory by its private one; it is created if missing, and outlives kernels."""
    path = session.parent / _ROOM / session.name
    if not path.parent.is_dir():
        path = session / _OWN
    path.mkdir(mode=0o700, exist_ok=True)
    return path.resolve()


def remove_private(session: Path) -> None:
    """Remove a session's private directory and its temporary one."""
    remove_tree(session.parent / _ROOM / session.name)
    remove_tree(session)
