"""The replay of an earlier session's cells in a new one, as far as it is safe, with a report."""

from __future__ import annotations

from kernelexec.replay.player import read_history, replay

__all__ = ["read_history", "replay"]
