"""The refusal of a cell or command, with the broken rule."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.results import Diagnosis
from kernelexec.rules.policy.magics import UNKNOWN

_SHOWN_CHARS = 200
#: The alternative to a command that cannot be read.
PLAINLY = "Write the command out in plain words."


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: the name of the rule, the command or code, the reason and the alternative."""

    rule: str
    command: str
    reason: str
    alternative: str

    def __str__(self) -> str:
        return f"{self.reason} (rule {self.rule!r}): {self.command!r} was not run. {self.alternative}"

    @property
    def diagnosis(self) -> Diagnosis:
        """The refusal as the diagnosis of a result."""
        return Diagnosis("refused", str(self), line_text=self.command, cause=f"rule {self.rule!r}", hints=(self.alternative,))


def shorten_command(text: str) -> str:
    """Return a text for messages: bounded, with dots for unknown parts."""
    plain = text.replace(UNKNOWN, "…")
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}…"
