"""Patterns for paths, as in a shell: ``*`` stays within a part, ``**`` matches any number of parts; no pattern is slow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile

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
        self._patterns = [_Pattern(_split(pattern, name)) for pattern in texts]
        self._path: list[str] = []
        self._states = [[pattern.first for pattern in self._patterns]]
        """The states of the patterns after each beginning of the last path: the next one often shares most of them."""

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path, given as its parts. Paths that are sorted take the least time."""
        return any(state & pattern.end for state, pattern in zip(self._read(parts), self._patterns, strict=True))

    def covers(self, parts: Sequence[str]) -> bool:
        """Return whether a pattern matches a path or a directory above it."""
        return any(state & pattern.covered for state, pattern in zip(self._read(parts), self._patterns, strict=True))

    def _read(self, parts: Sequence[str]) -> list[int]:
        """Return the states of the patterns after a path."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(parts, self._path, strict=False)))
        del self._path[same:], self._states[same + 1 :]
        for part in parts[same:]:
            following = [pattern.after(state, part) for pattern, state in zip(self._patterns, self._states[-1], strict=True)]
            self._states.append(following)
            self._path.append(part)
        return self._states[-1]


class _Pattern:
    """The parts of a pattern, which read a path part by part.

    A state is a number: the bit of each part that can match next, the bit ``end`` if the path matches, and the bit
    ``covered``, which stays, if the path or a directory above it does.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = parts
        self.end = 1 << len(parts)
        self.covered = self.end << 1
        #: The bits of the parts that may match no part of a path: a last one matches what is in a directory, not itself.
        self._skipped = sum(1 << index for index, part in enumerate(parts[:-1]) if part == _ANY)
        self.first = self._skip(1)

    def after(self, state: int, part: str) -> int:
        """Return the state after one more part of the path."""
        following, left = state & self.covered, state & (self.end - 1)
        while left:
            bit = left & -left
            left ^= bit
            glob = self._parts[bit.bit_length() - 1]
            if glob == _ANY:
                following |= bit | bit << 1
            elif fnmatchcase(part, glob):
                following |= self._skip(bit << 1)
        if following & self.end:
            following |= self.covered
        if reached := following & self._skipped:  # what comes before the last "**" needs no second attempt
            following &= -(1 << reached.bit_length() - 1)
        return following

    def _skip(self, bit: int) -> int:
        return bit | (bit & self._skipped) << 1


def _split(pattern: object, name: str) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or len(pattern) > PATTERN_CHARS:
        message = f"{name}={pattern!r:.100}: a pattern is text as in '*.tmp' or 'cache/**', {PATTERN_CHARS} characters at most."
        raise InvalidRequest(message)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts or not parts:
        raise InvalidRequest(f"{name}={pattern!r:.100}: a pattern is relative to the directory, and has no '..'.")
    parts = parts if "/" in pattern else [_ANY, *parts]
    return [part for before, part in pairwise(["", *parts]) if part != _ANY or before != _ANY]  # a second "**" says nothing
