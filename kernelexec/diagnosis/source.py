"""A cell's own lines: IPython makes Python of a cell before it runs, and a traceback counts and shows what it made."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelexec.results import CellLine

_LINE_END = re.compile(r"\r\n?|\n")
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_MADE_OF_MAGIC = re.compile(r"get_ipython\(\)\.run_cell_magic\('(\w+)'")
#: What IPython makes of its syntax, and how a line begins that has it to its end: behind a backslash it goes on, as one line.
_MADE = "get_ipython()."
_SYNTAX = re.compile(r"[%!?]")
_TO_ITS_END = re.compile(r"\s*[%!?]|[^#'\"]*=\s*[%!]")
#: The files that magics say the code of their cells is from, and the function that %%timeit makes of it.
_FILES = {"time": r"<timed (?:exec|eval)>", "timeit": "<magic-timeit>", "prun": "<string>"}
_BODY = "inner"
_DEFINED = re.compile(r"\b(?:def|class)[ \t]+(\w+)")
_NO_SOURCE = "'Could not get source"


class Source:
    """The source of a cell, and where its lines are in what IPython makes of them.

    It leaves out blank lines at the beginning, also those behind a cell magic, whose code is counted for itself.
    """

    def __init__(self, text: str) -> None:
        self._lines = _LINE_END.split(text) if text else []
        self._magics: dict[str, int] = {}
        self._start = self._behind_blank(0)
        while self._start < len(self._lines) and (found := _CELL_MAGIC.match(self._lines[self._start])):
            self._magics[found[1]] = self._start + 1
            self._start = self._behind_blank(self._start + 1)
        self._numbers = self._counted()
        self._files = re.compile("|".join(_FILES[name] for name in self._magics if name in _FILES) or r"(?!)")
        self._defined = frozenset(_DEFINED.findall(text)) if self._magics else frozenset[str]()

    @property
    def has_magic(self) -> bool:
        """Whether it begins with a cell magic."""
        return bool(self._magics)

    def line_of(self, frame: CellLine) -> tuple[CellLine, bool]:
        """A line of the cell as its author counts and wrote it, and whether that is what the traceback shows."""
        text = None if (frame.text or "").startswith(_NO_SOURCE) else frame.text
        frame = replace(frame, text=text)
        magic = _MADE_OF_MAGIC.search(text or "")
        if magic and magic[1] in self._magics:
            return self._at(frame, self._magics[magic[1]]), True
        counted = self._numbers[frame.line - 1] if 0 < frame.line <= len(self._numbers) else 0
        plain = self._start + frame.line
        for number in (counted, plain):
            if 0 < number <= len(self._lines) and _made_of(text, self._lines[number - 1]):
                return self._at(frame, number), True
        if text is not None and _MADE not in text:
            return replace(frame, line=plain), False
        return self._at(frame, plain), False

    def function_in(self, file: str, function: str | None) -> str | None:
        """The function of code that a cell magic of this cell ran from a file that is none; empty where it is in no function.

        None for other frames: those of an earlier cell's functions too, as far as the names tell.
        """
        if self._files.fullmatch(file) is None:
            return None
        name = function or ""
        if file == _FILES["timeit"]:
            name = "" if name == _BODY else name.removeprefix(f"{_BODY}.<locals>.")
        outermost = name.partition(".")[0]
        return name if not name or name.startswith("<") or outermost in self._defined else None

    def only_line(self, beginning: str) -> CellLine | None:
        """The line that begins so, or assigns what does, where there is but one."""
        begins = re.compile(rf"(?:\w[\w, ]*=\s*)?{re.escape(beginning)}(?!\w)")
        found = [number for number, line in enumerate(self._lines, 1) if begins.match(line.strip())]
        return CellLine(0, found[0], self._lines[found[0] - 1].strip()) if len(found) == 1 else None

    def _at(self, frame: CellLine, number: int) -> CellLine:
        known = 0 < number <= len(self._lines)
        return replace(frame, line=number, text=self._lines[number - 1].strip() if known else frame.text)

    def _behind_blank(self, start: int) -> int:
        while start < len(self._lines) and not self._lines[start].strip():
            start += 1
        return start

    def _counted(self) -> list[int]:
        """The numbers of those lines that IPython makes lines of."""
        numbers, goes_on = list[int](), False
        for number, line in enumerate(self._lines[self._start :], self._start + 1):
            if not goes_on:
                numbers.append(number)
            goes_on = line.endswith("\\") and (goes_on or _TO_ITS_END.match(line) is not None)
        return numbers


def _made_of(text: str | None, line: str) -> bool:
    """Whether what a traceback shows may be made of a line."""
    return text is None or line.strip() == text or (_MADE in text and _SYNTAX.search(line) is not None)
