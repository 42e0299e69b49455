"""The versions that kernels need of an image."""

from __future__ import annotations

import importlib.metadata
import re

#: The oldest Python that the launcher supports.
PYTHON_MIN = "3.11"
_IPYKERNEL = re.compile(r"ipykernel\b[^;]*?>=(?P<version>[\d.]+)")


def ipykernel_min() -> str:
    """Return the oldest ipykernel that the launcher supports: the one that this package requires."""
    required = importlib.metadata.requires("kernelexec") or []
    versions = [match["version"] for line in required if (match := _IPYKERNEL.match(line.replace(" ", "")))]
    return versions[0] if versions else "7.3"


def at_least(version: str | None, wanted: str) -> bool:
    """Return whether a version, if any, is at least as new as the wanted one."""
    numbers, least = ([int(number) for number in re.findall(r"\d+", text or "")[:3]] for text in (version, wanted))
    return version is not None and numbers >= least
