"""The store of an executor's secrets: values are read at the start of a kernel, and every value once read stays masked.

The masker replaces secrets by their names, in whole texts and in streams, without a file, clock or logger. Masking is against
accidents: code can leak a secret on purpose in another form.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from kernelexec.cancellation import call_in_own_thread
from kernelexec.cells import Cell, ShellCell
from kernelexec.config.types import FromFile, FromFunction, FromVariable, Reference
from kernelexec.errors import InvalidConfig
from kernelexec.rules.secrets.finder import LEAST_CHARS, LINE_CHARS, SecretFinder, Span, encodings, remove_breaks
from kernelexec.text import NESTING_MAX

#: The largest secret, in bytes of UTF-8: a variable of a process has room for twice that.
SECRET_BYTES = 64 * 1024
#: The time for reading all secrets, in seconds.
_PATIENCE = 30.0
_LINKS_MAX = 8
_NEWLINE = "\r\n"
_TOO_LARGE = f"is larger than {SECRET_BYTES} bytes"
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Marks that replace a secret: the first that shares no text with any secret is taken.
_MARKS = ("[secret {}]", "<secret {}>", "(secret {})", "\u2588\u2588\u2588\u2588")
_ELLIPSIS = "\u2026"
_NESTED = "[... nested deeper ...]"


class _UnusableSecret(Exception):
    """An unusable secret; the message shows nothing of the value."""


class SecretStore:
    """A reader of secrets, with a memory of all their values."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self.masker = Masker()
        """Masks all values that were read until now."""
        self._references = references
        self._known: dict[tuple[str, str], None] = {}

    async def read(self) -> dict[str, str]:
        """Return the present values by variable, masked from then on; raise ``InvalidConfig`` for a missing or unfit value.

        All values together must be read within 30 s.
        """
        try:
            with anyio.fail_after(_PATIENCE):
                values, error = await call_in_own_thread(self._read)
        except TimeoutError:
            values, error = {}, f"secrets: they were not read within {_PATIENCE:.0f} s."
        if error is not None:
            raise InvalidConfig(error)
        return values

    def _read(self) -> tuple[dict[str, str], str | None]:
        """Return the values, or the error as text: an exception may hold a value, so none is kept."""
        values: dict[str, str] = {}
        for name, reference in self._references.items():
            try:
                values[name] = _check_value(_read_reference(reference))
            except _UnusableSecret as exc:
                return {}, f"secrets.{name}: {reference} {exc}."
        pairs = self._known | dict.fromkeys(values.items())
        if pairs != self._known:
            self.masker, self._known = Masker(pairs), pairs
        return values, None


def _read_reference(reference: Reference) -> str:
    match reference:
        case FromVariable():
            if (value := os.environ.get(reference.env)) is None:
                raise _UnusableSecret("is not set here: set it, or name another source")
            return value
        case FromFile():
            return _read_file(reference.file.expanduser())
        case FromFunction():
            return _call_function(reference)


def _call_function(reference: FromFunction) -> str:
    raised = ""
    # Raised outside of the handler: an exception within would carry the function's exception as its context.
    try:
        value: object = reference.call()
    except BaseException as exc:  # noqa: BLE001 - its message may be the secret
        raised = type(exc).__name__
    if raised:
        raise _UnusableSecret(f"raised {raised}")
    if not isinstance(value, str):
        raise _UnusableSecret(f"returned {type(value).__name__}, not str")
    return value


def _read_file(path: Path) -> str:
    """Return the text of a regular file, without a single newline at the end."""
    error = ""
    raw = b""
    try:
        fd = _open_file(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                error = "is no regular file"
            else:
                with os.fdopen(os.dup(fd), "rb") as file:
                    raw = file.read(SECRET_BYTES + len(_NEWLINE) + 1)
                error = _TOO_LARGE if len(raw) > SECRET_BYTES + len(_NEWLINE) else ""
        finally:
            os.close(fd)
    except OSError as exc:
        error = f"cannot be read ({exc.strerror})"
    if error:
        raise _UnusableSecret(error)
    with suppress(UnicodeDecodeError):
        text = raw.decode()
        return text.removesuffix(_NEWLINE if text.endswith(_NEWLINE) else "\n")
    raise _UnusableSecret("is not UTF-8")


def _open_file(path: Path) -> int:
    """Open a file, following links of this user and of root only; raise OSError at the link of any other user."""
    for _ in range(_LINKS_MAX):
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(link)
            # Opened without following: a link put in the file's place since then is an error.
            if not stat.S_ISLNK(status.st_mode):
                return os.open(path, _OPENED)
            if status.st_uid not in (os.geteuid(), 0):
                raise OSError(errno.ELOOP, "it is another user's link")
            # Of the opened link itself (readlinkat(2) with an empty path), whose owner was checked.
            path = path.parent / os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _check_value(value: str) -> str:
    """Return a value if a variable can hold the value and masking is possible; raise ``_UnusableSecret`` otherwise."""
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _UnusableSecret("is not valid text")
    if len(value.encode()) > SECRET_BYTES:
        raise _UnusableSecret(_TOO_LARGE)
    if len("".join(value.split())) < LEAST_CHARS:
        raise _UnusableSecret(f"has less than {LEAST_CHARS} characters that can be seen: to mask it would mask everything")
    if "\0" in value or "\x1b" in value:
        raise _UnusableSecret("holds a control character that no variable can have, or that is for terminals")
    return value


class Masker:
    """A masker of secrets, pairs of a name and a value; a name may have several values over time."""

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
        """Mask all texts of a JSON value, including its ``keys``, except the values at ``spared`` keys."""

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
        """Return a masker of a text in pieces."""
        return StreamMasker(self._finder)


class StreamMasker:
    """A masker of a text in pieces: the result is the same for any division into pieces.

    A possible beginning of a secret is held back until the following text decides. If the beginning must be given out before,
    the rest of the secret is masked alone.
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
        """Whether any text is held back."""
        return self._given < len(self._text)

    def feed(self, text: str) -> str:
        """Take the next piece, and return the text settled now."""
        self._text += text
        spans, settled = self._finder.find(self._text, self._begin, more=True)
        text = self._give(spans, settled)
        self._begin = settled
        # One line's length stays before the search: it shows whether a break at the beginning is within a long line.
        if (past := min(self._begin, self._given) - LINE_CHARS) > 0:
            self._text = self._text[past:]
            self._begin -= past
            self._given -= past
        return text

    def flush(self, *, is_last: bool = False) -> str:
        """Return all text held back, since other output must not wait.

        If ``is_last``, the output ends here: a beginning of a secret is masked as before an ellipsis, since the rest may
        appear elsewhere.
        """
        if not self.holds_text:
            return ""
        spans, _ = self._finder.find(self._text + _ELLIPSIS * is_last, self._begin, more=False)
        text = self._give(spans, len(self._text))
        if spans and not is_last:
            self._begin = spans[-1].end
        return text

    def _give(self, spans: Sequence[Span], end: int) -> str:
        """Return the masked text up to ``end``, without the text given out before."""
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
    """Return whether a mark shows a secret, or forms a secret together with the text beside it."""
    starts = tuple(mark[:count] for count in range(1, len(mark)))
    ends = tuple(mark[-count:] for count in range(1, len(mark)))
    return any(form in mark or mark in form or form.endswith(starts) or form.startswith(ends) for form in forms)
