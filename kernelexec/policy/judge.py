"""The judge of cells by all rules of a configuration: those of commands first, then those of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config
from kernelexec.policy.code import CodeRules
from kernelexec.policy.commands import CommandRules
from kernelexec.policy.magics import parts
from kernelexec.policy.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge of the cells of an executor's sessions."""

    commands: CommandRules
    code: CodeRules

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the judge by the rules of a configuration."""
        return cls(CommandRules.of(config), CodeRules.of(config))

    def judge(self, cell: Cell) -> Refusal | None:
        """Return the refusal of a cell, or None if it may run."""
        refusal = self.commands.judge_cell(cell)
        if refusal is None and self.code.on and isinstance(cell, CodeCell) and cell.language == "python":
            refusal = self.code.judge(parts(cell.source).python)
        return refusal
