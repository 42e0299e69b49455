"""Shell commands in the IPython syntax of a cell, found without IPython, whose import takes half a second.

Values interpolated into a magic's line (``{x}``) are unknown. A line of a string in the form of a magic is judged as a magic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CELL = re.compile(r"\s*%%(?P<name>\S+)[ \t]*(?P<rest>[^\n]*)\n(?P<body>.*)\Z", re.DOTALL)
#: Cell magics whose cells are code.
_CODE_CELLS = frozenset(["time", "timeit", "capture", "prun", "memit", "python", "python3", "pypy", "debug", "mprun", "lprun"])
#: Magics whose words are code behind options, which may have a number.
_TIMING = "time|timeit|prun|memit|mprun|lprun"
_OPTIONS = r"(?:[ \t]+-\w+(?:[ \t]+\d+\b)?)*[ \t]*"
_TIMED = re.compile(rf"^(?P<indent>[ \t]*)(?:[\w, .\[\]'\"]+=[ \t]*)?(?:%(?:{_TIMING})\b{_OPTIONS})+", re.MULTILINE)
_TIMED_CELL = re.compile(rf"(?:{_TIMING})\b{_OPTIONS}")
_SHELL_CELLS = frozenset(["bash", "sh", "!", "sx", "system"])
#: Magics that hand their name and line to a shell; some are IPython's aliases.
_HANDED = "pip|conda|mamba|micromamba|uv|ls|ll|lf|lk|ldir|lx|mkdir|rmdir|rm|mv|cp|cat|man|more|less"
_LINE = re.compile(
    r"^(?P<indent>[ \t]*)(?:[\w, .\[\]'\"]+=[ \t]*)?"
    r"(?:!!?|%(?:sx|system|!)[ \t]+|%sc[ \t]+(?:-\w+[ \t]+)*\w*[ \t]*="
    rf"|%(?=(?:{_HANDED})\b))(?P<command>(?:[^\n]*\\\n)*[^\n]*)$",
    re.MULTILINE,
)
#: A cell of one line that IPython reads as a magic without its sign.
_WITHOUT_SIGN = re.compile(rf"\s*(?P<magic>(?:sx|sc|system|{_TIMING}|{_HANDED})[ \t]+(?![=(.,])[^\n]*)\s*\Z")
_OTHER, _PASS = re.compile(r"^(?P<indent>[ \t]*)%[^\n]*$", re.MULTILINE), r"\g<indent>pass"
_SIGN = re.compile(r"[!%]|system|[pP]open|subprocess|getoutput|getstatusoutput|spawn|check_(?:call|output)|\bsp\.")
_PUT_IN = re.compile(r"(?<!\$)\{[^{}\s,]*\}")
_PYTHON = re.compile(r"\{sys\.executable\}|\$sys\.executable\b")
#: Stands for such text among literal text. No command can hold this character.
UNKNOWN = "\x00"


@dataclass(frozen=True, slots=True)
class CellParts:
    """The parts of a cell: commands for a shell, and the Python without them."""

    commands: tuple[str, ...]
    python: str


def may_run_commands(source: str) -> bool:
    """Return whether a cell has any sign of a command; most cells have none and need no parsing."""
    return _SIGN.search(source) is not None or _WITHOUT_SIGN.match(source) is not None


def split_cell(source: str) -> CellParts:
    """Return the commands and the Python of a cell."""
    text = source
    while (match := _CELL.match(text)) is not None:
        name, line, body = match["name"], match["rest"], match["body"]
        if name in _SHELL_CELLS:
            first = line if name in ("!", "sx", "system") else ""
            return CellParts((_replace_interpolations(f"{first}\n{body}" if first else body),), "")
        if name == "script":
            return CellParts((f"{line} <<'__END_OF_CELL__'\n{body}\n__END_OF_CELL__",), "")
        if name not in _CODE_CELLS:
            return CellParts((), "")
        timed = _TIMED_CELL.match(f"{name} {line}")
        text = body if timed is None else f"{timed.string[timed.end() :]}\n{body}".lstrip("\n")
    if without := _WITHOUT_SIGN.match(text):
        text = f"%{without['magic']}"
    text = _TIMED.sub(r"\g<indent>", text)
    commands = tuple(_replace_interpolations(match["command"]) for match in _LINE.finditer(text))
    return CellParts(commands, _OTHER.sub(_PASS, _LINE.sub(_PASS, text)))


def _replace_interpolations(command: str) -> str:
    """Return a command with an unknown variable in the place of each interpolation."""
    return _PUT_IN.sub("${__put_in__}", _PYTHON.sub("python", command))
