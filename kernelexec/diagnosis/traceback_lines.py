"""Where a cell failed, read from its traceback: the lines of the user's own cells, and no others."""

from __future__ import annotations

import re
from bisect import bisect

from kernelexec.diagnosis.source import Source
from kernelexec.launcher import protocol
from kernelexec.results import CellLine, Error, strip_ansi

_FRAME = re.compile(
    r"^(?:Cell In\[(?P<cell>\d+)\], line |File (?P<file>[^\n]+?):)(?P<line>\d+)(?:, in (?P<function>[^\n(]+)\()?", re.MULTILINE
)
_ARROW = re.compile(r"^-+> (\d+) (.*)$", re.MULTILINE)
_SYNTAX_LINE = re.compile(r"^[ \t]*(?:(?:Cell In\[\d+\]|File .*), line |File <(?:tokenize|string)>:)(\d+)\n(.*)$", re.MULTILINE)
_UNNAMED_SYNTAX = re.compile(r"^[ \t]*File <[^>\n]*>:(\d+)\n(.*)$", re.MULTILINE)
_UNNAMED_FRAME = re.compile(r"^[ \t]*File (<[^>\n]*>):(\d+)(?: in (.*))?$", re.MULTILINE)
_OTHER_FILE = re.compile(r"^[ \t]*File ", re.MULTILINE)
#: How a traceback begins where IPython, which cuts a cell into tokens, refuses its indentation; the second one on Python 3.12.
_TOKENS = re.compile(r"\s*File <(?:tokenize|string)>:")
#: Python's own traceback, as the launcher gives it for exception groups: a tree with a bar for each group around a line.
_BRANCH = re.compile(r"^ *\+(?:-\+)?-+ \d+ -+$", re.MULTILINE)
_TREE_FRAME = re.compile(
    r'^(?P<bars>[ |]*)  File "(?:Cell In\[(?P<cell>\d+)\]|(?P<file><[^>"\n]*>))", line (?P<line>\d+)(?:, in (?P<function>.*))?'
    r".*(?:\n(?P=bars)    (?P<text>.*))?$",
    re.MULTILINE,
)
TREE_ERROR = re.compile(r"^[ |]*\| (\w+): (.*)$", re.MULTILINE)
NEXT_TREE = re.compile(r"^(?:The above exception was|During handling of) .*:$", re.MULTILINE)
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_NO_MAGIC = re.compile(r"magic function `(%%?\w+)` not found|magic `(%%\w+)` not found")


def tree_of(error: Error) -> str:
    """A group's traceback; empty for any other exception."""
    tree = NEXT_TREE.split("\n".join(error.traceback))[-1]
    return tree if _BRANCH.search(tree) else ""


def is_elsewhere(error: Error, source: Source) -> bool:
    """Whether what does not compile is not the cell itself."""
    entries = [strip_ansi(entry) for entry in error.traceback]
    others = any(map(_OTHER_FILE.search, entries)) and not _TOKENS.match(entries[0])
    return others and _syntax_of_body(entries, source) is None


def where(error: Error | None, source: Source) -> CellLine | None:
    """The last line that ran of the cell itself, which is the newest of all cells in the traceback."""
    if error is None:
        return None
    entries = [strip_ansi(entry) for entry in error.traceback]
    if error.ename in SYNTAX:
        return _syntax_of_body(entries, source) or _syntax(entries, source)
    frames = [(frame, shown) for frame, own, shown in _frames(_trace(error), source) if own]
    shown = [frame for frame, is_shown in frames if is_shown]
    if frames:
        return shown[-1] if shown else frames[-1][0]
    return _where_in_tree(_trace(error), source) or _named(error, source)


def calls(error: Error | None, source: Source) -> tuple[CellLine, ...]:
    """The lines of cells by which it came, outermost first; none of an exception group, which came by several."""
    if error is None or error.ename in SYNTAX:
        return ()
    return tuple(frame for frame, _, _ in _frames(_trace(error), source))


def _trace(error: Error) -> str:
    return "\n".join(entry for entry in map(strip_ansi, error.traceback) if not entry.startswith(error.ename))


def _frames(trace: str, source: Source) -> list[tuple[CellLine, bool, bool]]:
    """The lines of cells in a traceback; of each whether it is of the newest cell, and surely so."""
    found = list(_FRAME.finditer(trace))
    newest = max((int(frame["cell"]) for frame in found if frame["cell"]), default=0)
    ends = [frame.start() for frame in found[1:]] + [len(trace)]
    frames, begun = list[tuple[CellLine, bool, bool]](), False
    for match, end in zip(found, ends, strict=False):
        number = int(match["line"])
        if match["cell"]:
            begun = begun and int(match["cell"]) != newest
            arrow = next((arrow for arrow in _ARROW.finditer(trace, match.end(), end) if int(arrow[1]) == number), None)
            frame = CellLine(int(match["cell"]), number, arrow[2].strip() if arrow else None, match["function"])
        elif (name := source.function_in(match["file"], match["function"])) is not None and (name or not begun):
            begun = True  # what is in no function then is another magic's, in a line of this one
            frame = CellLine(newest, number, None, name or None)
        else:
            continue
        if not protocol.is_run_command(frame.text or ""):
            own = frame.cell == newest
            line, shown = source.line_of(frame) if own else (frame, False)
            frames.append((line, own, shown))
    return frames


def _syntax(entries: list[str], source: Source) -> CellLine | None:
    for frame in reversed(list(_UNNAMED_FRAME.finditer("\n".join(entries[:-1])))):
        if source.function_in(frame[1], frame[3]) is not None:
            return source.line_of(CellLine(0, int(frame[2])))[0]
    found = _SYNTAX_LINE.search("\n".join(entries))
    return source.line_of(CellLine(0, int(found[1]), found[2].strip()))[0] if found else None


def _syntax_of_body(entries: list[str], source: Source) -> CellLine | None:
    """A line that a cell magic could not compile."""
    found = _UNNAMED_SYNTAX.search(entries[-1]) if entries and source.has_magic else None
    line, shown = source.line_of(CellLine(0, int(found[1]), found[2].strip())) if found else (None, False)
    return line if shown else None


def _named(error: Error, source: Source) -> CellLine | None:
    """The line with a magic of which the traceback, if there is any, shows only what it ran, or that there is none."""
    if error.ename == "UsageError":
        found = _NO_MAGIC.search(error.evalue)
        return source.only_line(found[1] or found[2]) if found else None
    return source.only_line("%run") if _FRAME.search(_trace(error)) else None


def _where_in_tree(trace: str, source: Source) -> CellLine | None:
    """The same in Python's own traceback; of a group, the place of its first exception that has one in the cell."""
    tree = NEXT_TREE.split(trace)[-1]
    frames = [
        frame
        for frame in _TREE_FRAME.finditer(tree)
        if frame["cell"] or source.function_in(frame["file"], frame["function"]) is not None
    ]
    newest = max((int(frame["cell"] or 0) for frame in frames), default=0)
    branches = [found.start() for found in _BRANCH.finditer(tree)]
    last = {bisect(branches, frame.start()): frame for frame in frames if int(frame["cell"] or newest) == newest}
    if not last:
        return None
    frame = last[min((branch for branch in last if branch), default=0)]
    return source.line_of(CellLine(newest, int(frame["line"]), frame["text"].strip() if frame["text"] else None))[0]
