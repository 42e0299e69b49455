"""What a cell asks for by `input()` or `getpass()`, where its owner lets it ask: the owner is told, and its word waited for."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

from ..processes import fork_flag


class Questions:
    """Asks, by ``tell``, and waits for what ``answer`` is told; an interrupt ends the waiting, as a new owner does."""

    def __init__(self, tell: Callable[[dict[str, Any]], Any]) -> None:
        self._tell = tell
        self._waiting: dict[str, _Answer] = {}

    def ask(self, prompt: str, *, password: bool) -> str:
        """What was answered.

        Raises:
            EOFError: nothing was, with the reason.
        """
        __tracebackhide__ = True
        if fork_flag.forked:
            message = "a forked process cannot ask"
            raise EOFError(message)
        name, answer = secrets.token_hex(8), _Answer()
        self._waiting[name] = answer
        try:
            self._tell({"name": name, "prompt": prompt, "password": password})
            answer.given.wait()
        finally:
            del self._waiting[name]
        if answer.text is None:
            raise EOFError(answer.why)
        return answer.text

    def answer(self, name: object, text: object, why: object) -> None:
        """The answer to the question of that name; None is none, and why."""
        waiting = self._waiting.get(name) if isinstance(name, str) else None
        if waiting is not None:
            waiting.text = text if isinstance(text, str) else None
            waiting.why = str(why)
            waiting.given.set()


class _Answer:
    def __init__(self) -> None:
        self.given = threading.Event()
        self.text: str | None = None
        self.why = ""
