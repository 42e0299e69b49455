"""Values in one line for ``repr``: short, and without line ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from kernelexec.text import escape_line

#: Limit of names or files in a line.
JOINED_MAX = 100
_QUOTED_CHARS, _LINE_CHARS, _NAMES_MAX = 40, 100, 8
#: From these numbers on rounding adds a digit: the text has a digit less, or the next unit.
_TEN, _THOUSAND = 9.95, 999.5
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def join_parts(*parts: str | None) -> str:
    """Return the parts in one line, without None and empty parts."""
    return " · ".join(filter(None, parts))


def quote_line(text: str) -> str:
    """Return a text on one line, cut after 100 characters."""
    return escape_line(text if len(text) <= _LINE_CHARS else text[:_LINE_CHARS] + "…")


def count_things(noun: str, number: int) -> str:
    """Return a number of things: ``2 files``, ``1 file``, ``no file``."""
    return f"{number or 'no'} {noun}{'s' * (number > 1)}"


def quote_head(text: str) -> str | None:
    """Return the first line of a text in quotes, cut; None for a blank text."""
    lines = text.strip().split("\n", 1)
    if not lines[0]:
        return None
    is_cut = len(lines) > 1 or len(lines[0]) > _QUOTED_CHARS
    return escape_line(repr(lines[0][:_QUOTED_CHARS].rstrip() + "…" * is_cut))


def join_some(names: Iterable[str], total: int | None = None, *, limit: int = _NAMES_MAX) -> str:
    """Return the first names in one line, and dots for further names; ``total`` is the number of all names."""
    shown = list(islice(names, limit + 1))
    has_more = len(shown) > limit or (total is not None and total > len(shown))
    return escape_line(", ".join(shown[:limit]) + ", …" * has_more)


def list_some(heading: str, names: Iterable[str]) -> str:
    """Return a heading, followed by a colon and the first names if there are names."""
    listed = join_some(names)
    return f"{heading}: {listed}" if listed else heading


def join_names(names: Sequence[str], limit: int = JOINED_MAX) -> str:
    """Return the names in one line, and the number of names above the limit."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def format_seconds(seconds: float) -> str:
    """Return a duration as text: ``0.02 s``, ``12 s``, ``3 min 5 s``, ``2 h 5 min``."""
    if seconds < _TEN:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_of_hour = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_of_hour} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_bytes(size: int) -> str:
    """Return a size in decimal units: ``9 kB``, ``1.2 MB``."""
    amount, units = float(size), list(_UNITS)
    while amount >= _THOUSAND and len(units) > 1:
        amount /= 1000
        del units[0]
    digits = 1 if amount < _TEN and units[0] not in _UNITS[:2] else 0
    return f"{amount:.{digits}f} {units[0]}"
