"""What a shell makes of a word: quotes are gone, variables that are known are put in, and what cannot be known is marked."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelexec.policy.shell.errors import UnparsableScript

if TYPE_CHECKING:
    from tree_sitter import Node

#: Stands for text that only the running shell knows. No command can hold it.
UNKNOWN = "\x00"
#: Where a shell splits values, unless it is told otherwise.
BLANKS = " \t\n"
#: What a shell may replace by names of files.
GLOB = frozenset("*?[")
_FIELDS_MAX = 256
_BLANK = re.compile(r"[ \t\n]+")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_RANGE = re.compile(r"\{(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?\d+)?\}")
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
_ANSI_C = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.)|(.))", re.DOTALL)
_ANSI_C_NAMED = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LITERAL = frozenset({"word", "number", "variable_name", "extglob_pattern", "regex", "test_operator"})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that came of one part of a word; what is quoted is neither split nor expanded any more."""

    text: str
    quoted: bool = False
    split: bool = False


class Words:
    """Reads words, with the variables of a place in a script.

    ``output`` tells what commands in ``$( )`` print, as far as that is known; ``again`` is told each value that is expanded
    once more.
    """

    def __init__(self, variables: Mapping[str, str], output: Callable[[Node], str], again: Callable[[str], None]) -> None:
        self._variables = variables
        self._output = output
        self._again = again

    def fields(self, node: Node) -> list[str]:
        """The fields that a word becomes: none, one or several.

        Raises:
            UnparsableScript: more than 256.
        """
        found: list[str] = []
        for pieces in _braced(list(self._pieces(node))):
            found += _split(pieces)
            if len(found) > _FIELDS_MAX:
                message = f"a word becomes more than {_FIELDS_MAX} fields"
                raise UnparsableScript(message)
        return found

    def text(self, node: Node) -> str:
        """What a word is where it is not split, as in an assignment."""
        return "".join(piece.text for piece in self._pieces(node))

    def _pieces(self, node: Node) -> Iterator[_Piece]:
        match node.type:
            case kind if kind in _LITERAL:
                yield from _unescaped(text_of(node))
            case "raw_string":
                yield _Piece(text_of(node)[1:-1], quoted=True)
            case "ansi_c_string":
                yield _Piece(_ansi_c(text_of(node)[2:-1]), quoted=True)
            case "string" | "translated_string":
                yield _Piece(self.quoted(node), quoted=True)
            case "concatenation" | "command_name":
                for child in node.children:
                    yield from self._pieces(child)
            case "simple_expansion" | "expansion" | "command_substitution" | "arithmetic_expansion" | "process_substitution":
                yield _Piece(self._separated(self._expanded(node)), split=True)
            case "brace_expression":
                yield _Piece(text_of(node))
            case _ if not node.children:
                yield from _unescaped(text_of(node))
            case _:
                yield _Piece(UNKNOWN)

    def _separated(self, text: str) -> str:
        """A value that the shell splits; unknown where that is not at blanks."""
        separators = self._variables.get("IFS", BLANKS)
        as_ever = separators == BLANKS or (UNKNOWN not in separators and not set(text) & set(separators + BLANKS))
        return text if as_ever else UNKNOWN

    def quoted(self, node: Node) -> str:
        """The text of a string in double quotes, or of a here-document, as which ``node`` is read."""
        found, end = [], node.start_byte
        source = node.text or b""
        for child in [*node.children, None]:
            start = node.end_byte if child is None else child.start_byte
            between = source[end - node.start_byte : start - node.start_byte].decode("utf-8", "replace")
            found.append(_in_quotes(between))
            if child is None:
                break
            end = child.end_byte
            if child.type in ('"', '$"', "$"):
                found.append("" if child.type != "$" else "$")
            elif child.type in ("string_content", "heredoc_content"):
                found.append(_in_quotes(text_of(child)))
            elif child.type == "string":
                found.append(self.quoted(child))
            else:
                leading = text_of(child)
                found.append(leading[: len(leading) - len(leading.lstrip())] + self._expanded(child))
        return "".join(found)

    def _expanded(self, node: Node) -> str:
        if node.type in ("command_substitution", "process_substitution"):
            return self._output(node)
        for child in node.named_children:  # what stands in ${x:-$(y)} or $((...)) runs too
            self._look_within(child)
        names = [text_of(child) for child in node.named_children if child.type == "variable_name"]
        if node.type not in ("simple_expansion", "expansion") or len(names) != 1:
            return UNKNOWN
        return self._value(names[0], node)

    def _value(self, name: str, node: Node) -> str:
        kinds = [child.type for child in node.children]
        known = self._variables.get(name)
        if node.type == "simple_expansion" or kinds == ["${", "variable_name", "}"]:
            return UNKNOWN if known is None else known
        if kinds[-3:-1] == ["@", "P"]:
            self._again(UNKNOWN if known is None else known)
        operator = next((kind for kind in kinds if kind in (":-", "-", ":=", "=", ":+", "+")), None)
        if operator is None or kinds[1] != "variable_name":
            return UNKNOWN
        instead = "".join(self.text(child) for child in node.named_children[1:])
        if operator.endswith("+"):
            return instead
        return known or instead

    def _look_within(self, node: Node) -> None:
        if node.type in ("command_substitution", "process_substitution"):
            self._output(node)
            return
        for child in node.named_children:
            self._look_within(child)


