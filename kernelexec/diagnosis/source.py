"""The lines of a cell: IPython transforms a cell to Python before it runs, and tracebacks show the transformed lines."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelexec.results import CellLine

_LINE_END = re.compile(r"\r\n?|\n")
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_MADE_OF_MAGIC = re.compile(r"get_ipython\(\)\.run_cell_magic\('(\w+)'")
#: The transformed form of IPython's syntax, and the starts of lines that use it up to their end; a backslash continues one.
_MADE = "get_ipython()."
_SYNTAX = re.compile(r"[%!?]")
_TO_ITS_END = re.compile(r"\s*[%!?]|[^#'\"]*=\s*[%!]")
#: The file names that magics give to the code of their cells, and the name of the function that %%timeit creates.
_FILES = {"time": r"<timed (?:exec|eval)>", "timeit": "<magic-timeit>", "prun": "<string>"}
_BODY = "inner"
_DEFINED = re.compile(r"\b(?:def|class)[ \t]+(\w+)")
_NO_SOURCE = "'Could not get source"


class CellSource:
    """The source of a cell, with the mapping of transformed lines to its own.

    IPython drops blank lines at the start, also after a cell magic; it counts the lines of a magic's code separately.
    """

    def __init__(self, text: str) -> None:
        self._lines = _LINE_END.split(text) if text else []
        # Each line is stripped and searched once: thousands of frames may name one line of megabytes.
        self._stripped = [line.strip() for line in self._lines]
        self._has_syntax: dict[int, bool] = {}
        self._magics: dict[str, int] = {}
        self._start = self._skip_blank_lines(0)
        while self._start < len(self._lines) and (match := _CELL_MAGIC.match(self._lines[self._start])):
            self._magics[match[1]] = self._start + 1
            self._start = self._skip_blank_lines(self._start + 1)
        self._numbers = self._line_numbers()
        self._files = re.compile("|".join(_FILES[name] for name in self._magics if name in _FILES) or r"(?!)")
        self._defined = frozenset(_DEFINED.findall(text)) if self._magics else frozenset[str]()

    @property
    def has_magic(self) -> bool:
        """Whether it begins with a cell magic."""
        return bool(self._magics)

    def line_of(self, frame: CellLine) -> tuple[CellLine, bool]:
        """Return a line of the cell with its own number and text, and whether it matches the traceback."""
        text = None if (frame.text or "").startswith(_NO_SOURCE) else frame.text
        frame = replace(frame, text=text)
        magic = _MADE_OF_MAGIC.search(text or "")
        if magic and magic[1] in self._magics:
            return self._with_number(frame, self._magics[magic[1]]), True
        counted = self._numbers[frame.line - 1] if 0 < frame.line <= len(self._numbers) else 0
        plain = self._start + frame.line
        for number in (counted, plain):
            if 0 < number <= len(self._lines) and self._may_come_from(text, number):
                return self._with_number(frame, number), True
        if text is not None and _MADE not in text:
            return replace(frame, line=plain), False
        return self._with_number(frame, plain), False

    def function_in(self, file: str, function: str | None) -> str | None:
        """Return the function of a frame in code that a cell magic ran; an empty string outside of functions.

        Return None for other frames, including those of functions of earlier cells, as far as the names show.
        """
        if self._files.fullmatch(file) is None:
            return None
        name = function or ""
        if file == _FILES["timeit"]:
            name = "" if name == _BODY else name.removeprefix(f"{_BODY}.<locals>.")
        outermost = name.partition(".")[0]
        return name if not name or name.startswith("<") or outermost in self._defined else None

    def only_line(self, beginning: str) -> CellLine | None:
        """Return the only line that starts with a text, or assigns such an expression; None if there are several."""
        begins = re.compile(rf"(?:\w[\w, ]*=\s*)?{re.escape(beginning)}(?!\w)")
        numbers = [number for number, line in enumerate(self._stripped, 1) if begins.match(line)]
        return CellLine(0, numbers[0], self._stripped[numbers[0] - 1]) if len(numbers) == 1 else None

    def _with_number(self, frame: CellLine, number: int) -> CellLine:
        is_in_cell = 0 < number <= len(self._lines)
        return replace(frame, line=number, text=self._stripped[number - 1] if is_in_cell else frame.text)

    def _may_come_from(self, text: str | None, number: int) -> bool:
        """Return whether the text in a traceback may come from a line."""
        line = self._stripped[number - 1]
        if text is None or line == text:
            return True
        if _MADE not in text:
            return False
        if number not in self._has_syntax:
            self._has_syntax[number] = _SYNTAX.search(line) is not None
        return self._has_syntax[number]

    def _skip_blank_lines(self, start: int) -> int:
        while start < len(self._lines) and not self._stripped[start]:
            start += 1
        return start

    def _line_numbers(self) -> list[int]:
        """Return the numbers of the lines that are lines of the transformed cell."""
        numbers, goes_on = list[int](), False
        for number, line in enumerate(self._lines[self._start :], self._start + 1):
            if not goes_on:
                numbers.append(number)
            goes_on = line.endswith("\\") and (goes_on or _TO_ITS_END.match(line) is not None)
        return numbers
