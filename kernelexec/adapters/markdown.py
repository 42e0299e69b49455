"""Code blocks in a message, as models write them: fenced by backticks or tildes, with or without a language."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: A fence, which begins its line, or an item of a list, and has nothing more than an info string behind it.
_FENCE = re.compile(r"(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)")
#: What ends a line; other characters at which Python would split a text may stand in a string of the code.
LINE_END = re.compile(r"\r\n?|\n")
#: What is indented by that much more than an opening fence is code of its block.
_DEEPER = 4
_TEXT_PARTS = ("text", "input_text")
_COMMANDS = ("python ", "python3 ", "pip")


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its code without the fences, and its language in lower case, empty where it is not known."""

    code: str
    language: str


def content_text(content: object) -> str:
    """Return the text of a message: text, None, or a list whose parts ``text`` and ``input_text`` count, each from a new line.

    Raises:
        TypeError: it is something else.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Iterable):
        raise TypeError(f"content is {type(content).__name__}: it is text, None, or a list of parts.")
    parts = [part for part in content if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS]
    return "\n".join(str(part.get("text", "")) for part in parts)


def blocks(content: object) -> list[Block]:
    """Return the code blocks of a message in their order, with the language that a block names or that its code shows.

    A fence begins its line, and is closed by one of the same kind that is at least as long, so a block may hold shorter ones,
    and those that are indented by four columns more: they close it only where nothing else could. What is never closed may
    lack its end: it is no block, nor is what stands in it. Code keeps its indentation but for the fence's own. A block without
    a language is taken for ``sh`` where it begins with ``python``, ``python3`` or ``pip``, and for ``python`` where it is valid
    Python.

    Raises:
        TypeError: see ``content_text``.
    """
    lines = LINE_END.split(content_text(content))
    code_blocks: list[Block] = []
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        if not (end := _end(lines, number, opening)):
            break
        indent = opening["indent"] if opening["indent"].isspace() else " " * len(opening["indent"])
        code = "\n".join(line.removeprefix(indent) for line in lines[number:end])
        code_blocks.append(Block(code, _language(opening["info"]) or inferred(code)))
        number = end + 1
    return [block for block in code_blocks if block.code.strip()]


def inferred(code: str) -> str:
    """Return the language that code shows, or an empty text."""
    if code.lstrip().startswith(_COMMANDS):
        return "sh"
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "python"


def _end(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the number of the line that closes the block at ``start``; 0 if none does.

    The first fence that is not indented deeper and names no language does. Models indent that fence too: a single deeper one,
    ahead of the next block or of the message's end, is it; where there are two they belong to the code, as in a docstring.
    """
    deeper: list[int] = []
    for number in range(start, len(lines)):
        fence = _FENCE.fullmatch(lines[number])
        if fence is None or not fence["fence"].startswith(opening["fence"]):
            continue
        bare = not fence["info"].strip() and not fence["indent"].strip()
        if _width(fence) >= _width(opening) + _DEEPER:
            deeper.append(number if bare else 0)
        elif bare:
            return number
        elif len(deeper) == 1 and deeper[0]:
            break
    return deeper[0] if len(deeper) == 1 else 0


def _width(fence: re.Match[str]) -> int:
    """Return the column in which a fence begins."""
    return len(fence["indent"].expandtabs(_DEEPER))


def _language(info: str) -> str:
    """Return the language of an info string as ``python``, ``{.python .numbered}`` or ``py title="x"``."""
    words = info.strip().strip("{}").replace(",", " ").split()
    return words[0].lstrip(".").lower() if words else ""
