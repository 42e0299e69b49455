"""The lines of the user's own cells in a traceback.

IPython transforms a cell to Python before the run, and tracebacks show the transformed lines. A ``CellSource`` maps these to
the cell's own lines.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import replace

from kernelexec.launcher import protocol
from kernelexec.results import CellLine, Error, strip_ansi

#: Numbers of at most nine digits: a cell may print a traceback with any, and Python reads no endless ones.
_FRAME = re.compile(
    r"^(?:Cell In\[(?P<cell>\d{1,9})\], line |File (?P<file>[^\n]+?):)(?P<line>\d{1,9})(?:, in (?P<function>[^\n(]+)\()?",
    re.MULTILINE,
)
_ARROW = re.compile(r"^-+> (\d{1,9}) (.*)$", re.MULTILINE)
_SYNTAX_FRAME = re.compile(
    r"^[ \t]*(?:(?:Cell In\[\d{1,9}\]|File .*), line |File <(?:tokenize|string)>:)(\d{1,9})\n(.*)$", re.MULTILINE
)
_UNNAMED_SYNTAX = re.compile(r"^[ \t]*File <[^>\n]*>:(\d{1,9})\n(.*)$", re.MULTILINE)
_UNNAMED_FRAME = re.compile(r"^[ \t]*File (<[^>\n]*>):(\d{1,9})(?: in (.*))?$", re.MULTILINE)
_OTHER_FILE = re.compile(r"^[ \t]*File ", re.MULTILINE)
#: The start of a traceback if IPython's tokenizer refuses the indentation; the second form is Python 3.12's.
_TOKENS = re.compile(r"\s*File <(?:tokenize|string)>:")
#: Python's own traceback, which the launcher sends for exception groups: a tree with a bar for each enclosing group.
_BRANCH = re.compile(r"^ *\+(?:-\+)?-+ \d{1,9} -+$", re.MULTILINE)
_TREE_FRAME = re.compile(
    r'^(?P<bars>[ |]*)  File "(?:Cell In\[(?P<cell>\d{1,9})\]|(?P<file><[^>"\n]*>))", line (?P<line>\d{1,9})'
    r"(?:, in (?P<function>.*))?"
    r".*(?:\n(?P=bars)    (?P<text>.*))?$",
    re.MULTILINE,
)
TREE_ERROR = re.compile(r"^[ |]*\| (\w+): (.*)$", re.MULTILINE)
NEXT_TREE = re.compile(r"^(?:The above exception was|During handling of) .*:$", re.MULTILINE)
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_NO_MAGIC = re.compile(r"magic function `(%%?\w+)` not found|magic `(%%\w+)` not found")
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


def group_traceback(error: Error) -> str:
    """Return the traceback of an exception group; an empty string for any other exception."""
    tree = NEXT_TREE.split("\n".join(error.traceback))[-1]
    return tree if _BRANCH.search(tree) else ""


def is_outside_cell(error: Error, source: CellSource) -> bool:
    """Return whether a syntax error is in code outside of the cell."""
    entries = [strip_ansi(entry) for entry in error.traceback]
    others = any(map(_OTHER_FILE.search, entries)) and not _TOKENS.match(entries[0])
    return others and _magic_syntax_line(entries, source) is None


def last_line(error: Error | None, source: CellSource) -> CellLine | None:
    """Return the last executed line of the failed cell, the newest cell in the traceback."""
    if error is None:
        return None
    entries = [strip_ansi(entry) for entry in error.traceback]
    if error.ename in SYNTAX:
        return _magic_syntax_line(entries, source) or _syntax_line(entries, source)
    # Lines with a text as in the source first: a number alone may count the lines of a magic's code.
    frames = [(frame, shown) for frame, own, shown in _frames(_trace(error), source) if own]
    shown = [frame for frame, is_shown in frames if is_shown]
    if frames:
        return shown[-1] if shown else frames[-1][0]
    return _last_line_of_group(_trace(error), source) or _magic_line(error, source)


def call_lines(error: Error | None, source: CellSource) -> tuple[CellLine, ...]:
    """Return the lines of cells in the call stack, outermost first; none for an exception group."""
    if error is None or error.ename in SYNTAX:
        return ()
    return tuple(frame for frame, _, _ in _frames(_trace(error), source))


def _trace(error: Error) -> str:
    return "\n".join(entry for entry in map(strip_ansi, error.traceback) if not entry.startswith(error.ename))


def _frames(trace: str, source: CellSource) -> list[tuple[CellLine, bool, bool]]:
    """Return the lines of cells in a traceback, each with whether its cell is the newest and whether its text matches."""
    # A cell can forge a traceback: `line_of` checks each number, and a text is searched up to the next frame only.
    matches = list(_FRAME.finditer(trace))
    newest = max((int(frame["cell"]) for frame in matches if frame["cell"]), default=0)
    ends = [frame.start() for frame in matches[1:]] + [len(trace)]
    frames, in_function = list[tuple[CellLine, bool, bool]](), False
    for match, end in zip(matches, ends, strict=False):
        number = int(match["line"])
        if match["cell"]:
            in_function = in_function and int(match["cell"]) != newest
            arrow = next((arrow for arrow in _ARROW.finditer(trace, match.end(), end) if int(arrow[1]) == number), None)
            frame = CellLine(int(match["cell"]), number, arrow[2].strip() if arrow else None, match["function"])
        elif (name := source.function_in(match["file"], match["function"])) is not None and (name or not in_function):
            in_function = True  # a later frame outside of functions belongs to a nested magic of this cell
            frame = CellLine(newest, number, None, name or None)
        else:
            continue
        if not protocol.is_run_command(frame.text or ""):
            is_newest = frame.cell == newest
            line, is_shown = source.line_of(frame) if is_newest else (frame, False)
            frames.append((line, is_newest, is_shown))
    return frames


def _syntax_line(entries: list[str], source: CellSource) -> CellLine | None:
    for frame in reversed(list(_UNNAMED_FRAME.finditer("\n".join(entries[:-1])))):
        if source.function_in(frame[1], frame[3]) is not None:
            return source.line_of(CellLine(0, int(frame[2])))[0]
    match = _SYNTAX_FRAME.search("\n".join(entries))
    return source.line_of(CellLine(0, int(match[1]), match[2].strip()))[0] if match else None


def _magic_syntax_line(entries: list[str], source: CellSource) -> CellLine | None:
    """Return the line with the syntax error in the code of a cell magic."""
    match = _UNNAMED_SYNTAX.search(entries[-1]) if entries and source.has_magic else None
    line, shown = source.line_of(CellLine(0, int(match[1]), match[2].strip())) if match else (None, False)
    return line if shown else None


def _magic_line(error: Error, source: CellSource) -> CellLine | None:
    """Return the line of a magic missing in the traceback: an unknown magic, or ``%run``."""
    if error.ename == "UsageError":
        match = _NO_MAGIC.search(error.evalue)
        return source.only_line(match[1] or match[2]) if match else None
    return source.only_line("%run") if _FRAME.search(_trace(error)) else None


def _last_line_of_group(trace: str, source: CellSource) -> CellLine | None:
    """Return the last line in Python's own traceback; for a group, of the first exception with a line in the cell."""
    tree = NEXT_TREE.split(trace)[-1]
    frames = [
        frame
        for frame in _TREE_FRAME.finditer(tree)
        if frame["cell"] or source.function_in(frame["file"], frame["function"]) is not None
    ]
    newest = max((int(frame["cell"] or 0) for frame in frames), default=0)
    branches = [branch.start() for branch in _BRANCH.finditer(tree)]
    last = {bisect(branches, frame.start()): frame for frame in frames if int(frame["cell"] or newest) == newest}
    if not last:
        return None
    frame = last[min((branch for branch in last if branch), default=0)]
    return source.line_of(CellLine(newest, int(frame["line"]), frame["text"].strip() if frame["text"] else None))[0]


