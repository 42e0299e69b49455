"""Where secrets stand in a text, and from where on one may have begun that is not all there yet. No clock, no state."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from kernelexec.secrets.encodings import LEAST_CHARS

#: How far back what comes before a line's end is looked at, in characters: longer lines of base64 are broken by programs.
LINE_CHARS = 60
#: How much of the beginning of a secret is looked for before an ellipsis, in characters.
_FRAGMENT_CHARS = 1024
_WITHIN_LINE = re.compile(r"[\w+/=%-]*", re.ASCII)
_LINE = re.compile(rf"[\w+/=%-]{{{LINE_CHARS}}}", re.ASCII)
#: What stands between the characters of a secret and does not part it: codes of terminals, and breaks of long lines.
_HOLE = re.compile(r"\x1b\[[0-9;:]{0,32}[mK]|\r?\n|\\n")
_OPEN_HOLE = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r|\\)\Z")
#: What programs put where they cut a long value.
_CUT = re.compile(r"\.(?=\.\.)|\u2026")
_DOTS = re.compile(r"\.+")
_QUOTES = ("'", '"')
_OPEN_CUT = re.compile(r"(?=['\"]?(?:\.\.\.|\u2026|\.{0,2}\Z))")
_CUT_CHARS = 4


def without_breaks(guise: str) -> tuple[str, ...]:
    """A guise as it is found in texts of which long lines are joined: what its own lines, or one before it, make of it."""
    joined = _joined(guise, _holes(guise))
    first = _HOLE.search(joined)
    if first is None or first.start() >= LINE_CHARS or not _WITHIN_LINE.fullmatch(joined, 0, first.start()):
        return (joined,)
    return joined, joined[: first.start()] + joined[first.end() :]


@dataclass(frozen=True, slots=True)
class Span:
    """Where a secret stands, and what is put there instead."""

    start: int
    end: int
    mark: str


class SecretFinder:
    """Finds the guises of secrets, the leftmost first, and of those that begin at one place the longest.

    One regular expression finds how they begin; what follows is compared. Guises may be long, so nothing else is compiled.
    """

    def __init__(self, marks: Mapping[str, str]) -> None:
        """``marks`` says of each guise what is put in its place."""
        self._marks = marks
        self._longest = max(map(len, marks), default=0)
        self._of_head: dict[str, tuple[str, ...]] = {}
        for guise in sorted(marks, key=lambda guise: (-len(guise), guise)):
            head = guise[:LEAST_CHARS]
            self._of_head[head] = (*self._of_head.get(head, ()), guise)
        self._heads = re.compile("|".join(map(re.escape, self._of_head)) or "(?!)")
        dots = max((len(run) for guise in marks for run in _DOTS.findall(guise)), default=0)
        self._dots = "." * (dots + 1)
        """More of them than any guise has in a row: what ends with so many is the beginning of none."""
        self._begun = frozenset(head[:count] for head in self._of_head for count in range(1, LEAST_CHARS))

    def find(self, text: str, begin: int, *, more: bool) -> tuple[list[Span], int]:
        """The secrets from ``begin`` on, and up to where the text is settled: all of it, unless ``more`` is to come."""
        bare = _Bare(text, more=more)
        whole, keep = self._whole(bare.text, bare.inside(begin), more=more)
        if more:
            keep = self._cut_begun(bare.text, whole[-1].end if whole else bare.inside(begin), keep)
        found = self._with_fragments(bare.text, whole, bare.inside(begin), keep)
        spans = [Span(bare.outside(span.start), bare.outside(span.end - 1) + 1, span.mark) for span in found]
        settled = bare.outside(keep) if keep < len(bare.text) else len(text)
        return spans, min(settled, bare.open_from)

    def _whole(self, text: str, begin: int, *, more: bool) -> tuple[list[Span], int]:
        """Complete guises, and where one begins that is not. What begins before that cannot become another, longer one."""
        found: list[Span] = []
        keep = self._tail(text, begin) if more else len(text)
        while (span := self._next(text, begin)) is not None and span.start < keep:
            found.append(span)
            begin = span.end
            if begin > keep:
                keep = self._tail(text, begin)
        return found, keep

    def _next(self, text: str, begin: int) -> Span | None:
        while (head := self._heads.search(text, begin)) is not None:
            for guise in self._of_head[head[0]]:
                if text.startswith(guise, head.start()):
                    return Span(head.start(), head.start() + len(guise), self._marks[guise])
            begin = head.start() + 1
        return None

    def _tail(self, text: str, begin: int) -> int:
        """Where the longest ending begins that is the beginning of a guise; the text's end where none is."""
        begin = max(begin, len(text) - self._longest + 1)
        if (guise := self._fragment(text, begin, len(text))) is not None:
            return guise.start
        begin = max(begin, len(text) - LEAST_CHARS + 1)
        return next((start for start in range(begin, len(text)) if text[start:] in self._begun), len(text))

    def _fragment(self, text: str, begin: int, end: int) -> Span | None:
        """The longest piece before ``end`` that is the beginning of a guise, four characters at least."""
        while (head := self._heads.search(text, begin, end)) is not None:
            piece = text[head.start() : end]
            for guise in self._of_head[head[0]]:
                if len(guise) > len(piece) and guise.startswith(piece):
                    return Span(head.start(), end, self._marks[guise])
            begin = head.start() + 1
        return None

    def _cut_begun(self, text: str, begin: int, keep: int) -> int:
        """Where a piece of a guise begins, before ``keep``, that may be followed by an ellipsis of which not all is there."""
        ends = (cut.start() for cut in _OPEN_CUT.finditer(text, max(begin, keep - _CUT_CHARS + 1)))
        pieces = (self._fragment(text, max(begin, end - _FRAGMENT_CHARS), end) for end in ends)
        return min([keep, *(piece.start for piece in pieces if piece is not None)])

    def _with_fragments(self, text: str, whole: list[Span], begin: int, keep: int) -> list[Span]:
        """The spans, and between them what is left of secrets that a program has cut, of which an ellipsis tells."""
        if "..." not in text and "\u2026" not in text:
            return whole
        found: list[Span] = []
        for span in (*whole, None):
            for cut in _CUT.finditer(text, begin, span.start if span else keep):
                if (piece := self._before(text, begin, cut.start())) is not None:
                    found.append(piece)
                    begin = piece.end
            if span is not None:
                found.append(span)
                begin = span.end
        return found

    def _before(self, text: str, begin: int, end: int) -> Span | None:
        """What is left of a secret before an ellipsis, or before the quote before that: the longer one."""
        if end <= begin or text.endswith(self._dots, begin, end):
            return None
        ends = (end, end - 1) if text[end - 1] in _QUOTES else (end,)
        pieces = (self._fragment(text, max(begin, end - _FRAGMENT_CHARS), end) for end in ends)
        return min((piece for piece in pieces if piece is not None), key=lambda piece: piece.start, default=None)


