"""Patterns for paths, as in a shell: ``*`` stays within a part, ``**`` matches any number of parts; no pattern is slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from kernelexec.errors import InvalidRequest

#: The bounds of the number of patterns in a request, and of the length of each.
PATTERNS_MAX, PATTERN_CHARS = 100, 1000
_ANY = "**"


class Globs:
    """Patterns, any of which may match. A pattern without a slash matches names in any directory, others match whole paths.

    Args:
        patterns: one pattern, or several.
        name: the name of the parameter, for messages.

    Raises:
        InvalidRequest: a pattern is not text, empty, absolute, contains ``..`` or is too long; or there are too many.
    """

    def __init__(self, patterns: str | Iterable[str], name: str) -> None:
        texts = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else (patterns,)
        if len(texts) > PATTERNS_MAX:
            raise InvalidRequest(f"{name}: {len(texts)} patterns are given, {PATTERNS_MAX} is the most: say it in fewer.")
        self._patterns = [_split(pattern, name) for pattern in texts]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path, given as its parts."""
        return any(_matches(parts, pattern) for pattern in self._patterns)

    def covers(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path or a directory above it."""
        return any(self.matches(parts[:length]) for length in range(1, len(parts) + 1))


def _split(pattern: object, name: str) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or len(pattern) > PATTERN_CHARS:
        message = f"{name}={pattern!r:.100}: a pattern is text as in '*.tmp' or 'cache/**', {PATTERN_CHARS} characters at most."
        raise InvalidRequest(message)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise InvalidRequest(f"{name}={pattern!r:.100}: a pattern is relative to the directory, and has no '..'.")
    return parts if "/" in pattern else [_ANY, *parts]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match with two indexes that go back to the last ``**``: the steps are at most the product of the lengths."""
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
