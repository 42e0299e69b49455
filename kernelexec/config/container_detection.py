"""Detection of a container around this process."""

from __future__ import annotations

import re
from pathlib import Path

_MARKS = (".dockerenv", "run/.containerenv")
_CGROUP = re.compile(r"/(docker|lxc|crio)/|/lxc\.payload|/kubepods|/libpod|/(docker|crio|cri-containerd)-[0-9a-f]{12}")
_LAYERS = re.compile(r"=/\S*/(docker|containerd|containers/storage|crio)/")
_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
_FROM = re.compile(r"/(containers|overlay-containers|sandboxes|pods)/")


def in_container(root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, by the engine's files, control group or mounts."""
    if any((root / mark).exists() for mark in _MARKS):
        return True
    if _CGROUP.search(_read(root / "proc/1/cgroup")):
        return True
    return any(_is_container_mount(line) for line in _read(root / "proc/self/mountinfo").splitlines())


def _is_container_mount(line: str) -> bool:
    """Return whether a line of mountinfo shows a layered root directory, or a file that engines mount into ``/etc``.

    The engine's machine also mounts the layers of its containers, but never as its root.
    """
    mount, _, kind = line.partition(" - ")
    words = mount.split(" ")
    if len(words) < 5:  # noqa: PLR2004 - two numbers, the device, the source, the target
        return False
    source, target = words[3], words[4]
    if target == "/":
        return kind.startswith("overlay ") and _LAYERS.search(kind) is not None
    return target in _FILES and _FROM.search(source) is not None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
