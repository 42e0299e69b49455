"""A request for a line of input that `input()` in a cell sends on iopub; the answer goes over the control channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

_NAME_CHARS, _PROMPT_CHARS = 64, 20_000


@dataclass(frozen=True, slots=True)
class InputRequestMessage:
    """One input request of a cell, under the name that the kernel chose for it."""

    name: str
    prompt: str
    password: bool

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """Read a message within bounds, whatever it holds."""
        name, prompt = (str(content.get(key, "")) for key in ("name", "prompt"))
        return cls(name[:_NAME_CHARS], prompt[:_PROMPT_CHARS], content.get("password") is True)

    def reply(self, text: str | None, reason: str = "") -> dict[str, Any]:
        """Return the content of the answer; None as the text is no answer, and the reason for that."""
        return {"name": self.name, "text": text, "why": reason}


OnInputRequest = Callable[[InputRequestMessage], None]
