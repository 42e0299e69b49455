"""Context paths of a session, checked at the start: kinds, protected paths and names."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelexec.config import Config, ContextPath
from kernelexec.errors import InvalidConfig

#: The directory of context paths in containers, unless they are mounted at their own paths.
CONTEXT_INSIDE = "/context"


@dataclass(frozen=True, slots=True)
class Context:
    """A context path. All paths are absolute, with links resolved."""

    path: Path
    name: str
    writable: bool
    protected: tuple[Path, ...] = ()
    """Read-only paths inside."""
    single: bool = False
    """Whether the path is a file."""


def contexts(config: Config, workspace: Path | None = None) -> tuple[Context, ...]:
    """Return the context paths of a configuration for a session in ``workspace``.

    Raises:
        InvalidConfig: a path is missing, neither directory nor regular file, named twice, or the workspace itself; or a
            read-only path is in the workspace of kernels confined by Landlock alone.
    """
    paths = tuple(map(_context, config.context_paths))
    _check_once((str(context.path) for context in paths), "a path has one permission, so it is named once")
    classic = config.isolation == "container" and config.container.layout == "classic"
    named = (
        context.name
        for context, setting in zip(paths, config.context_paths, strict=True)
        if classic or setting.name is not None
    )
    _check_once(named, f"two paths cannot be at one place below {CONTEXT_INSIDE}: give them a `name` each")
    if workspace is not None:
        _check_workspace(paths, workspace, config)
    return paths


def permissions(paths: Sequence[Context]) -> dict[Path, bool]:
    """Return whether paths are writable: context paths and the protected paths inside. Of nested paths the deeper counts."""
    return {context.path: context.writable for context in paths} | {
        path: False for context in paths for path in context.protected
    }


def _context(setting: ContextPath) -> Context:
    kind = _kind(setting.path)
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        raise InvalidConfig(f"context_paths: {setting.path} is neither a directory nor a plain file.")
    for path in setting.protected_paths:
        _kind(path)
    name = setting.name or setting.path.name
    return Context(setting.path, name, setting.permission == "write", setting.protected_paths, single=stat.S_ISREG(kind))


def _kind(path: Path) -> int:
    """Return the mode of a path without links. The configuration has resolved links, so a link now is a later change."""
    try:
        kind, resolved = path.lstat().st_mode, path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise InvalidConfig(f"context_paths: {path} cannot be had: {reason}. Make it, or leave it out.") from exc
    if resolved != path:
        message = f"context_paths: {path} leads to {resolved} by a link that did not exist before: check where it comes from."
        raise InvalidConfig(message)
    return kind


def _check_once(names: Iterable[str], reason: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise InvalidConfig(f"context_paths: {name} is there {count} times: {reason}.")


def _check_workspace(paths: Sequence[Context], workspace: Path, config: Config) -> None:
    """Refuse the workspace as a context path, and read-only paths in the workspace of kernels confined by Landlock alone.

    Landlock has no exceptions from rights: without a mount over such a path, kernels could write to it.
    """
    protected = [path for context in paths for path in context.protected]
    for path in (*(context.path for context in paths), *protected):
        if path == workspace or (path in protected and path in workspace.parents):
            message = f"context_paths: {path} is, or holds, the session's workspace {workspace}, which is its own to write."
            raise InvalidConfig(message)
    kept = [path for path, writable in permissions(paths).items() if not writable and workspace in path.parents]
    if kept and config.confines_kernels and config.isolation != "bubblewrap":
        raise InvalidConfig(
            f"context_paths: {kept[0]} is to be read only, and is in the workspace {workspace}, which kernels on this machine"
            " write as a whole. Move it out of there, or choose containers or bubblewrap."
        )
