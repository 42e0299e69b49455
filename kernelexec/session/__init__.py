"""One agent's use of a kernel: turns, budgets, the ladder that ends a cell, and what becomes of its state."""

from __future__ import annotations

from kernelexec.session.features.files import AsyncFiles
from kernelexec.session.session import AsyncSession

__all__ = ["AsyncFiles", "AsyncSession"]
