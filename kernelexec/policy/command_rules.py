"""Rules for shell commands, and the cells that have commands to check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from kernelexec.cells import Cell, CodeCell, ShellCell
from kernelexec.config import Config
from kernelexec.policy.magics import may_run_commands, split_cell
from kernelexec.policy.refusal import PLAINLY, Refusal, shorten_command

if TYPE_CHECKING:
    from kernelexec.policy.command_check import CommandCheck


@dataclass(frozen=True, slots=True)
class CommandRules:
    """The rules for the commands of one session.

    ``allowed`` and ``blocked`` are regular expressions, matched from the beginning of each simple command, with its words as a
    shell would give them, one blank between. ``match`` says where: on each ``command``, or at the ``prefix`` of the whole text
    only, as MassGen does. A wrapper of another command (``env``, ``timeout``, ``sh -c``) need not be allowed itself. In
    ``sudo`` mode commands that change users and permissions are not dangerous.
    """

    allowed: tuple[re.Pattern[str], ...] = ()
    blocked: tuple[re.Pattern[str], ...] = ()
    sudo: bool = False
    match: Literal["command", "prefix"] = "command"
    dangers: bool = True

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the rules of a configuration."""
        rules, sudo = config.rules, config.isolation == "container" and config.container.sudo
        return cls(rules.allowed_commands, rules.blocked_commands, sudo, rules.match, rules.dangers)

    @property
    def has_rules(self) -> bool:
        """Tell whether there is any rule."""
        return self.dangers or bool(self.allowed or self.blocked)

    def check(self, text: str) -> Refusal | None:
        """Return the refusal of a text for a shell, or None if it may run."""
        return self._open_check().check_text(text) if self.has_rules else None

    def check_cell(self, cell: Cell) -> Refusal | None:
        """Return the refusal of a cell for the commands that are visible in it, or None if it may run."""
        if not self.has_rules:
            return None
        match cell:
            case ShellCell(persistent=True, command=text):
                return self.check(text)
            case ShellCell(source=source) | CodeCell(source=source, language="python") if may_run_commands(source):
                cell_parts = split_cell(source)
                if cell_parts.renaming_magic:
                    magic = shorten_command(cell_parts.renaming_magic)
                    return Refusal("unread", magic, "It changes the meaning of magics' names", PLAINLY)
                refusals = (self.check(command) for command in cell_parts.commands)
                return next(filter(None, refusals), None) or self.check_python(cell_parts.python)
            case CodeCell(source=source, language="bash"):
                return self.check(source)
        return None

    def check_words(self, words: Sequence[str]) -> Refusal | None:
        """Return the refusal of a program with these words, or None if it may be started."""
        return self._open_check().check_words(words) if self.has_rules else None

    def check_python(self, source: str) -> Refusal | None:
        """Return the refusal of Python code for the commands that it starts by literal words, or None if it may run."""
        return self._open_check().check_python(source) if self.has_rules else None

    def _open_check(self) -> CommandCheck:
        from kernelexec.policy.command_check import CommandCheck  # noqa: PLC0415 - most cells have no command to read

        return CommandCheck(self.allowed, self.blocked, self.sudo, self.match, self.dangers)
