"""The forms of a secret, encoded, quoted or escaped as by programs, and the search for them in a text. No clock, no state.

The search also finds the beginning of an incomplete form at the end of a text.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import quote, quote_plus

#: The length of the shortest secret: masking shorter texts would mask everything.
LEAST_CHARS = 4
#: The length from which a line of a longer secret is searched alone.
_SINGLE_LINE_CHARS = 12
_PLAIN = re.compile(r"([^\w@%+=:,./-])", re.ASCII)
_IN_QUOTES = re.compile(r'([$`"\\])')
_LATIN = re.compile("[\x80-\xff]")
_ESCAPED_OCTET = re.compile("%[0-9A-F]{2}")
#: The length of a line from which it counts as one that a program has broken, as it does with base64.
LINE_CHARS = 60
#: The longest beginning of a secret that is searched before an ellipsis, in characters.
_FRAGMENT_CHARS = 1024
_WITHIN_LINE = re.compile(r"[\w+/=%-]*", re.ASCII)
_LINE = re.compile(rf"[\w+/=%-]{{{LINE_CHARS}}}", re.ASCII)
#: Text that may stand within a secret: codes of terminals, and breaks of long lines.
_HOLE = re.compile(r"\x1b\[[0-9;:]{0,32}[mK]|\r?\n|\\n")
_OPEN_HOLE = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r|\\)\Z")
#: An ellipsis, with which programs cut a long value.
_CUT = re.compile(r"\.(?=\.\.)|\u2026")
_DOTS = re.compile(r"\.+")
_QUOTES = ("'", '"')
_OPEN_CUT = re.compile(r"(?=['\"]?(?:\.\.\.|\u2026|\.{0,2}\Z))")
_CUT_CHARS = 4


def encodings(value: str) -> frozenset[str]:
    """Return the forms of a secret with at least four characters.

    In base64 a secret begins at any of three places in a group of four characters. Characters with bits of its neighbours are
    unknown, so only the characters between are searched. At most five bits at either end stay visible.
    """
    return frozenset(form for form in _all_forms(value) if len(form) >= LEAST_CHARS)


def _all_forms(value: str) -> Iterator[str]:
    raw = value.encode()
    yield from (value, raw.hex(), raw.hex().upper())
    for shift in range(3):
        inner = _inner_base64(raw, shift)
        yield from (inner, inner.translate({ord("+"): "-", ord("/"): "_"}))
    for text in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield from (text, _ESCAPED_OCTET.sub(lambda octet: octet[0].lower(), text))
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield from (once, once.replace("/", "\\/"), json.dumps(once, ensure_ascii=ascii_only)[1:-1])
    for text in (repr(value)[1:-1], ascii(value)[1:-1], repr(raw)[2:-1]):  # in either quotes
        bare = text.replace("\\'", "'")
        yield from (text, bare, bare.replace("'", "\\'"), bare.replace('"', '\\"'))
    quoted = html.escape(value)
    yield from (html.escape(value, quote=False), quoted, quoted.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    # Shells: quoted in a trace, joined by single blanks where it was not quoted, in double quotes, by ``%q``, as ``\xE9``.
    yield from (shlex.quote(f"{value} ")[1:-2], value.replace("'", "'\\''"), " ".join(value.split()))
    yield from (_IN_QUOTES.sub(r"\\\1", value), _PLAIN.sub(r"\\\1", value))
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    yield _LATIN.sub(lambda char: f"\\x{ord(char[0]):02X}", escaped)
    # CSV and SQL, regular expressions, and lines as Windows ends them.
    yield from (value.replace('"', '""'), value.replace("'", "''"), re.escape(value), value.replace("\n", "\r\n"))
    # Single lines, as ``head`` and ``grep`` show them, without short ones and headers of keys.
    lines = [line.strip() for line in value.splitlines()]
    yield from (line for line in lines[1:] and lines if len(line) >= _SINGLE_LINE_CHARS and not line.startswith("-----"))


def _inner_base64(raw: bytes, shift: int) -> str:
    """Return the base64 characters of these bytes alone, after ``shift`` other bytes in a group of three."""
    # A character has six bits: the first whole one begins at or after bit 8 * shift, the last ends no later than the bytes.
    text = base64.b64encode(bytes(shift) + raw).decode()
    return text[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]


def remove_breaks(form: str) -> tuple[str, ...]:
    """Return the forms of an encoding in texts with joined long lines, with its own breaks kept or joined."""
    joined = _remove_holes(form, _holes(form))
    first = _HOLE.search(joined)
    if first is None or first.start() >= LINE_CHARS or not _WITHIN_LINE.fullmatch(joined, 0, first.start()):
        return (joined,)
    return joined, joined[: first.start()] + joined[first.end() :]


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a secret, and the mark in its place."""

    start: int
    end: int
    mark: str


