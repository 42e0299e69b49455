"""Every form in which a secret is looked for: as it is, and as programs write it when they encode, quote or escape it."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

#: What is shorter is no secret: to mask it would mask everything.
LEAST_CHARS = 4
#: So much of a line of a longer secret is one by itself.
_LINE_CHARS = 12
_PLAIN = re.compile(r"([^\w@%+=:,./-])", re.ASCII)
_IN_QUOTES = re.compile(r'([$`"\\])')
_LATIN = re.compile("[\x80-\xff]")
_ESCAPED_OCTET = re.compile("%[0-9A-F]{2}")


def encodings(value: str) -> frozenset[str]:
    """The forms of a secret, itself among them, none shorter than four characters.

    In base64 it can begin at three places of a group of four characters. Those that hold bits of its neighbours too are not
    known: what is looked for is what lies between them, so at most five bits at either end stay in sight.
    """
    return frozenset(guise for guise in _all(value) if len(guise) >= LEAST_CHARS)


def _all(value: str) -> Iterator[str]:
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
    yield from _quoted(value)
    yield from _lines(value)


def _inner_base64(raw: bytes, shift: int) -> str:
    """The characters that say nothing but the bytes, where these follow ``shift`` others in a group of three."""
    text = base64.b64encode(bytes(shift) + raw).decode()
    return text[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]


def _as_json(value: str) -> Iterator[str]:
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield once.replace("/", "\\/")
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]


def _as_python(value: str) -> Iterator[str]:
    """As ``repr`` and ``ascii`` have it, in whichever quotes the text around it is."""
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
    """As shells quote it when they trace what they run, and as they join its words again where it was not quoted."""
    yield shlex.quote(f"{value} ")[1:-2]
    yield value.replace("'", "'\\''")
    yield " ".join(value.split())


def _quoted(value: str) -> Iterator[str]:
    """As bash has it in double quotes and by ``%q``, CSV and SQL by doubled quotes, and other languages by escapes."""
    yield _IN_QUOTES.sub(r"\\\1", value)
    yield _PLAIN.sub(r"\\\1", value)
    yield value.replace('"', '""')
    yield value.replace("'", "''")
    yield re.escape(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    yield _LATIN.sub(lambda char: f"\\x{ord(char[0]):02X}", escaped)


def _lines(value: str) -> Iterator[str]:
    """Its lines one by one, as ``head`` and ``grep`` show them, but for short ones and what only says what it is."""
    yield value.replace("\n", "\r\n")
    lines = value.splitlines()
    yield from (
        line for line in map(str.strip, lines[1:] and lines) if len(line) >= _LINE_CHARS and not line.startswith("-----")
    )
