"""Rules for shell commands: dangerous classes first, then the allow list, then the block list."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from kernelexec.cells import Cell, CodeCell, ShellCell
from kernelexec.config import Config
from kernelexec.policy.dangers import find_danger
from kernelexec.policy.magics import may_run_commands, split_cell
from kernelexec.policy.refusal import Refusal, shorten_command
from kernelexec.policy.shell.reader import GLOB, UNKNOWN, Command, Script, UnparsableScript, read
from kernelexec.policy.shell.wrappers import name_of, nested_commands, script_of_python

_PLAINLY = "Write the command out in plain words."
_OTHERWISE = "Nothing ran; other commands are not concerned."


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
        if self.match == "prefix" and (refusal := self._check_lists(text)) is not None:
            return refusal
        return self._check_script(text, lambda: read(text))

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
                    return Refusal("unread", magic, "It changes the meaning of magics' names", _PLAINLY)
                refusals = (self.check(command) for command in cell_parts.commands)
                return next(filter(None, refusals), None) or self.check_python(cell_parts.python)
            case CodeCell(source=source, language="bash"):
                return self.check(source)
        return None

    def check_words(self, words: Sequence[str]) -> Refusal | None:
        """Return the refusal of a program with these words, or None if it may be started."""
        return self._check_script(" ".join(words), lambda: Script((Command(tuple(words)),)))

    def check_python(self, source: str) -> Refusal | None:
        """Return the refusal of Python code for the commands that it starts by literal words, or None if it may run."""
        return self._check_script(source, lambda: script_of_python(source))

    def _check_script(self, text: str, script: Callable[[], Script]) -> Refusal | None:
        if not self.has_rules:
            return None
        try:
            refusals = (
                self._check_command(command, is_wrapper=is_wrapper) for command, is_wrapper in nested_commands(script())
            )
            return next(filter(None, refusals), None)
        except UnparsableScript as exc:
            return Refusal("unread", shorten_command(text), f"It cannot be judged: {exc}", _PLAINLY)

    def _check_command(self, command: Command, *, is_wrapper: bool) -> Refusal | None:
        words, name = " ".join(command.words), name_of(command)
        text = shorten_command(words or f"> {' '.join(command.writes)}")
        if self.dangers and (danger := find_danger(command, sudo=self.sudo)) is not None:
            return Refusal(danger.name, text, f"It is dangerous: {danger.description}", _OTHERWISE)
        if UNKNOWN in name or GLOB & set(name):
            return Refusal("unknown-command", text, "Its program is not literal, so the rules do not know it", _PLAINLY)
        if self.match == "command" and command.words and not command.is_bomb:
            return self._check_lists(words, is_wrapper=is_wrapper)
        return None

    def _check_lists(self, text: str, *, is_wrapper: bool = False) -> Refusal | None:
        shown = shorten_command(text)
        if self.allowed and not is_wrapper and not any(pattern.match(text) for pattern in self.allowed):
            patterns = ", ".join(pattern.pattern for pattern in self.allowed)
            return Refusal("allowed-commands", shown, "It is not on the list of allowed commands", f"Allowed: {patterns}")
        blocking = next((pattern for pattern in self.blocked if pattern.match(text)), None)
        if blocking is None:
            return None
        return Refusal(
            "blocked-commands", shown, f"It is blocked by {blocking.pattern!r}", "Commands that it does not match may run."
        )
