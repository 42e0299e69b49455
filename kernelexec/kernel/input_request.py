"""What a cell asks for by `input()`: a question that the kernel says on iopub, and that is answered on its control channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

_NAME_CHARS, _PROMPT_CHARS = 64, 20_000


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a cell, by the name that the kernel gave it."""

    name: str
    prompt: str
    password: bool

    @classmethod
    def of(cls, said: dict[str, Any]) -> Self:
        """What a kernel said, whatever that is."""
        name, prompt = (str(said.get(key, "")) for key in ("name", "prompt"))
        return cls(name[:_NAME_CHARS], prompt[:_PROMPT_CHARS], said.get("password") is True)

    def answered(self, text: str | None, why: str = "") -> dict[str, Any]:
        """The content of the answer; None for a text is none, and why."""
        return {"name": self.name, "text": text, "why": why}


#: Who is told of a question.
OnQuestion = Callable[[Question], None]
