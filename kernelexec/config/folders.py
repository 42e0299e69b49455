"""Folders of this machine for cells, in the spellings of Docker: ``"data"``, ``"/a:/b:ro"``, ``{"/a": {"bind": "/b"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelexec.config.messages import short_repr
from kernelexec.errors import InvalidConfig

#: Values of the options ``volumes``, ``mounts`` and ``context_paths``.
Folders = str | list[Any] | tuple[Any, ...] | Mapping[str, Any] | None


def split(name: str, value: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401 - checked with the settings
    """Return the entries of ``context_paths``, and those of ``container.mounts``: folders that get another path.

    Raises:
        InvalidConfig: an entry has none of the forms.
    """
    if isinstance(value, Mapping):
        if name == "context_paths":
            return value, []  # type: ignore[return-value]  # the settings say what it has to be
        value = [_from_mapping(name, source, volume) for source, volume in value.items()]
    entries = list(value) if isinstance(value, list | tuple) else [value]
    contexts, mounts = list[Any](), list[Any]()
    for entry in entries:
        if not isinstance(entry, str):
            (contexts if name == "context_paths" else mounts).append(entry)
            continue
        source, target, mode = _read(name, entry)
        if target in (None, source):
            contexts.append({"path": source, "permission": "write" if mode == "rw" else "read"})
        else:
            mounts.append({"source": source, "target": target, "read_only": mode == "ro"})
    return contexts, mounts


def _from_mapping(name: str, source: object, volume: object) -> str:
    match volume:
        case str():
            return f"{source}:{volume}"
        case {"bind": str(target), **rest} if rest.keys() <= {"mode"}:
            return f"{source}:{target}:{rest.get('mode', 'rw')}"
    raise InvalidConfig(f"{name}={{{short_repr(source)}: {short_repr(volume)}}}: must be as in {{'/a': {{'bind': '/b'}}}}.")


def _read(name: str, entry: str) -> tuple[str, str | None, str]:
    """Return source, target and mode. As in Docker cells can write a folder with a target, unless it is ``ro``."""
    source, *rest = entry.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw" if rest else "ro"
    target = rest[0] if rest else None
    if not source or len(rest) > 1 or (target is not None and not target.startswith("/")):
        raise InvalidConfig(f"{name}: {short_repr(entry)} must be as in 'data', '/a:/b' or '/a:/b:ro'.")
    return str(Path(source).expanduser()), target, mode
