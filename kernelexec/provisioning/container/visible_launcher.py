"""The launcher's directory as the engine's machine sees it, for a server in a container beside those of its kernels."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from kernelexec.config import in_container
from kernelexec.provisioning.launch.kernelspec import LAUNCHER
from kernelexec.provisioning.runtime.locations import runtime_bases

_PREFIX = "kernelexec-launcher-"
_MOUNTS = Path("/proc/self/mountinfo")
#: The column of mountinfo that has the path of a mount.
_TARGET = 4


@cache
def find_launcher() -> str:
    """Return a directory that the engine can mount: the package's own, or a copy of it beside the private directories.

    The engine mounts paths of its machine. If its socket was mounted into this container, the package's path is not there; the
    place of private directories has the same path on both sides. The copy stays, since the kernels of the next server use it.
    """
    from kernelexec.docker.connection import host, socket_at  # noqa: PLC0415 - local kernels need no docker package

    path = socket_at(host())
    if path is None or not in_container() or not _is_mounted(path):
        return str(LAUNCHER)
    sources = {path.relative_to(LAUNCHER): path.read_bytes() for path in sorted(LAUNCHER.rglob("*.py"))}
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16]
    copy = next(runtime_bases()) / f"{_PREFIX}{digest}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=copy.parent) as directory:
            new = Path(directory, "launcher")
            shutil.copytree(LAUNCHER, new)
            with suppress(OSError):  # another server was faster
                new.rename(copy)
    return str(copy)


def _is_mounted(path: str) -> bool:
    """Return whether a path is a mount point."""
    targets = {line.split(" ")[_TARGET] for line in _MOUNTS.read_text(encoding="utf-8").splitlines()}
    return not targets.isdisjoint((path, str(Path(path).resolve())))