def text_of(node: Node) -> str:
    """The text of a part of the script."""
    return (node.text or b"").decode("utf-8", "replace")


def _unescaped(text: str) -> Iterator[_Piece]:
    """A word without quotes; what a backslash stands before is as if quoted."""
    end = 0
    for match in _ESCAPED.finditer(text):
        if match.start() > end:
            yield _Piece(text[end : match.start()])
        if match[1] != "\n":
            yield _Piece(match[1], quoted=True)
        end = match.end()
    if end < len(text):
        yield _Piece(text[end:])


def _in_quotes(text: str) -> str:
    return _ESCAPED_IN_QUOTES.sub(lambda match: "" if match[1] == "\n" else match[1], text)


def _ansi_c(text: str) -> str:
    def read(match: re.Match[str]) -> str:
        octal, byte, short, long, control, other = match.groups()
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if byte or short or long:
            number = int(byte or short or long, 16)
            return chr(number) if number <= 0x10FFFF else UNKNOWN  # noqa: PLR2004 - the last character of Unicode
        return chr(ord(control) & 0x1F) if control else _ANSI_C_NAMED.get(other, other)

    read_text = _ANSI_C.sub(read, text).split("\x00")[0]  # as bash: it ends at NUL
    with_bytes = read_text.encode("latin-1", "ignore") if max(map(ord, read_text), default=0) < 256 else b""  # noqa: PLR2004 - bytes
    try:
        return codecs.decode(with_bytes, "utf-8") or read_text
    except UnicodeDecodeError:
        return read_text


def _braced(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """The words that braces make of one."""
    plain = "".join(piece.text for piece in pieces)
    if any(piece.quoted or piece.split for piece in pieces) or "{" not in plain:
        yield pieces
        return
    words = [plain]
    for _ in range(4):
        words = list(itertools.islice((made for word in words for made in _one_brace(word)), _FIELDS_MAX + 1))
    yield from ([_Piece(word)] for word in words)


def _one_brace(word: str) -> list[str]:
    match = _BRACES.search(word)
    if match is not None:
        return [word[: match.start()] + part + word[match.end() :] for part in match[1].split(",")]
    ranged = _RANGE.search(word)
    return [word] if ranged is None else [word[: ranged.start()] + UNKNOWN + word[ranged.end() :]]


def _split(pieces: list[_Piece]) -> list[str]:
    """Fields, cut where a variable without quotes brought blanks."""
    fields, current, begun = [], "", False
    for piece in pieces:
        if not piece.split:
            current, begun = current + piece.text, begun or bool(piece.text) or piece.quoted
            continue
        parts = _BLANK.split(piece.text)
        for place, part in enumerate(parts):
            if place and begun:
                fields.append(current)
                current, begun = "", False
            if part:
                current, begun = current + part, True
    return [*fields, current] if begun else fields
