"""Word expansion: the fields that bash makes of a word, as far as they are literal."""

from __future__ import annotations

import codecs
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelexec.policy.shell.errors import UnparsableScript

if TYPE_CHECKING:
    from tree_sitter import Node

#: Stands for text that only the running shell knows. No command can hold this character.
UNKNOWN = "\x00"
#: Characters of patterns that a shell replaces by names of files.
GLOB = frozenset("*?[")
#: Bounds of the combinations of values in one word or command, and of the fields of one word.
ALTERNATIVES_MAX, _FIELDS_MAX = 64, 256
_BLANK = re.compile(r"[ \t\n]+")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_RANGE = re.compile(r"\{(?:-?\d+|[A-Za-z])\.\.[^{}]*\}")
_ESCAPED = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\([$`"\\\n])')
#: Escapes of ``$'...'`` that Python reads alike.
_ANSI_C = re.compile(r"(?:[^\\]|\\(?:[\\'\"abfnrtv]|[0-7]{1,3}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))*", re.ASCII)
_LITERAL = frozenset({"word", "number", "variable_name", "extglob_pattern", "regex", "test_operator", "brace_expression"})
_SUBSTITUTIONS = ("command_substitution", "process_substitution")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a word with the texts that it may have. A quoted part is final; the value of a ``split`` one is split."""

    options: tuple[str, ...]
    quoted: bool = False
    split: bool = False


class WordExpansion:
    """Expands words. A variable has any value that the script assigns to it, or an unknown one.

    Args:
        variables: The literal values of each variable.
        output: Returns the output of a command substitution.
    """

    def __init__(self, variables: Mapping[str, Iterable[str]], output: Callable[[Node], str]) -> None:
        self._variables = variables
        self._output = output

    def alternatives(self, node: Node) -> list[list[str]]:
        """Return the fields that a word becomes, once for each combination of its variables' values.

        Raises:
            UnparsableScript: The word becomes too many fields, or its variable is expanded a second time (``${x@P}``).
        """
        return [_fields(list(zip(texts, pieces, strict=True))) for pieces, texts in self._combinations(node)]

    def texts(self, node: Node) -> list[str]:
        """Return the texts of a word where it is not split, as in an assignment."""
        return ["".join(texts) for _, texts in self._combinations(node)]

    def _combinations(self, node: Node) -> Iterator[tuple[list[_Piece], tuple[str, ...]]]:
        pieces = list(self._pieces(node))
        if math.prod(len(piece.options) for piece in pieces) > ALTERNATIVES_MAX:
            pieces = [piece if len(piece.options) == 1 else replace(piece, options=(UNKNOWN,)) for piece in pieces]
        yield from ((pieces, texts) for texts in itertools.product(*(piece.options for piece in pieces)))

    def _pieces(self, node: Node) -> Iterator[_Piece]:
        match node.type:
            case "raw_string":
                yield _Piece((text_of(node)[1:-1],), quoted=True)
            case "ansi_c_string":
                yield _Piece((_ansi_c(text_of(node)[2:-1]),), quoted=True)
            case "string":
                yield from self._quoted_pieces(node)
            case "concatenation" | "command_name" | "translated_string":
                for child, following in itertools.zip_longest(node.children, node.children[1:]):
                    if child.type != "$" or following is None or following.type != "string":  # $"..." is translated
                        yield from self._pieces(child)
            case "simple_expansion" | "expansion":
                yield _Piece(tuple(self._values(node)), split=True)
            case kind if kind in _SUBSTITUTIONS:
                yield _Piece((self._output(node),), split=True)
            case kind if kind in _LITERAL or not node.children:
                yield from _unquoted_pieces(text_of(node))
            case _:
                yield _Piece((UNKNOWN,))

    def _quoted_pieces(self, node: Node) -> Iterator[_Piece]:
        """Yield the pieces of a string in double quotes; the grammar leaves out blanks beside expansions."""
        source, end = node.text or b"", 0
        yield _Piece(("",), quoted=True)
        for child in node.children:
            begin = child.start_byte - node.start_byte
            text = text_of(child)
            if child.type == '"':
                text = ""
            elif child.type not in ("string_content", "$"):
                text = text[: len(text) - len(text.lstrip())]
            between = source[end:begin].decode("utf-8", "replace") + text
            yield _Piece((_ESCAPED_IN_QUOTES.sub(lambda match: match[1].strip("\n"), between),), quoted=True)
            if child.type in ("simple_expansion", "expansion", "arithmetic_expansion", "string", *_SUBSTITUTIONS):
                yield from (replace(piece, quoted=True, split=False) for piece in self._pieces(child))
            end = child.end_byte - node.start_byte

    def _values(self, node: Node) -> list[str]:
        kinds = [child.type for child in node.children]
        names = [text_of(child) for child in node.named_children if child.type.endswith("variable_name")]
        if kinds[-3:-1] == ["@", "P"]:
            raise UnparsableScript("a variable's value is expanded once more")
        if len(names) != 1:
            return [UNKNOWN]
        known = list(self._variables.get(names[0], ()))
        if node.type == "simple_expansion" or len(kinds) == 3:  # noqa: PLR2004 - ${ x }
            return [*known, UNKNOWN]
        if kinds[2] not in (":-", "-", ":=", "=", ":+", "+"):
            return [UNKNOWN]
        defaults = itertools.product(*(self.texts(child) for child in node.named_children[1:]))
        return [*map("".join, defaults), *("" if kinds[2].endswith("+") else known)]


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def _unquoted_pieces(text: str) -> Iterator[_Piece]:
    """Yield the pieces of a word without quotes; an escaped character is quoted."""
    end = 0
    for match in _ESCAPED.finditer(text):
        if match.start() > end:
            yield _Piece((text[end : match.start()],))
        if match[1] != "\n":
            yield _Piece((match[1],), quoted=True)
        end = match.end()
    if end < len(text):
        yield _Piece((text[end:],))


def _ansi_c(text: str) -> str:
    if not text.isascii() or _ANSI_C.fullmatch(text) is None:
        return text if "\\" not in text else UNKNOWN
    return codecs.decode(text, "unicode_escape").split("\0")[0]


def _fields(parts: list[tuple[str, _Piece]]) -> list[str]:
    """Split one combination of texts into fields: braces first, then unquoted values at blanks."""
    text = "".join(text for text, _ in parts)
    if "{" in text and not any(piece.quoted or piece.split for _, piece in parts):
        words = [text]
        for _ in range(4):
            words = list(itertools.islice((word for braced in words for word in _expand_braces(braced)), _FIELDS_MAX + 1))
        if len(words) > _FIELDS_MAX:
            message = f"a word becomes more than {_FIELDS_MAX} fields"
            raise UnparsableScript(message)
        return words
    fields, current, begun = list[str](), "", False
    for text, piece in parts:
        for index, part in enumerate(_BLANK.split(text) if piece.split else [text]):
            if index and begun:
                fields.append(current)
                current, begun = "", False
            current, begun = current + part, begun or bool(part) or piece.quoted
    return [*fields, current] if begun else fields


def _expand_braces(word: str) -> list[str]:
    """Expand the first braces of a word; a range is unknown."""
    match = _BRACES.search(word)
    if match is not None:
        return [word[: match.start()] + part + word[match.end() :] for part in match[1].split(",")]
    return [_RANGE.sub(UNKNOWN, word)]
