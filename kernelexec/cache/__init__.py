"""Results of earlier cells on the disk, and the judgement which cells may have one."""

from __future__ import annotations

from kernelexec.cache.purity import PurityChecker
from kernelexec.cache.store import Store, check

__all__ = ["PurityChecker", "Store", "check"]
