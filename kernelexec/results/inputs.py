"""What a cell asks whoever sent it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputRequest:
    """A cell's ``input(prompt)``, or ``getpass(prompt)``, whose answer is a ``password`` that its output does not show."""

    execution_id: str
    session: str
    prompt: str
    password: bool = False


OnInput = Callable[[InputRequest], str | Awaitable[str | None] | None]
"""Answers a cell; None, or what it raises, is no answer, which the cell hears as an ``EOFError``. A plain function is called in
a thread."""
