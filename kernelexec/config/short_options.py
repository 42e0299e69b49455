"""Short names of the usual options, all of which are in branches too: ``memory="2g"`` is ``container.memory_bytes``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from kernelexec.config.types import short_repr
from kernelexec.errors import InvalidConfig

#: Values of the options ``volumes``, ``mounts`` and ``context_paths``.
Folders = str | list[Any] | tuple[Any, ...] | Mapping[str, Any] | None


class ShortOptions(TypedDict, total=False):
    """The usual options by short names, in configurations and as keywords of executors."""

    image: str | None
    """The image of containers, which it chooses: ``container.image``."""
    memory: int | str | None
    """The memory of a container in bytes, or as in ``"2g"``: ``container.memory_bytes``."""
    cpus: float | None
    """The number of processors of a container: ``container.cpus``."""
    gpus: str | int | list[str] | tuple[str, ...] | None
    """The GPUs of a container: "all", a number of them, or their ids: ``container.gpus``."""
    network: bool | str | None
    """Whether cells have a network, or the name of the container's: ``container.network`` and ``confinement.network``."""
    timeout: float | None
    """How long a cell may run, in seconds: ``budgets.timeout``."""
    env: Mapping[str, str] | None
    """Variables of kernels and their commands: ``environment.set``."""
    packages: str | list[str] | tuple[str, ...] | None
    """Python packages that are installed before the first cell: ``programs.preinstall.python``."""
    context_paths: Folders
    """Folders and files of this machine that cells can read, by their own paths: ``context_paths``."""
    mounts: Folders
    """The same in Docker's form: with ``"/a:/b"`` a container has the folder ``/a`` as ``/b``, and can write it."""
    volumes: Folders
    """See ``mounts``; also as in ``{"/a": {"bind": "/b", "mode": "ro"}}``."""


NAMES = frozenset(ShortOptions.__annotations__)
#: Those that only containers have.
CONTAINER_NAMES = ("memory", "cpus", "gpus")
_FOLDERS = ("context_paths", "mounts", "volumes")


def pick(options: Mapping[str, Any]) -> ShortOptions:
    """Return the options with short names, and ``quiet``."""
    return cast("ShortOptions", {name: value for name, value in options.items() if name in NAMES or name == "quiet"})


def check_isolation(options: Mapping[str, Any], isolation: str) -> None:
    """Raise ``InvalidConfig`` if an option of containers only is set for another isolation."""
    for name in CONTAINER_NAMES:
        if options.get(name) is not None and isolation != "container":
            message = f"{name}={short_repr(options[name])}: only containers have it, and the isolation is {isolation}."
            advice = " `limits.as_bytes` bounds each process on this machine." if name == "memory" else ""
            raise InvalidConfig(f"{message}{advice}")
    for name in _FOLDERS if isolation != "container" else ():
        if options.get(name) is not None and split_folders(name, options[name])[1]:
            message = f"{name}={short_repr(options[name])}: only containers have other paths, and the isolation is {isolation}"
            raise InvalidConfig(f"{message}: leave the target out, and cells use the folder's own path.")


def expand(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with branches in the place of short names. A short name with the value None is left out.

    Raises:
        InvalidConfig: an option is set by both the short and the long name.
    """
    expanded = {name: value for name, value in options.items() if name not in NAMES}
    for name in sorted(NAMES & options.keys()):
        if options[name] is not None:
            for path, value in _long_options(name, options[name]):
                _set(expanded, path, value, name)
    return expanded


def _long_options(name: str, value: Any) -> list[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - checked with the settings
    if name == "network":
        by_name = {True: "bridge", False: "none"}.get(value, value) if isinstance(value, bool) else value
        return [
            (("container", "network"), by_name),
            *([(("confinement", "network"), value)] if isinstance(value, bool) else []),
        ]
    if name in _FOLDERS:
        contexts, mounts = split_folders(name, value)
        return [
            (path, entries) for path, entries in ((("context_paths",), contexts), (("container", "mounts"), mounts)) if entries
        ]
    path = {
        "image": ("container", "image"),
        "memory": ("container", "memory_bytes"),
        "cpus": ("container", "cpus"),
        "gpus": ("container", "gpus"),
        "timeout": ("budgets", "timeout"),
        "env": ("environment", "set"),
        "packages": ("programs", "preinstall", "python"),
    }[name]
    return [(path, value)]


def _set(options: dict[str, Any], path: tuple[str, ...], value: Any, name: str) -> None:  # noqa: ANN401 - as above
    branch = options
    for part in path[:-1]:
        below = branch.get(part)
        if below is None:
            below = {}
        elif not isinstance(below, Mapping):
            below = below.model_dump(exclude_unset=True)
        branch[part] = branch = dict(below)  # a copy, left target first: the caller's own mappings must not change
    if name in _FOLDERS and path[-1] in branch:
        value = [*branch[path[-1]], *value]
    elif path[-1] in branch:
        raise InvalidConfig(f"{name} and {'.'.join(path)} are the same option: set only one of them.")
    branch[path[-1]] = value


def split_folders(name: str, value: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401 - checked with the settings
    """Return the entries of ``context_paths``, and those of ``container.mounts``: folders with another path in the container.

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
    """Return source, target and mode. As in Docker, cells can write a folder with a target unless the mode is ``ro``."""
    source, *rest = entry.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw" if rest else "ro"
    target = rest[0] if rest else None
    if not source or len(rest) > 1 or (target is not None and not target.startswith("/")):
        raise InvalidConfig(f"{name}: {short_repr(entry)} must be as in 'data', '/a:/b' or '/a:/b:ro'.")
    return os.path.expanduser(source), target, mode  # noqa: PTH111 - a ``~`` of no user is refused with the settings
