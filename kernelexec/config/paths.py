"""Paths of this machine that sessions can access in addition to their workspaces."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from kernelexec.config.types import Directory, FrozenModel, ResolvedPath, resolve_path

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def _check_name(value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 128 letters, digits, underscores, dots and dashes, and not begin with a dot or dash")
    return value


class ContextPath(FrozenModel):
    """A directory or file of this machine that kernels can access. For nested paths, the innermost one applies."""

    path: ResolvedPath
    """The path. Links are resolved when the configuration is read. Whenever a session opens, the path must exist and contain no
    link, because kernels may be able to write a directory on the way."""
    permission: Literal["read", "write"] = "read"
    """Whether kernels and file operations can only read the path, or also write it."""
    name: Annotated[str | None, AfterValidator(_check_name)] = None
    """The name below ``/context`` in containers with ``layout="classic"``; by default the path's own name."""
    protected_paths: tuple[Directory, ...] = ()
    """Read-only paths in a writable ``path``: relative to it, or absolute; each must exist.

    In containers and bubblewrap they are mounted read-only. Otherwise a kernel gets rights to all entries that exist next to
    them when it starts: it cannot create, remove or rename entries in their parent directories up to ``path``."""

    @model_validator(mode="after")
    def _resolve_protected_paths(self) -> Self:
        protected = tuple(resolve_path(self.path / path.expanduser()) for path in self.protected_paths)
        for path in protected:
            if self.path not in path.parents:
                message = f"the protected path {path} must be inside {self.path}"
                raise ValueError(message)
        if protected:
            object.__setattr__(self, "protected_paths", protected)
        return self
