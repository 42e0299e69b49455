"""The directories that a session's file operations may use, and the read-only parts of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kernelexec.config import Config
from kernelexec.provisioning.container.mounts import own_code
from kernelexec.provisioning.host.confinement import hidden_paths
from kernelexec.workspace.agent_files.paths import FileRoot
from kernelexec.workspace.contexts import contexts


def records(config: Config) -> list[Path]:
    """Return the directories with records of the code that ran: the journals and logs of all sessions."""
    logs = config.log_dir
    return [config.workspaces.resolve() / ".journals", *([logs.expanduser().resolve()] if logs else [])]


def file_roots(config: Config, workspace: Path, inside: Callable[[str], str]) -> tuple[FileRoot, ...]:
    """Return the workspace, then the context paths; ``inside`` maps a path to its path in kernels.

    Raises:
        InvalidConfig: a context path is missing.
    """
    kept = (*own_code(), *records(config))
    found = [FileRoot(workspace, inside(str(workspace)), protected=_within(workspace, kept))]
    named = contexts(config, workspace)
    secret = tuple(Path(name) for path in hidden_paths(config) for name in {path, os.path.realpath(path)}) if named else ()
    for context in named:
        protected = (*context.protected, *_within(context.path, kept))
        hidden = _within(context.path, secret)
        root = FileRoot(context.path, inside(str(context.path)), context.writable, protected, context.single, hidden)
        found.append(root)
    return tuple(found)


def _within(path: Path, kept: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(one for one in kept if path in one.parents)
