"""The blocking facade of a checkpoint."""

from __future__ import annotations

from typing import TypeAlias

from kernelexec.blocking.methods import make_blocking
from kernelexec.blocking.portal import Portal
from kernelexec.results import Snapshot
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint


class Checkpoint:
    """``AsyncCheckpoint`` for blocking callers."""

    def __init__(self, portal: Portal, checkpoint: AsyncCheckpoint) -> None:
        self._portal = portal
        self._target = checkpoint
        self.number = checkpoint.number
        self.name = checkpoint.name
        self.cell = checkpoint.cell
        self.seconds = checkpoint.seconds

    drop = make_blocking(AsyncCheckpoint.drop)

    def __repr__(self) -> str:
        return repr(self._target)


SavedState: TypeAlias = Snapshot | Checkpoint | str | int
