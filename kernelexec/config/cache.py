"""Settings of the cache of cells' results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from kernelexec.config.types import MIB, Count, Directory, FrozenModel


class ResultCache(FrozenModel):
    """Results of earlier cells, on the disk. ``Config(cache=True)`` turns it on where it is by default, a path in that place.

    A result is found again where a kernel that began alike would run the same cells, with the same visible results, in the
    same workspace with the same files, and only as far as all cells before it were found: so all that is found comes of one
    run. The cell is then not run at once: what is found so is run, in order, before the first cell that is not found, and
    before anybody looks at the kernel. Failures, what writes files, and what shows that it acts elsewhere or depends on time,
    chance, the network, other programs, modules of the workspace or this very session is not remembered. What a cell reads
    outside of the workspace and ``context_paths``, and what a library draws or writes by itself, is not seen. Sessions with
    ``secrets``, and containers for single cells, remember nothing.
    """

    enabled: bool = Field(default=False, strict=True)
    directory: Directory | None = None
    """Where they are kept, for this user only; by default in the user's cache directory. Not where cells could write."""
    size_bytes: Count = Field(default=256 * MIB, ge=MIB)
    """How much is kept; what was used least lately goes first."""

    @property
    def place(self) -> Path:
        """Return the directory."""
        if self.directory is not None:
            return self.directory.expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kernelexec" / "results"  # noqa: PTH117 - text


def _of_shorthand(value: object) -> object:
    """Return the options for ``True``, ``False`` or a directory."""
    if isinstance(value, bool):
        return {"enabled": value}
    return {"enabled": True, "directory": value} if isinstance(value, str | Path) else value


CacheChoice = Annotated[ResultCache, BeforeValidator(_of_shorthand, json_schema_input_type=bool | Path | ResultCache)]
