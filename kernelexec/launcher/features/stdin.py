"""``input()`` and ``getpass()`` of cells, which the kernel's owner answers."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

from ..processes import fork_flag


class InputRequests:
    """Questions to the owner: ``ask`` sends one and waits for ``answer`` or an interrupt."""

    def __init__(self, send: Callable[[dict[str, Any]], Any]) -> None:
        self._send = send
        self._waiting: dict[str, _Answer] = {}

    def ask(self, prompt: str, *, password: bool) -> str:
        """Ask the owner and return the answer.

        Raises:
            EOFError: there is no answer; the message has the reason.
        """
        __tracebackhide__ = True
        if fork_flag.is_forked_child:
            message = "a forked process cannot ask"
            raise EOFError(message)
        name, answer = secrets.token_hex(8), _Answer()
        self._waiting[name] = answer
        try:
            self._send({"name": name, "prompt": prompt, "password": password})
            answer.answered.wait()
        finally:
            del self._waiting[name]
        if answer.text is None:
            raise EOFError(answer.reason)
        return answer.text

    def answer(self, name: object, text: object, reason: object) -> None:
        """Take the answer to the question of a name: a text, or None and a reason."""
        waiting = self._waiting.get(name) if isinstance(name, str) else None
        if waiting is not None:
            waiting.text = text if isinstance(text, str) else None
            waiting.reason = str(reason)
            waiting.answered.set()


class _Answer:
    def __init__(self) -> None:
        self.answered = threading.Event()
        self.text: str | None = None
        self.reason = ""
