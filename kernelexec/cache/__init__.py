"""The result cache: a store of results on the disk, and the check for pure cells."""

from __future__ import annotations

from kernelexec.cache.purity import PurityChecker
from kernelexec.cache.store import ResultStore, check_directory

__all__ = ["PurityChecker", "ResultStore", "check_directory"]
