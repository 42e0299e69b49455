"""What prevents a checkpoint, as a kernel's launcher reports it."""

from __future__ import annotations

from typing import Any

from kernelexec.results.json_values import read_list, read_text

_NAME_CHARS, _NAMES_MAX = 100, 8
#: What prevents a copy by a fork, and what to do.
_OBSTACLES = {
    "threads": ("these threads run", "wait for their end, or shut their pools down"),
    "native threads": ("threads of C code run", "make the checkpoint before the library starts them"),
    "tasks": ("these asyncio tasks have not ended", "await or cancel them"),
    "connections": ("these connections are open", "close them"),
    "transactions": ("these databases have an open transaction", "commit or roll back"),
    "devices": ("these devices are open", "make the checkpoint before they are used"),
    "loop": ("the event loop is not asyncio's own", "use asyncio's"),
    "limit": ("it is not possible here", "see Config(checkpoints=...)"),
}


def read_obstacles(value: Any) -> dict[str, tuple[str, ...]]:  # noqa: ANN401 - JSON of the kernel
    """Return names by kind of obstacle, from a report that is not validated."""
    obstacles: dict[str, tuple[str, ...]] = {}
    for entry in read_list(value):
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if isinstance(kind, str) and kind in _OBSTACLES:
            names = [read_text(name, _NAME_CHARS) for name in read_list(entry.get("names"))[:_NAMES_MAX]]
            obstacles[kind] = tuple(filter(None, names))
    return obstacles


def explain_obstacles(obstacles: dict[str, tuple[str, ...]]) -> str:
    """Return what there is and what to do, as a sentence that begins in the middle."""
    reasons = []
    for kind, names in obstacles.items():
        reason, remedy = _OBSTACLES[kind]
        reasons.append(f"{reason}: {', '.join(names)} ({remedy})")
    return "; ".join(reasons) + "."
