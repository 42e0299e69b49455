"""Results that are found again: where they are kept, and what has to be the same for that."""

from __future__ import annotations

from kernelexec.cache.store import Store, check
from kernelexec.cache.trail import Trail, after, key, new_run, seen_of, written

__all__ = ["Store", "Trail", "after", "check", "key", "new_run", "seen_of", "written"]
