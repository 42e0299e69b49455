"""Masking: secrets are replaced by their names, in whole texts and in streams. Pure: no file, no clock, no logger.

Masking is for accidents. Code that means to leak a secret can write it in another form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kernelexec.cells import Cell, ShellCell
from kernelexec.secrets.encodings import encodings
from kernelexec.secrets.finder import LINE_CHARS, SecretFinder, Span, remove_breaks
from kernelexec.text import NESTING_MAX

#: Marks that replace a secret: the first that shares no text with any secret is taken.
_MARKS = ("[secret {}]", "<secret {}>", "(secret {})", "\u2588\u2588\u2588\u2588")
_ELLIPSIS = "\u2026"
_NESTED = "[... nested deeper ...]"


class Masker:
    """A masker of secrets, each a name and a value; a name may have had several values."""

    def __init__(self, secrets: Iterable[tuple[str, str]] = ()) -> None:
        names_of: dict[str, list[str]] = {}
        for name, value in secrets:
            for encoding in encodings(value):
                for form in remove_breaks(encoding):
                    names_of.setdefault(form, []).append(name)
        marks: dict[str, str] = {}
        for name in {names[0] for names in names_of.values()}:
            marks[name] = next(
                (mark for template in _MARKS if not _touches(mark := template.format(name), names_of)), _MARKS[-1]
            )
        self._finder = SecretFinder({form: marks[names[0]] for form, names in names_of.items()})

    def mask_text(self, text: str) -> str:
        """Mask a whole text."""
        spans, _ = self._finder.find(text, 0, more=False)
        return _between(text, spans, 0, len(text)) if spans else text

    def mask_texts(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Mask each of several texts."""
        return tuple(map(self.mask_text, texts))

    def mask_value(self, value: Any, *, keys: bool = True, spared: Collection[str] = frozenset(), depth: int = 0) -> Any:  # noqa: ANN401 - JSON in, JSON out
        """Mask all texts of a JSON value, and its ``keys``, except the values at keys that are ``spared``."""

        def within(item: object) -> Any:  # noqa: ANN401 - as above
            return self.mask_value(item, keys=keys, spared=spared, depth=depth + 1)

        match value:
            case str():
                return self.mask_text(value)
            case dict() | list() | tuple() if depth >= NESTING_MAX:
                return _NESTED
            case dict():
                named = ((self.mask_text(str(key)) if keys else key, key, item) for key, item in value.items())
                return {shown: item if key in spared else within(item) for shown, key, item in named}
            case list() | tuple():
                return [within(item) for item in value]
            case int() | float() if not isinstance(value, bool) and (shown := self.mask_text(str(value))) != str(value):
                return shown
            case _:
                return value

    def mask_cell(self, cell: Cell) -> Cell:
        """Mask a cell."""
        if not isinstance(cell, ShellCell):
            return replace(cell, source=self.mask_text(cell.source), original=cell.original and self.mask_cell(cell.original))
        work_dir, stdin = (text and self.mask_text(text) for text in (cell.work_dir, cell.stdin))
        source, command, options = self.mask_text(cell.source), self.mask_text(cell.command), cell.options
        if options is not None:
            options = replace(options, env=tuple((name, self.mask_text(value)) for name, value in options.env))
        masked = replace(cell, source=source, command=command, work_dir=work_dir, stdin=stdin, options=options)
        return replace(masked, original=cell.original and self.mask_cell(cell.original))

    def stream_masker(self) -> StreamMasker:
        """Return a masker of a text that comes in pieces."""
        return StreamMasker(self._finder)


class StreamMasker:
    """A masker of one text that comes in pieces: the result does not depend on how it is cut.

    A possible beginning of a secret is held back until it is decided. If it must be given out before, the rest of the
    secret is masked alone.
    """

    def __init__(self, finder: SecretFinder) -> None:
        self._finder = finder
        self._text = ""
        self._begin = 0
        """The offset from which secrets are searched; the text before it only shows whether a line is long."""
        self._given = 0
        """The end of the text that was given out."""

    @property
    def holds_text(self) -> bool:
        """Tell whether any text is held back."""
        return self._given < len(self._text)

    def feed(self, text: str) -> str:
        """Take the next piece, and return the text that is settled now."""
        self._text += text
        spans, settled = self._finder.find(self._text, self._begin, more=True)
        text = self._give(spans, settled)
        self._begin = settled
        if (past := min(self._begin, self._given) - LINE_CHARS) > 0:
            self._text = self._text[past:]
            self._begin -= past
            self._given -= past
        return text

    def flush(self, *, is_last: bool = False) -> str:
        """Return all text that is held back, since other output must not wait for it.

        If ``is_last``, the output ends here: a beginning of a secret is masked as before an ellipsis, since the rest may come
        elsewhere.
        """
        if not self.holds_text:
            return ""
        spans, _ = self._finder.find(self._text + _ELLIPSIS * is_last, self._begin, more=False)
        text = self._give(spans, len(self._text))
        if spans and not is_last:
            self._begin = spans[-1].end
        return text

    def _give(self, spans: Sequence[Span], end: int) -> str:
        """Return the masked text up to ``end`` that was not given out yet."""
        text = _between(self._text, [span for span in spans if span.end > self._given], self._given, end)
        self._given = max(self._given, end)
        return text


def _between(text: str, spans: Sequence[Span], begin: int, end: int) -> str:
    parts: list[str] = []
    for span in spans:
        parts += (text[begin : span.start], span.mark)
        begin = span.end
    parts.append(text[begin:end])
    return "".join(parts)


def _touches(mark: str, forms: Iterable[str]) -> bool:
    """Tell whether a mark shows a secret, or forms one together with the text beside it."""
    starts = tuple(mark[:count] for count in range(1, len(mark)))
    ends = tuple(mark[-count:] for count in range(1, len(mark)))
    return any(form in mark or mark in form or form.endswith(starts) or form.startswith(ends) for form in forms)
