"""Code blocks of Markdown messages, in fences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: A fence at the beginning of a line or a list item, followed by an info string only.
_FENCE = re.compile(r"(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})[ \t]*+(?P<info>[^`\n]*)")
_FENCES = re.compile(rf"^{_FENCE.pattern}$", re.MULTILINE)
#: A block in a single line, and a closing fence behind the last line of the code.
_ONE_LINE = re.compile(r"(?m:^)(`{3,})(?:[ \t]*+(python|py|bash|sh)[ \t])?([^`\n]+)`{3,}\Z")
_CLOSED_BY = re.compile(r"(?<=[^\s`~])[ \t]*(`{3,}|~{3,})\Z")
#: Strings and magics, which may have a fence in them, and comments, which may be headings.
_CELL, _COMMENT = re.compile(r"""'{3}|"{3}|^[ \t]*[%!]""", re.MULTILINE), re.compile(r"^#.*", re.MULTILINE)
#: Line ends. Other characters at which ``splitlines`` splits may be in string literals of the code.
LINE_END = re.compile(r"\r\n?|\n")
#: The extra indentation with which a fence belongs to the code of the block.
_DEEPER = 4
_TEXT_PARTS = ("text", "input_text")
_COMMANDS = ("python ", "python3 ", "pip")


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A code block without fences, and the language in lower case, or an empty text if unknown."""

    code: str
    language: str


def read_content(content: object) -> str:
    """Return the text of a message: text, None, or the lines of a list's parts ``text`` and ``input_text``.

    Raises:
        TypeError: the content has another type.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Iterable):
        raise TypeError(f"content is {type(content).__name__}: must be text, None, or a list of parts.")
    text_parts = [part for part in content if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS]
    return "\n".join(str(part.get("text", "")) for part in text_parts)


def find_blocks(content: object) -> list[MarkdownBlock]:
    """Return the code blocks of a message in order, each with the named or inferred language.

    A fence begins a line. A block ends at the next fence of the same character and at least the same length. A fence indented
    by four or more extra columns ends the block only if there is no other. An unclosed block may be incomplete, and is ignored
    with all contents. The fence's indentation is removed from the code. A block without a language is ``sh`` if the code begins
    with ``python``, ``python3`` or ``pip``, else ``python`` if the code is valid Python.

    Raises:
        TypeError: see ``read_content``.
    """
    lines = LINE_END.split(read_content(content))
    code_blocks: list[MarkdownBlock] = []
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        if not (end := _closing_line(lines, number, opening)):
            break
        indent = opening["indent"] if opening["indent"].isspace() else " " * len(opening["indent"])
        code = "\n".join(line.removeprefix(indent) for line in lines[number:end])
        code_blocks.append(MarkdownBlock(code, _parse_language(opening["info"]) or infer_language(code)))
        number = end + 1
    return [block for block in code_blocks if block.code.strip()]


def find_only_block(text: str) -> MarkdownBlock | None:
    """Return the single block of a text, which may lack a fence; None for several blocks, or code around the block."""
    text = _CLOSED_BY.sub(r"\n\1", _ONE_LINE.sub(r"\1\2\n\3\n\1", LINE_END.sub("\n", text.rstrip())))
    if not (fences := list(_FENCES.finditer(text))):
        return None
    first, last = fences[0], fences[-1]
    before, after = text[: first.start()], text[last.end() :]
    if first is last and not after and infer_language(before) == "python":
        return MarkdownBlock(before, "python")
    blocks = find_blocks(f"{text}\n{first['fence']}")  # an open block is closed by that
    parts = [_COMMENT.sub("", part).strip() or "?" for part in (before, after)[: len(fences)]]
    is_only = first is last or (blocks and text.count("\n", first.end(), last.start()) == blocks[0].code.count("\n") + 2)
    has_code = any(_CELL.search(part) or infer_language(part) == "python" for part in parts)
    return blocks[0] if blocks and is_only and not has_code else None


def infer_language(code: str) -> str:
    """Infer the language of code; empty if unknown."""
    if code.lstrip().startswith(_COMMANDS):
        return "sh"
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "python"


def _closing_line(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the number of the closing line of the block at ``start``; 0 for an unclosed block.

    The first fence without deeper indentation and without a language closes the block. Models sometimes indent the closing
    fence: a single deeper fence before the next block or the message's end closes the block; two belong to the code, as in a
    docstring.
    """
    deeper: list[int] = []
    for number in range(start, len(lines)):
        fence = _FENCE.fullmatch(lines[number])
        if fence is None or not fence["fence"].startswith(opening["fence"]):
            continue
        bare = not fence["info"].strip() and not fence["indent"].strip()
        if _fence_column(fence) >= _fence_column(opening) + _DEEPER:
            deeper.append(number if bare else 0)
        elif bare:
            return number
        elif len(deeper) == 1 and deeper[0]:
            break
    return deeper[0] if len(deeper) == 1 else 0


def _fence_column(fence: re.Match[str]) -> int:
    """Return the column in which a fence begins."""
    return len(fence["indent"].expandtabs(_DEEPER))


def _parse_language(info: str) -> str:
    """Return the language of an info string as ``python``, ``{.python .numbered}`` or ``py title="x"``."""
    words = info.strip().strip("{}").replace(",", " ").split()
    return words[0].lstrip(".").lower() if words else ""
