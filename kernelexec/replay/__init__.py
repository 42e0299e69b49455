"""An earlier session's cells, repeated in a new one as far as that is safe, with a report."""

from __future__ import annotations

from kernelexec.replay.player import replay
from kernelexec.replay.reading import read_past

__all__ = ["read_past", "replay"]
