"""Options of the result cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from kernelexec.config.types import MIB, Count, Directory, FrozenModel


class ResultCache(FrozenModel):
    """Options of the result cache on disk. ``Config(cache=True)`` enables it in the default directory, a path in that one.

    A result is stored only for a Python cell that succeeded, bound no name, changed no file and, by its syntax, changed no
    object: it reads plain data (Python's types, numpy, pandas) and calls builtins, methods and functions of earlier cells
    that only compute. It is returned, without running the cell, where a kernel with the same environment has had the same
    cells before, and the variables that the cell reads have the same values. All other cells run. Sessions with ``secrets``,
    and ephemeral containers, store nothing.
    """

    enabled: bool = Field(default=False, strict=True)
    directory: Directory | None = None
    """The directory, private to this user; by default in the user's cache directory. Cells must not be able to write there."""
    size_bytes: Count = Field(default=256 * MIB, ge=MIB)
    """The size of all results together; the least recently used are removed first."""

    @property
    def results_directory(self) -> Path:
        """Return the absolute path of the cache directory."""
        if self.directory is not None:
            return self.directory.expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kernelexec" / "results"  # noqa: PTH117 - text


def _expand_shorthand(value: object) -> object:
    """Turn ``True``, ``False`` or a directory into options."""
    if isinstance(value, bool):
        return {"enabled": value}
    return {"enabled": True, "directory": value} if isinstance(value, str | Path) else value


CacheChoice = Annotated[ResultCache, BeforeValidator(_expand_shorthand, json_schema_input_type=bool | Path | ResultCache)]
