"""Why something may not run."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.policy.shell.expansion import UNKNOWN
from kernelexec.results import Diagnosis

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Refusal:
    """The rule by its name, the command or the code, and what would be allowed."""

    rule: str
    command: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.why} (rule {self.rule!r}): {self.command!r} was not run. {self.instead}"

    @property
    def diagnosis(self) -> Diagnosis:
        """The same as the diagnosis of a result."""
        return Diagnosis("refused", str(self), line_text=self.command, cause=f"rule {self.rule!r}", hints=(self.instead,))


def shown(text: str) -> str:
    """A text as people read it: what is unknown as dots, and not too much of it."""
    plain = text.replace(UNKNOWN, "…")
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}…"
