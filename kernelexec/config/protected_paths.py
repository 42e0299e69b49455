"""Paths and capabilities that no container gets. Each function returns the reason, or None."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: Where a container has the session's workspace, unless it has the path there that it has here.
WORKSPACE_INSIDE = "/workspace"
#: Capabilities that a container may keep: with them root in the container does what root does to its own files and processes.
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
#: These, but not what is below.
_WHOLE = frozenset({"/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/tmp"})  # noqa: S108
#: These, and all that is below.
_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/var/run"),
    *("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet"),
)
_ENGINES = frozenset({"docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock"})
#: What a container has of its own: a mount there, and for the first two only there, would hide it.
_OWN = ("/", "/tmp")  # noqa: S108 - the container's
_TAKEN = ("/dev", "/opt/kernelexec", "/proc", "/sys")


def why_not_mountable(source: Path) -> str | None:
    """Return why a path must not be mounted: it is the system's, or gives access to a daemon. Links are followed.

    Raises:
        OSError: it is relative to a directory that is gone.
    """
    if reason := system_refusal(source):
        return reason
    for path in _names(source):
        if _ENGINES & set(PurePosixPath(path).parts) or _is_socket(path):
            return f"{path} is a socket, by which a daemon of this machine could be driven"
        for name in _ENGINES:
            if os.path.lexists(os.path.join(path, name)):  # noqa: PTH118 - lexists never raises
                return f"{path} holds {name}, by which the engine could be driven"
    return None


def system_refusal(directory: Path) -> str | None:
    """Return why a directory must not be a session's: it is the system's. Links are followed.

    Raises:
        OSError: it is relative to a directory that is gone.
    """
    for path in _names(directory):
        if path in _WHOLE or any(_within(path, tree) for tree in _TREES):
            return f"{path} is the system's own"
    return None


def target_refusal(target: str) -> str | None:
    """Return why nothing may be mounted at a path of a container."""
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or not target.isprintable() or ":" in target:
        return "it is an absolute path without '..' and colons"
    normalized = normalize_target(target)
    if normalized in _OWN or any(_within(normalized, taken) or _within(taken, normalized) for taken in _TAKEN):
        return f"{normalized} is what the container itself is made of"
    return None


def normalize_target(target: str) -> str:
    """Return a path of a container in its one form: ``/a`` is also ``//a``, ``/a/`` and ``/./a``."""
    path = str(PurePosixPath(target))
    return f"/{path.lstrip('/')}" if path.startswith("/") else path


def capability_refusal(name: str) -> str | None:
    """Return why a capability is not kept."""
    if name in CAPABILITIES:
        return None
    return f"{name} reaches beyond the container; what can be kept is {', '.join(CAPABILITIES)}"


def _names(path: Path) -> Iterator[str]:
    """Yield the path as it is named, and its target."""
    named = os.path.abspath(path.expanduser())  # noqa: PTH100 - a Path keeps `..`
    yield named
    yield os.path.realpath(named)


def _within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - as above
    except (OSError, ValueError):
        return False
