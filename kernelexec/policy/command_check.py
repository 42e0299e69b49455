"""The check of shell commands by rules: dangerous classes first, then the allow list, then the block list."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelexec.policy.dangers import find_danger
from kernelexec.policy.refusal import PLAINLY, Refusal, shorten_command
from kernelexec.policy.shell.reader import GLOB, Command, Script, UnparsableScript, read
from kernelexec.policy.shell.unknown_text import UNKNOWN
from kernelexec.policy.shell.wrappers import name_of, nested_commands, script_of_python

_OTHERWISE = "Nothing ran; other commands are not concerned."


@dataclass(frozen=True, slots=True)
class CommandCheck:
    """Checks commands by the rules of one session, which have the same names there."""

    allowed: tuple[re.Pattern[str], ...]
    blocked: tuple[re.Pattern[str], ...]
    sudo: bool
    match: Literal["command", "prefix"]
    dangers: bool

    def check_text(self, text: str) -> Refusal | None:
        """Return the refusal of a text for a shell, or None if it may run."""
        if self.match == "prefix" and (refusal := self._check_lists(text)) is not None:
            return refusal
        return self._check_script(text, lambda: read(text))

    def check_words(self, words: Sequence[str]) -> Refusal | None:
        """Return the refusal of a program with these words, or None if it may be started."""
        return self._check_script(" ".join(words), lambda: Script((Command(tuple(words)),)))

    def check_python(self, source: str) -> Refusal | None:
        """Return the refusal of Python code for the commands that it starts by literal words, or None if it may run."""
        return self._check_script(source, lambda: script_of_python(source))

    def _check_script(self, text: str, script: Callable[[], Script]) -> Refusal | None:
        try:
            refusals = (
                self._check_command(command, is_wrapper=is_wrapper) for command, is_wrapper in nested_commands(script())
            )
            return next(filter(None, refusals), None)
        except UnparsableScript as exc:
            return Refusal("unread", shorten_command(text), f"It cannot be judged: {exc}", PLAINLY)

    def _check_command(self, command: Command, *, is_wrapper: bool) -> Refusal | None:
        words, name = " ".join(command.words), name_of(command)
        text = shorten_command(words or f"> {' '.join(command.writes)}")
        if self.dangers and (danger := find_danger(command, sudo=self.sudo)) is not None:
            return Refusal(danger.name, text, f"It is dangerous: {danger.description}", _OTHERWISE)
        if UNKNOWN in name or GLOB & set(name):
            return Refusal("unknown-command", text, "Its program is not literal, so the rules do not know it", PLAINLY)
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
