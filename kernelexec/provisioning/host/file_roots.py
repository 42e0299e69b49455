"""The directories that a session's file operations may use, and the read-only parts of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kernelexec.config import Config
from kernelexec.provisioning.host.confinement_rules import hidden_paths
from kernelexec.provisioning.runtime.locations import own_code_paths
from kernelexec.workspace.agent_files.access import FileRoot
from kernelexec.workspace.directory import contexts


def record_directories(config: Config) -> list[Path]:
    """Return the directories with records of the code that ran: the journals and logs of all sessions."""
    logs = config.log_dir
    return [config.workspaces.resolve() / ".journals", *([logs.expanduser().resolve()] if logs else [])]


def file_roots(config: Config, workspace: Path, to_kernel_path: Callable[[str], str]) -> tuple[FileRoot, ...]:
    """Return the workspace, then the context paths; ``inside`` maps a path to its path in kernels.

    Raises:
        InvalidConfig: a context path is missing.
    """
    protected_paths = (*own_code_paths(), *record_directories(config))
    roots = [FileRoot(workspace, to_kernel_path(str(workspace)), protected=_beneath(workspace, protected_paths))]
    context_paths = contexts(config, workspace)
    secret = (
        tuple(Path(name) for path in hidden_paths(config) for name in {path, os.path.realpath(path)}) if context_paths else ()
    )
    for context in context_paths:
        protected = (*context.protected, *_beneath(context.path, protected_paths))
        hidden = _beneath(context.path, secret)
        root = FileRoot(context.path, to_kernel_path(str(context.path)), context.writable, protected, context.single, hidden)
        roots.append(root)
    return tuple(roots)


def _beneath(path: Path, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(inner for inner in paths if path in inner.parents)
