"""Context paths as they are when a session opens: that each is there, what in them is protected, and how they are called."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelexec.config import Config, ContextPath
from kernelexec.errors import InvalidConfig

#: Where containers have them unless they are at their own paths.
CONTEXT_INSIDE = "/context"


@dataclass(frozen=True, slots=True)
class Context:
    """One of them; all paths are absolute, with links resolved."""

    path: Path
    name: str
    writable: bool
    protected: tuple[Path, ...] = ()
    """What in it can only be read."""
    single: bool = False
    """Whether it is one file."""


def contexts(config: Config, workspace: Path | None = None) -> tuple[Context, ...]:
    """The context paths of a configuration, for a session in that ``workspace``.

    Raises:
        InvalidConfig: one is not there, no directory or plain file, named twice, the workspace itself, or in the workspace
            where nothing could keep a kernel from writing it.
    """
    found = tuple(map(_found, config.context_paths))
    _check_once((str(context.path) for context in found), "a path has one permission, so it is named once")
    classic = config.isolation == "container" and config.container.layout == "classic"
    named = (one.name for one, given in zip(found, config.context_paths, strict=True) if classic or given.name is not None)
    _check_once(named, f"two paths cannot be at one place below {CONTEXT_INSIDE}: give them a `name` each")
    if workspace is not None:
        _check_workspace(found, workspace, config)
    return found


def permissions(found: Sequence[Context]) -> dict[Path, bool]:
    """Whether what is named, and what is protected in it, can be written; of paths in each other the deeper one counts."""
    return {context.path: context.writable for context in found} | {path: False for one in found for path in one.protected}


def _found(given: ContextPath) -> Context:
    kind = _kind(given.path)
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        message = f"context_paths: {given.path} is neither a directory nor a plain file."
        raise InvalidConfig(message)
    for one in given.protected_paths:
        _kind(one)
    name = given.name or given.path.name
    return Context(given.path, name, given.permission == "write", given.protected_paths, single=stat.S_ISREG(kind))


def _kind(path: Path) -> int:
    """What is there, over no link: the configuration has resolved them, and one that came later was put there by somebody.

    Raises:
        InvalidConfig: nothing is there, or a link is, or is on the way.
    """
    try:
        kind, found = path.lstat().st_mode, path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:
        why = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        message = f"context_paths: {path} cannot be had: {why}. Make it, or leave it out."
        raise InvalidConfig(message) from exc
    if found != path:
        message = f"context_paths: {path} leads to {found} by a link that was not there before: look who put it there."
        raise InvalidConfig(message)
    return kind


def _check_once(names: Iterable[str], why: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            message = f"context_paths: {name} is there {count} times: {why}."
            raise InvalidConfig(message)


def _check_workspace(found: Sequence[Context], workspace: Path, config: Config) -> None:
    """Refuse what contradicts the workspace, which can be written as a whole.

    Landlock knows rights and no exceptions: where nothing is mounted over a path in the workspace, it could be written.
    """
    protected = [path for context in found for path in context.protected]
    for path in (*(context.path for context in found), *protected):
        if path == workspace or (path in protected and path in workspace.parents):
            message = f"context_paths: {path} is, or holds, the session's workspace {workspace}, which is its own to write."
            raise InvalidConfig(message)
    kept = [path for path, writable in permissions(found).items() if not writable and workspace in path.parents]
    if kept and config.confines and config.isolation != "bubblewrap":
        message = (
            f"context_paths: {kept[0]} is to be read only, and is in the workspace {workspace}, which kernels on this machine"
            " write as a whole. Move it out of there, or choose containers or bubblewrap."
        )
        raise InvalidConfig(message)