class _Bare:
    """A text without its holes, and which place in it is which of the text itself."""

    def __init__(self, text: str, *, more: bool) -> None:
        holes = _holes(text)
        opened = _OPEN_HOLE.search(text) if more else None
        if opened is not None and not (text[opened.start()] == "\x1b" or _is_long_line(text, opened.start())):
            opened = None
        self.open_from = len(text) if opened is None else opened.start()
        """Where a hole begins of which not all is there."""
        if opened is not None:
            holes.append((opened.start(), len(text)))
        self._ends = [end for _, end in holes]
        self._shifts = list(accumulate(end - start for start, end in holes))
        self._starts = [end - shift for end, shift in zip(self._ends, self._shifts, strict=True)]
        self.text = _joined(text, holes)

    def inside(self, place: int) -> int:
        """Where a place of the text, in no hole, is in the bare one."""
        before = bisect_right(self._ends, place)
        return place - self._shifts[before - 1] if before else place

    def outside(self, place: int) -> int:
        """Where a character of the bare text is in the text."""
        before = bisect_right(self._starts, place)
        return place + self._shifts[before - 1] if before else place


def _holes(text: str) -> list[tuple[int, int]]:
    if "\x1b" not in text and len(text) < LINE_CHARS:
        return []
    return [hole.span() for hole in _HOLE.finditer(text) if hole[0][0] == "\x1b" or _is_long_line(text, hole.start())]


def _joined(text: str, holes: list[tuple[int, int]]) -> str:
    if not holes:
        return text
    edges = [0, *(edge for hole in holes for edge in hole), len(text)]
    return "".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def _is_long_line(text: str, end: int) -> bool:
    """Whether what comes before a place could be a line that a program has broken."""
    return end >= LINE_CHARS and _LINE.fullmatch(text, end - LINE_CHARS, end) is not None
