"""The forms in which a secret is searched: as it is, and encoded, quoted or escaped as programs do."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

#: The length of the shortest secret: masking shorter texts would mask everything.
LEAST_CHARS = 4
#: The length from which a line of a longer secret is searched alone.
_SINGLE_LINE_CHARS = 12
_PLAIN = re.compile(r"([^\w@%+=:,./-])", re.ASCII)
_IN_QUOTES = re.compile(r'([$`"\\])')
_LATIN = re.compile("[\x80-\xff]")
_ESCAPED_OCTET = re.compile("%[0-9A-F]{2}")


def encodings(value: str) -> frozenset[str]:
    """Return the forms of a secret, none shorter than four characters.

    In base64 a secret begins at one of three places in a group of four characters. Characters that also hold bits of its
    neighbours are unknown, so only those between them are searched and at most five bits at either end stay visible.
    """
    return frozenset(form for form in _all_forms(value) if len(form) >= LEAST_CHARS)


def _all_forms(value: str) -> Iterator[str]:
    raw = value.encode()
    yield value
    yield raw.hex()
    yield raw.hex().upper()
    for shift in range(3):
        inner = _inner_base64(raw, shift)
        yield inner
        yield inner.translate({ord("+"): "-", ord("/"): "_"})
    for text in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield text
        yield _ESCAPED_OCTET.sub(lambda octet: octet[0].lower(), text)
    yield from _as_json(value)
    yield from _as_python(value)
    yield from _as_markup(value)
    yield from _as_shell(value)
    yield from _with_escapes(value)
    yield from _lines(value)


def _inner_base64(raw: bytes, shift: int) -> str:
    """Return the base64 characters of the bytes alone, where these follow ``shift`` others in a group of three."""
    text = base64.b64encode(bytes(shift) + raw).decode()
    return text[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]


def _as_json(value: str) -> Iterator[str]:
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield once.replace("/", "\\/")
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


def _as_python(value: str) -> Iterator[str]:
    """Yield the forms of ``repr`` and ``ascii``, in either quotes."""
    for text in (repr(value)[1:-1], ascii(value)[1:-1], repr(value.encode())[2:-1]):
        bare = text.replace("\\'", "'")
        yield text
        yield bare
        yield bare.replace("'", "\\'")
        yield bare.replace('"', '\\"')


def _as_markup(value: str) -> Iterator[str]:
    yield html.escape(value, quote=False)
    quoted = html.escape(value)
    yield quoted
    yield quoted.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _as_shell(value: str) -> Iterator[str]:
    """Yield the forms of shells: quoted in a trace, and joined by single blanks where it was not quoted."""
    yield shlex.quote(f"{value} ")[1:-2]
    yield value.replace("'", "'\\''")
    yield " ".join(value.split())


def _with_escapes(value: str) -> Iterator[str]:
    """Yield the forms of bash in double quotes and ``%q``, of CSV and SQL with doubled quotes, and of escapes."""
    yield _IN_QUOTES.sub(r"\\\1", value)
    yield _PLAIN.sub(r"\\\1", value)
    yield value.replace('"', '""')
    yield value.replace("'", "''")
    yield re.escape(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    yield _LATIN.sub(lambda char: f"\\x{ord(char[0]):02X}", escaped)


def _lines(value: str) -> Iterator[str]:
    """Yield single lines, as ``head`` and ``grep`` show them, without short ones and headers of keys."""
    yield value.replace("\n", "\r\n")
    lines = value.splitlines()
    yield from (
        line for line in map(str.strip, lines[1:] and lines) if len(line) >= _SINGLE_LINE_CHARS and not line.startswith("-----")
    )