class CellSource:
    """The source of a cell, with the mapping of transformed lines to source lines.

    IPython drops blank lines at the start, also after a cell magic, and counts the lines of a magic's code separately.
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
        """Whether the cell begins with a cell magic."""
        return bool(self._magics)

    def line_of(self, frame: CellLine) -> tuple[CellLine, bool]:
        """Return a line of the cell with the source's number and text, and whether the text matches the traceback."""
        # Two counts: of transformed lines, where a continued line of IPython's syntax is a single one, and of source lines.
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
        """Return the function of a frame in code run by a cell magic; an empty string outside of functions.

        Return None for other frames, including frames of functions of earlier cells, as far as the names show.
        """
        if self._files.fullmatch(file) is None:
            return None
        name = function or ""
        if file == _FILES["timeit"]:
            name = "" if name == _BODY else name.removeprefix(f"{_BODY}.<locals>.")
        outermost = name.partition(".")[0]
        return name if not name or name.startswith("<") or outermost in self._defined else None

    def only_line(self, beginning: str) -> CellLine | None:
        """Return the only line starting with a text, or assigning such an expression; None if there are several, or none."""
        begins = re.compile(rf"(?:\w[\w, ]*=\s*)?{re.escape(beginning)}(?!\w)")
        numbers = [number for number, line in enumerate(self._stripped, 1) if begins.match(line)]
        return CellLine(0, numbers[0], self._stripped[numbers[0] - 1]) if len(numbers) == 1 else None

    def _with_number(self, frame: CellLine, number: int) -> CellLine:
        is_in_cell = 0 < number <= len(self._lines)
        return replace(frame, line=number, text=self._stripped[number - 1] if is_in_cell else frame.text)

    def _may_come_from(self, text: str | None, number: int) -> bool:
        """Return whether a line may be the source of a text in a traceback."""
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
        """Return the numbers of the source lines at the beginning of each transformed line."""
        numbers, goes_on = list[int](), False
        for number, line in enumerate(self._lines[self._start :], self._start + 1):
            if not goes_on:
                numbers.append(number)
            goes_on = line.endswith("\\") and (goes_on or _TO_ITS_END.match(line) is not None)
        return numbers
