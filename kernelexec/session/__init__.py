"""One agent's session: cells run in order in supervised kernels, and further features use the same kernels."""

from __future__ import annotations

from kernelexec.session.features.session_files import AsyncFiles
from kernelexec.session.session import AsyncSession

__all__ = ["AsyncFiles", "AsyncSession"]
