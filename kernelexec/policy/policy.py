"""The judge of cells by all rules of a configuration: those of commands first, then those of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config
from kernelexec.policy.code_rules import CodeRules
from kernelexec.policy.command_rules import CommandRules
from kernelexec.policy.magics import split_cell
from kernelexec.policy.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for cells of an executor's sessions."""

    commands: CommandRules
    code: CodeRules

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the judge by the rules of a configuration."""
        return cls(CommandRules.from_config(config), CodeRules.from_config(config))

    def check(self, cell: Cell) -> Refusal | None:
        """Return the refusal of a cell, or None if it may run."""
        refusal = self.commands.check_cell(cell)
        if refusal is None and self.code.has_rules and isinstance(cell, CodeCell) and cell.language == "python":
            refusal = self.code.check(split_cell(cell.source).python)
        return refusal
