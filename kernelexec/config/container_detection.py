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
    """Return whether an engine left its marks here: its files, its control group of the first process, or its mounts."""
    if any((root / mark).exists() for mark in _MARKS):
        return True
    if _CGROUP.search(_read(root / "proc/1/cgroup")):
        return True
    return any(_by_an_engine(line) for line in _read(root / "proc/self/mountinfo").splitlines())


def _by_an_engine(line: str) -> bool:
    """Return whether a line of mountinfo shows a root directory of layers, or one of the files that engines put into ``/etc``.

    An engine's own machine has the layers of its containers too, but never as its root.
    """
    mount, _, kind = line.partition(" - ")
    words = mount.split(" ")
    if len(words) < 5:  # noqa: PLR2004 - two numbers, the device, what is mounted, where
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
