"""Checks of the arguments of features."""

from __future__ import annotations

from collections.abc import Iterable

from kernelexec.errors import InvalidRequest


def check_whole_number(value: object, name: str, meaning: str, low: int, high: int | None = None) -> int:
    """Return a whole number; raise ``InvalidRequest`` for another value. ``meaning`` completes the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(f"{name}={value!r:.100} must be {meaning}, {limits}.")
    return value


def check_names(names: object, limit: int) -> list[str]:
    """Return the names of variables as a list; raise ``InvalidRequest`` for another value, or for too many."""
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [None]
    if len(texts) > limit or not all(isinstance(name, str) for name in texts):
        raise InvalidRequest(f"names={names!r:.100} must be a list of names, {limit} at most.")
    return [str(name) for name in texts]
