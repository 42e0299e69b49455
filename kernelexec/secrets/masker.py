"""Secrets give way to their names, in whole texts and in those that come in pieces. Pure: no file, no clock, no logger.

It is for accidents. Whoever means to tell a secret writes it in a form that nobody looks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kernelexec.cells import Cell, ShellCell
from kernelexec.secrets.encodings import encodings
from kernelexec.secrets.finder import LINE_CHARS, SecretFinder, Span, without_breaks
from kernelexec.text import NESTING_MAX

#: What is put in the place of a secret: the first of them of which no secret is a part, nor has a part at its edge.
_MARKS = ("[secret {}]", "<secret {}>", "(secret {})", "\u2588\u2588\u2588\u2588")
_NESTED = "[... nested deeper ...]"


class Masker:
    """Knows secrets by their names, each as a name and a value; a name may have had several values."""

    def __init__(self, secrets: Iterable[tuple[str, str]] = ()) -> None:
        found: dict[str, list[str]] = {}
        for name, value in secrets:
            for guise in encodings(value):
                for form in without_breaks(guise):
                    found.setdefault(form, []).append(name)
        marks: dict[str, str] = {}
        for name in {names[0] for names in found.values()}:
            marks[name] = next((mark for form in _MARKS if not _touches(mark := form.format(name), found)), _MARKS[-1])
        self._finder = SecretFinder({guise: marks[names[0]] for guise, names in found.items()})

    def text(self, text: str) -> str:
        """A text as a whole."""
        spans, _ = self._finder.find(text, 0, more=False)
        return _between(text, spans, 0, len(text)) if spans else text

    def texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Each of several texts."""
        return tuple(map(self.text, texts))

    def value(self, value: Any, *, keys: bool = True, spared: Collection[str] = frozenset(), depth: int = 0) -> Any:  # noqa: ANN401 - JSON in, JSON out
        """JSON with all its texts masked, and what they are ``keys`` of, but for what stands at a key that is ``spared``."""

        def within(item: object) -> Any:  # noqa: ANN401 - as above
            return self.value(item, keys=keys, spared=spared, depth=depth + 1)

        match value:
            case str():
                return self.text(value)
            case dict() | list() | tuple() if depth >= NESTING_MAX:
                return _NESTED
            case dict():
                named = ((self.text(str(key)) if keys else key, key, item) for key, item in value.items())
                return {shown: item if key in spared else within(item) for shown, key, item in named}
            case list() | tuple():
                return [within(item) for item in value]
            case int() | float() if not isinstance(value, bool) and (shown := self.text(str(value))) != str(value):
                return shown
            case _:
                return value

    def cell(self, cell: Cell) -> Cell:
        """A cell as it may be shown."""
        if not isinstance(cell, ShellCell):
            return replace(cell, source=self.text(cell.source), asked=cell.asked and self.cell(cell.asked))
        work_dir, stdin = (text and self.text(text) for text in (cell.work_dir, cell.stdin))
        found = replace(cell, source=self.text(cell.source), command=self.text(cell.command), work_dir=work_dir, stdin=stdin)
        return replace(found, asked=cell.asked and self.cell(cell.asked))

    def flow(self) -> StreamMasker:
        """What masks a text that comes in pieces."""
        return StreamMasker(self._finder)


class StreamMasker:
    """One text that comes in pieces: however it is cut, it is masked as it would be in one.

    What may be the beginning of a secret is held back until it is known not to be. Where it must be given out before,
    what follows of it is masked alone.
    """

    def __init__(self, finder: SecretFinder) -> None:
        self._finder = finder
        self._text = ""
        self._begin = 0
        """From where on secrets are looked for; what comes before tells only whether a line is long."""
        self._given = 0
        """How much was given out."""

    @property
    def holds(self) -> bool:
        """Whether anything is held back."""
        return self._given < len(self._text)

    def feed(self, text: str) -> str:
        """Take the next piece; what can be given out by now."""
        self._text += text
        spans, settled = self._finder.find(self._text, self._begin, more=True)
        found = self._give(spans, settled)
        self._begin = settled
        if (past := min(self._begin, self._given) - LINE_CHARS) > 0:
            self._text = self._text[past:]
            self._begin -= past
            self._given -= past
        return found

    def flush(self) -> str:
        """All that is held back: nothing follows, or something that may not wait for it. No half of a secret is forgotten."""
        if not self.holds:
            return ""
        spans, _ = self._finder.find(self._text, self._begin, more=False)
        found = self._give(spans, len(self._text))
        if spans:
            self._begin = spans[-1].end
        return found

    def _give(self, spans: Sequence[Span], end: int) -> str:
        """What of the text up to there was not given out yet, with marks in the place of secrets."""
        found = _between(self._text, [span for span in spans if span.end > self._given], self._given, end)
        self._given = max(self._given, end)
        return found


def _between(text: str, spans: Sequence[Span], begin: int, end: int) -> str:
    parts: list[str] = []
    for span in spans:
        parts += (text[begin : span.start], span.mark)
        begin = span.end
    parts.append(text[begin:end])
    return "".join(parts)


def _touches(mark: str, guises: Iterable[str]) -> bool:
    """Whether a mark shows a secret, or could be taken for a part of one together with what stands beside it."""
    starts = tuple(mark[:count] for count in range(1, len(mark)))
    ends = tuple(mark[-count:] for count in range(1, len(mark)))
    return any(guise in mark or mark in guise or guise.endswith(starts) or guise.startswith(ends) for guise in guises)
