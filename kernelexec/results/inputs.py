"""Input requests of cells, and the type of functions that answer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputRequest:
    """A cell's ``input(prompt)`` or ``getpass(prompt)``; the answer of the latter is a ``password``, which is not shown."""

    execution_id: str
    session: str
    prompt: str
    password: bool = False


OnInput = Callable[[InputRequest], str | Awaitable[str | None] | None]
"""A function that answers an input request. If it returns None or raises, the cell gets an ``EOFError``. A plain function is
called in a thread."""
