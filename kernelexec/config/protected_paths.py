"""Paths and capabilities that containers never get. Each check returns the reason of a refusal, or None."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

#: The path of the session's workspace in a container with the classic layout.
WORKSPACE_INSIDE = "/workspace"
#: Capabilities that a container may keep. They let root in the container manage the container's own files and processes.
CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
)
#: Refused directories whose subdirectories are allowed.
_WHOLE = frozenset({"/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/tmp"})  # noqa: S108
#: Refused directories, with all their subdirectories.
_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/var/run"),
    *("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet"),
)
#: Top-level directories of the system, by the Filesystem Hierarchy Standard 3.0 and those of macOS.
_SYSTEM = frozenset(
    {
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found", "proc", "run", "sbin", "sys"),
        *("usr", "var", "Applications", "Library", "System"),
    }
)
#: Directories of the system whose subdirectories are users', not the system's.
_USERS = ("/var/tmp", "/var/opt")  # noqa: S108
#: The entries and levels below a mount that are searched for an engine's socket.
_SEARCHED_MAX, _LEVELS = 10_000, 4
_ENGINES = frozenset({"docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock"})
#: Directories that a container needs itself: a mount at exactly these paths is refused.
_CONTAINER_PATHS = ("/", "/tmp")  # noqa: S108 - the container's
#: Directories that a container needs itself: a mount at, above or below these paths is refused.
_CONTAINER_TREES = ("/dev", "/opt/kernelexec", "/proc", "/sys")


def mount_refusal(source: Path) -> str | None:
    """Return the reason against mounting a path: a system directory or access to a daemon. Links are followed.

    A path in a system directory can be mounted only if this user, except root, owns the path or a parent.

    Raises:
        OSError: the path is relative to a removed directory.
    """
    if reason := system_refusal(source):
        return reason
    for path in _path_and_target(source):
        if not _is_users(path):
            return f"{path} is in a system directory"
        if _ENGINES & set(PurePosixPath(path).parts) or _is_socket(path):
            return f"{path} is a socket, through which code could control a daemon of this machine"
        if (name := _find_engine(path)) is not None:
            return f"{path} contains {name}, through which code could control the engine"
    return None


def system_refusal(directory: Path) -> str | None:
    """Return the reason against a session in a directory: a system directory. Links are followed.

    Raises:
        OSError: the path is relative to a removed directory.
    """
    for path in _path_and_target(directory):
        if path in _WHOLE or any(_is_within(path, tree) for tree in _TREES):
            return f"{path} is a system directory"
    return None


def target_refusal(target: str) -> str | None:
    """Return the reason against a mount at a path of a container."""
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or not target.isprintable() or ":" in target:
        return "must be an absolute path without '..' and colons"
    normalized = normalize_target(target)
    if normalized in _CONTAINER_PATHS or any(
        _is_within(normalized, tree) or _is_within(tree, normalized) for tree in _CONTAINER_TREES
    ):
        return f"{normalized} is needed by the container itself"
    return None


def normalize_target(target: str) -> str:
    """Return the normal form of a path in a container: ``//a``, ``/a/`` and ``/./a`` become ``/a``."""
    # PurePosixPath keeps two leading slashes, which POSIX leaves to the system; Linux reads them as one.
    path = str(PurePosixPath(target))
    return f"/{path.lstrip('/')}" if path.startswith("/") else path


def capability_refusal(name: str) -> str | None:
    """Return the reason against keeping a capability."""
    if name in CAPABILITIES:
        return None
    return f"{name} reaches beyond the container: must be one of {', '.join(CAPABILITIES)}"


def _path_and_target(path: Path) -> Iterator[str]:
    """Yield the absolute path as written, and a different path after resolving links."""
    # Both: /bin is a link to /usr/bin on many systems, and a link of the user's may lead to /etc.
    named = os.path.abspath(path.expanduser())  # noqa: PTH100 - a Path keeps `..`
    yield named
    if (target := os.path.realpath(named)) != named:
        yield target


def _is_users(path: str) -> bool:
    """Return whether a path is outside of the system's directories, or this user owns the path or a parent there."""
    pure = PurePosixPath(path)
    parents = [str(parent) for parent in pure.parents]
    if (pure.parts[1:2] and pure.parts[1] not in _SYSTEM) or any(parent in _USERS for parent in parents):
        return True
    with suppress(OSError, AttributeError):
        return os.getuid() != 0 and any(os.stat(name).st_uid == os.getuid() for name in (path, *parents))  # noqa: PTH116 - as below
    return False


def _find_engine(path: str) -> str | None:
    """Return the path of an engine's socket in a directory or some levels below; None if a bounded search ends without."""
    # Breadth first, so that the bound cuts off the deepest levels of a large directory.
    pending, searched = deque([(path, 0)]), 0
    while pending and searched < _SEARCHED_MAX:
        directory, level = pending.popleft()
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in islice(entries, _SEARCHED_MAX):
                searched += 1
                if entry.name in _ENGINES:
                    return os.path.relpath(entry.path, path)
                # Links are not followed: in a container they lead to its own files, unless the target is mounted too.
                if level < _LEVELS and entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, level + 1))
    return None


def _is_within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - as above
    except (OSError, ValueError):
        return False
