"""Patterns for paths, as in a shell: ``*`` stays within a part, ``**`` stands for any number of them; no pattern is slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from kernelexec.errors import InvalidRequest

#: How many patterns one request may have, and how long each may be.
PATTERNS_MAX, PATTERN_CHARS = 100, 1000
_ANY = "**"


class Globs:
    """Some patterns, any of which may match. One without a slash is for names, wherever they are; else for whole paths.

    Args:
        patterns: one, or several.
        name: what they are called in a message.

    Raises:
        InvalidRequest: one is no text, empty, absolute, leads up, or is too long; or they are too many.
    """

    def __init__(self, patterns: str | Iterable[str], name: str) -> None:
        found = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
        if len(found) > PATTERNS_MAX:
            message = f"{name}: {len(found)} patterns are given, {PATTERNS_MAX} is the most: say it in fewer."
            raise InvalidRequest(message)
        self._patterns = [_split(pattern, name) for pattern in found]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether one of them matches a path, given as its parts."""
        return any(_matches(parts, pattern) for pattern in self._patterns)

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether one of them matches a path or a directory above it."""
        return any(self.matches(parts[:length]) for length in range(1, len(parts) + 1))


def _split(pattern: object, name: str) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or len(pattern) > PATTERN_CHARS:
        message = f"{name}={pattern!r:.100}: a pattern is text as in '*.tmp' or 'cache/**', {PATTERN_CHARS} characters at most."
        raise InvalidRequest(message)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        message = f"{name}={pattern!r:.100}: a pattern is relative to the directory, and has no '..'."
        raise InvalidRequest(message)
    return parts if "/" in pattern else [_ANY, *parts]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """As two fingers go along, and back to behind the last ``**``: it takes their lengths' product of steps at most."""
    here = there = 0
    retry: tuple[int, int] | None = None
    while here < len(parts):
        if there < len(pattern) and pattern[there] == _ANY:
            retry = (here, there)
            there += 1
        elif there < len(pattern) and fnmatchcase(parts[here], pattern[there]):
            here, there = here + 1, there + 1
        elif retry is not None:
            here, there = retry[0] + 1, retry[1] + 1
            retry = (here, retry[1])
        else:
            return False
    return there == len(pattern)
