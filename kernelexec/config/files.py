"""What operations on a session's files may do, and how much at once."""

from __future__ import annotations

from pydantic import Field

from kernelexec.config.types import MIB, Branch, Count


class FileBounds(Branch):
    """Bounds of listing, reading, writing and deleting files for an agent."""

    read_before_delete: bool = Field(default=True, strict=True)
    """Whether a file can be deleted only after it was read or made by these operations; what tools generate always can."""
    read_bytes: Count = Field(default=MIB, ge=16)
    """How much of a file one call reads at most, in bytes; the next call reads on."""
    write_bytes: Count = Field(default=16 * MIB, ge=1)
    """How much one call writes at most, in bytes."""
    entries: Count = Field(default=10_000, ge=1, le=1_000_000)
    """How many entries of directories one call looks at."""
