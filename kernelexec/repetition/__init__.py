"""Whether a cell is safe to repeat, as far as its text shows, and which names it binds. Nothing is run, nothing is opened."""

from __future__ import annotations

from kernelexec.repetition.chance import PASSING, Chance
from kernelexec.repetition.code import Judge, why_not
from kernelexec.repetition.names import bound_names, definitions, name_changes, used_names

__all__ = ["PASSING", "Chance", "Judge", "bound_names", "definitions", "name_changes", "used_names", "why_not"]
