"""One agent's session: cells run in order in supervised kernels, and further features use the same kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint as AsyncCheckpoint
    from kernelexec.session.features.session_files import AsyncFiles as AsyncFiles
    from kernelexec.session.session import AsyncSession as AsyncSession

_MODULES = {
    "AsyncCheckpoint": "features.saved_state.checkpoints",
    "AsyncFiles": "features.session_files",
    "AsyncSession": "session",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
