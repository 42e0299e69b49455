"""The paths of this machine that sessions see besides their workspaces."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from kernelexec.config.types import Directory, FrozenModel, Pinned, pinned

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def _name(value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise ValueError("it is letters, digits, underscores, dots and dashes, 128 at most, no dot or dash first")
    return value


class ContextPath(FrozenModel):
    """A directory or file of this machine that kernels see too. Of those that lie in each other the deeper one counts."""

    path: Pinned
    """Where it is. Links are resolved when the configuration is read; it must be there, and no link be in its place, whenever a
    session opens: what leads to it may lie where kernels write."""
    permission: Literal["read", "write"] = "read"
    """Whether kernels, and file operations, can only read it, or write it too."""
    name: Annotated[str | None, AfterValidator(_name)] = None
    """What it is called below ``/context`` in containers with ``layout="classic"``; by default as here."""
    protected_paths: tuple[Directory, ...] = ()
    """What in it can only be read though the rest can be written: relative to ``path``, or absolute; each must be there.

    In containers and bubblewrap they are mounted over it. Otherwise rights are given to all that is beside them when a kernel
    starts: in the directories that they are in, and those above up to ``path``, it makes, removes and renames nothing."""

    @model_validator(mode="after")
    def _pin_protected(self) -> Self:
        protected = tuple(pinned(self.path / path.expanduser()) for path in self.protected_paths)
        for path in protected:
            if self.path not in path.parents:
                message = f"the protected path {path} is not in {self.path}: name what is in it"
                raise ValueError(message)
        if protected:
            object.__setattr__(self, "protected_paths", protected)
        return self
