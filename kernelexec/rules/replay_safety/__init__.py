"""Safety of repeating a cell, judged by the text, and the names bound by a cell. Nothing is run or opened."""

from __future__ import annotations

from kernelexec.rules.replay_safety.names import definitions, name_changes, used_names
from kernelexec.rules.replay_safety.outside_use import OutsideUse
from kernelexec.rules.replay_safety.side_effects import SideEffectChecker, reason_against

__all__ = ["OutsideUse", "SideEffectChecker", "definitions", "name_changes", "reason_against", "used_names"]
