"""Bounds for texts of exceptions: a larger message might not be read at all."""

from __future__ import annotations

_EVALUE_CHARS = 64 * 1024
_TRACEBACK_CHARS = 256 * 1024


def truncate(value: object) -> str:
    """Return the text of a value, whatever its ``__str__`` does, cut to 64 Ki characters."""
    try:
        text = str(value)
    except BaseException as exc:  # a user's __str__ may raise anything
        text = f"<{type(value).__name__} whose __str__ raised {type(exc).__name__}>"
    return _cut(text, _EVALUE_CHARS)


def truncate_traceback(lines: list[str]) -> list[str]:
    """Return the lines of a traceback, together cut to 256 Ki characters."""
    total = sum(len(line) for line in lines)
    if total <= _TRACEBACK_CHARS:
        return list(lines)
    return _cut("\n".join(lines), _TRACEBACK_CHARS).split("\n")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