class SecretFinder:
    """A finder of encoded secrets: the leftmost first, and the longest at the same place.

    A regular expression finds their first characters, and the rest is compared. Secrets may be long, so no more is compiled.
    """

    def __init__(self, marks: Mapping[str, str]) -> None:
        self._marks = marks
        self._longest = max(map(len, marks), default=0)
        self._of_head: dict[str, tuple[str, ...]] = {}
        for form in sorted(marks, key=lambda form: (-len(form), form)):
            head = form[:LEAST_CHARS]
            self._of_head[head] = (*self._of_head.get(head, ()), form)
        self._heads = re.compile("|".join(map(re.escape, self._of_head)) or "(?!)")
        dots = max((len(run) for form in marks for run in _DOTS.findall(form)), default=0)
        self._dots = "." * (dots + 1)
        """More dots than any encoding has in a row: a text that ends with them begins no secret."""
        self._begun = frozenset(head[:count] for head in self._of_head for count in range(1, LEAST_CHARS))

    def find(self, text: str, begin: int, *, more: bool) -> tuple[list[Span], int]:
        """Return the secrets from ``begin`` on, and the end of the settled text: the whole text, unless ``more`` follows."""
        bare = _BareText(text, more=more)
        whole, keep = self._whole(bare.text, bare.to_bare(begin), more=more)
        if more:
            keep = self._cut_begun(bare.text, whole[-1].end if whole else bare.to_bare(begin), keep)
        spans = self._with_fragments(bare.text, whole, bare.to_bare(begin), keep)
        spans = [Span(bare.to_original(span.start), bare.to_original(span.end - 1) + 1, span.mark) for span in spans]
        settled = bare.to_original(keep) if keep < len(bare.text) else len(text)
        return spans, min(settled, bare.open_from)

    def _whole(self, text: str, begin: int, *, more: bool) -> tuple[list[Span], int]:
        """Return the complete matches, and the offset of a partial match that the next piece may complete."""
        spans: list[Span] = []
        keep = self._tail(text, begin) if more else len(text)
        while (span := self._next(text, begin)) is not None and span.start < keep:
            spans.append(span)
            begin = span.end
            if begin > keep:
                keep = self._tail(text, begin)
        return spans, keep

    def _next(self, text: str, begin: int) -> Span | None:
        while (head := self._heads.search(text, begin)) is not None:
            for form in self._of_head[head[0]]:
                # The longest form first, so no shorter form at the same place leaves the rest of a longer one visible.
                if text.startswith(form, head.start()):
                    return Span(head.start(), head.start() + len(form), self._marks[form])
            begin = head.start() + 1
        return None

    def _tail(self, text: str, begin: int) -> int:
        """Return the offset of the longest ending which begins an encoding, or the end of the text."""
        # Endings of four characters and more have a head that the expression finds; shorter ones are looked up one by one.
        begin = max(begin, len(text) - self._longest + 1)
        if (form := self._fragment(text, begin, len(text))) is not None:
            return form.start
        begin = max(begin, len(text) - LEAST_CHARS + 1)
        return next((start for start in range(begin, len(text)) if text[start:] in self._begun), len(text))

    def _fragment(self, text: str, begin: int, end: int) -> Span | None:
        """Return the longest text before ``end``, of at least four characters, which begins an encoding."""
        while (head := self._heads.search(text, begin, end)) is not None:
            piece = text[head.start() : end]
            for form in self._of_head[head[0]]:
                if len(form) > len(piece) and form.startswith(piece):
                    return Span(head.start(), end, self._marks[form])
            begin = head.start() + 1
        return None

    def _cut_begun(self, text: str, begin: int, keep: int) -> int:
        """Return the offset of a beginning of a secret which an incomplete ellipsis may follow, or ``keep``."""
        ends = (cut.start() for cut in _OPEN_CUT.finditer(text, max(begin, keep - _CUT_CHARS + 1)))
        pieces = (self._fragment(text, max(begin, end - _FRAGMENT_CHARS), end) for end in ends)
        return min([keep, *(piece.start for piece in pieces if piece is not None)])

    def _with_fragments(self, text: str, whole: list[Span], begin: int, keep: int) -> list[Span]:
        """Return the spans, and between them the beginnings of secrets before an ellipsis."""
        if "..." not in text and "\u2026" not in text:
            return whole
        spans: list[Span] = []
        searched = begin
        for span in (*whole, None):
            for cut in _CUT.finditer(text, begin, span.start if span else keep):
                end = cut.start()
                if end <= begin or text.endswith(self._dots, begin, end):
                    continue
                if (piece := self._before(text, max(begin, searched), end)) is not None:
                    spans.append(piece)
                    begin = piece.end
                else:  # a text that is no beginning of a secret up to here is none up to a later ellipsis: searched once
                    searched = end - LEAST_CHARS + 1
            if span is not None:
                spans.append(span)
                begin = span.end
        return spans

    def _before(self, text: str, begin: int, end: int) -> Span | None:
        """Return the beginning of a secret before an ellipsis, with or without a quote between: the longer of both."""
        if text[end - 1] not in _QUOTES:
            return self._fragment(text, max(begin, end - _FRAGMENT_CHARS), end)
        pieces = [self._fragment(text, max(begin, end - _FRAGMENT_CHARS), end) for end in (end, end - 1)]
        return min((piece for piece in pieces if piece is not None), key=lambda piece: piece.start, default=None)


