"""The launcher's directory as the engine's machine sees it, for a server in a container beside those of its kernels."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from kernelexec.config import in_container
from kernelexec.provisioning.launch.program import LAUNCHER

_MOUNTS = Path("/proc/self/mountinfo")
#: The column of mountinfo that has the path of a mount.
_TARGET = 4


def find_launcher(root: Path) -> str:
    """Return a directory that the engine can mount: the package's own, or a copy of it in the executor's directory ``root``.

    The engine mounts paths of its machine. If its socket was mounted into this container, the package's path is not there; the
    executor's directory has the same path on both sides, and lasts as long as its kernels, which the next server may adopt.
    """
    if not _is_engine_outside():
        return str(LAUNCHER)
    copy, unfinished = root / "launcher", root / "launcher.copy"
    if not copy.exists():
        shutil.rmtree(unfinished, ignore_errors=True)  # the disk was full
        shutil.copytree(LAUNCHER, unfinished, ignore=shutil.ignore_patterns("__pycache__"))
        unfinished.rename(copy)
    return str(copy)


@cache
def _is_engine_outside() -> bool:
    """Return whether this process is in a container, and the engine's socket was mounted into it."""
    from kernelexec.docker.client import host, socket_at  # noqa: PLC0415 - local kernels need no docker package

    path = socket_at(host())
    return path is not None and in_container() and _is_mounted(path)


def _is_mounted(path: str) -> bool:
    """Return whether a path is a mount point."""
    targets = {line.split(" ")[_TARGET] for line in _MOUNTS.read_text(encoding="utf-8").splitlines()}
    return not targets.isdisjoint((path, str(Path(path).resolve())))
