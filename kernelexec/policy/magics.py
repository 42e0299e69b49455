"""The shell commands that IPython's syntax holds in a cell of code, told without IPython, whose import takes half a second.

What a magic's line interpolates (``{x}``) only the kernel knows. A line in a string may look like a magic: it is judged as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CELL = re.compile(r"\s*%%(?P<name>\S+)[ \t]*(?P<rest>[^\n]*)\n(?P<body>.*)\Z", re.DOTALL)
#: Whose cells are Python.
_PYTHON_CELLS = frozenset(["time", "timeit", "capture", "prun", "memit", "python", "python3", "pypy", "debug"])
_TIMED = re.compile(
    r"^(?P<indent>[ \t]*)%(?:time|timeit|prun|memit)\b(?:[ \t]+-\w+(?:[ \t]+\d+)?)*[ \t]+(?P<code>[^\n]*)$", re.MULTILINE
)
_SHELL_CELLS = frozenset(["bash", "sh", "!", "sx", "system"])
_LINE = re.compile(
    r"^(?P<indent>[ \t]*)(?:[\w, .\[\]'\"]+=[ \t]*)?(?:!!?|%(?:sx|system|!)[ \t]+)(?P<command>(?:[^\n]*\\\n)*[^\n]*)$",
    re.MULTILINE,
)
_OTHER = re.compile(r"^(?P<indent>[ \t]*)%[^\n]*$", re.MULTILINE)
_SIGN = re.compile(r"[!%]|system|[pP]open|subprocess|getoutput|getstatusoutput|spawn|check_(?:call|output)|\bsp\.")
_PUT_IN = re.compile(r"(?<!\$)\{[^{}\s,]*\}")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cell of code holds: commands for a shell, and Python without them."""

    commands: tuple[str, ...]
    python: str


def may_run_commands(source: str) -> bool:
    """Whether a cell holds any sign of a command: most hold none, and need no reading."""
    return _SIGN.search(source) is not None


def parts(source: str) -> Parts:
    """The commands and the Python of a cell."""
    whole = _CELL.match(source)
    if whole is not None and whole["name"] in _SHELL_CELLS:
        first = whole["rest"] if whole["name"] in ("!", "sx", "system") else ""
        return Parts((interpolated(f"{first}\n{whole['body']}" if first else whole["body"]),), "")
    if whole is not None and whole["name"] == "script":
        return Parts((f"{whole['rest']} <<'__END_OF_CELL__'\n{whole['body']}\n__END_OF_CELL__",), "")
    if whole is not None and whole["name"] not in _PYTHON_CELLS:
        return Parts((), "")
    text = source if whole is None else whole["body"]
    found = [interpolated(match["command"]) for match in _LINE.finditer(text)]
    return Parts(tuple(found), _OTHER.sub(_nothing, _TIMED.sub(r"\g<indent>\g<code>", _LINE.sub(_nothing, text))))


def interpolated(command: str) -> str:
    """A command with what IPython puts in for braces as an unknown variable."""
    return _PUT_IN.sub("${__put_in__}", command)


def _nothing(match: re.Match[str]) -> str:
    return f"{match['indent']}pass"