class _BareText:
    """A text without codes and line breaks, and the mapping of offsets between this and the original text."""

    def __init__(self, text: str, *, more: bool) -> None:
        holes = _holes(text)
        opened = _OPEN_HOLE.search(text) if more else None
        if opened is not None and not (text[opened.start()] == "\x1b" or _is_long_line(text, opened.start())):
            opened = None
        self.open_from = len(text) if opened is None else opened.start()
        """The offset of an incomplete code or line break at the end."""
        if opened is not None:
            holes.append((opened.start(), len(text)))
        self._ends = [end for _, end in holes]
        self._shifts = list(accumulate(end - start for start, end in holes))
        self._starts = [end - shift for end, shift in zip(self._ends, self._shifts, strict=True)]
        self.text = _remove_holes(text, holes)

    def to_bare(self, offset: int) -> int:
        """Return the offset in the bare text for an offset in the original text."""
        before = bisect_right(self._ends, offset)
        return offset - self._shifts[before - 1] if before else offset

    def to_original(self, offset: int) -> int:
        """Return the offset in the original text for an offset in the bare text."""
        before = bisect_right(self._starts, offset)
        return offset + self._shifts[before - 1] if before else offset


def _holes(text: str) -> list[tuple[int, int]]:
    if "\x1b" not in text and len(text) < LINE_CHARS:
        return []
    return [hole.span() for hole in _HOLE.finditer(text) if hole[0][0] == "\x1b" or _is_long_line(text, hole.start())]


def _remove_holes(text: str, holes: list[tuple[int, int]]) -> str:
    if not holes:
        return text
    edges = [0, *(edge for hole in holes for edge in hole), len(text)]
    return "".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def _is_long_line(text: str, end: int) -> bool:
    """Return whether the text before an offset may be a long line broken by a program."""
    return end >= LINE_CHARS and _LINE.fullmatch(text, end - LINE_CHARS, end) is not None
