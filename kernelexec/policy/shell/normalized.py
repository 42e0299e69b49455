"""What a script in plain form is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelexec.policy.shell.errors import UnparsableScript

#: Begin a word behind ``<`` that is no file's name: what is read; or the number of a text without anything to expand.
HERE, LITERAL = "\x01", "\x02"


@dataclass(frozen=True, slots=True)
class Plain:
    """A script, and the places of ``$( )``, ``<( )`` and ``>( )`` in its bytes: from the first, to behind the last."""

    text: str
    commands: frozenset[tuple[int, int]]


@dataclass(slots=True)
class Out:
    """What is made: texts, beginnings and ends of commands, and what is filled in later."""

    parts: list[str | bool | Out] = field(default_factory=list)

    def plain(self) -> Plain:
        """All of it as one."""
        texts, place, begun, found = list[str](), 0, list[int](), set[tuple[int, int]]()
        for part in self._flat():
            if isinstance(part, str):
                texts.append(part)
                place += len(part) if part.isascii() else len(part.encode("utf-8", "replace"))
            elif part:
                begun.append(place)
            else:
                found.add((begun.pop(), place))
        return Plain("".join(texts), frozenset(found))

    def _flat(self) -> Iterator[str | bool]:
        for part in self.parts:
            if isinstance(part, Out):
                yield from part._flat()  # noqa: SLF001 - its own kind
            else:
                yield part


@dataclass(slots=True)
class Bounds:
    """What all have in common: how deep it is now, and how often a parenthesis was not what it seemed."""

    literals: list[str]
    depth: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Here:
    """A here-document: the line that ends it, whether tabs go and nothing is expanded, and where its text belongs."""

    word: str
    tabs: bool
    quoted: bool
    slot: Out

    def body(self, text: str, at: int) -> tuple[str, int]:
        """Its text, and where it goes on behind it.

        Raises:
            UnparsableScript: it has no end.
        """
        lines = list[str]()
        while at < len(text):
            line, at = _line(text, at)
            while not self.quoted and (len(line) - len(line.rstrip("\\"))) & 1 and at < len(text):
                more, at = _line(text, at)
                line = line[:-1] + more
            line = line.lstrip("\t") if self.tabs else line
            if line == self.word:
                return "\n".join(lines), at
            lines.append(line)
        raise UnparsableScript("a here-document has no end")


def _line(text: str, at: int) -> tuple[str, int]:
    end = text.find("\n", at)
    return (text[at:], len(text)) if end < 0 else (text[at:end], end + 1)
