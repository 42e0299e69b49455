"""What a cell is: code for the kernel, or a command for a shell; and whether it can be run at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.errors import InvalidCode
from kernelexec.launcher import protocol

_SHELL_MAGIC = re.compile(r"^%%(?:bash|sh)(?:[ \t][^\n]*)?\r?\n(?P<script>.*)\Z", re.DOTALL)
_BASH_MAGIC, _NODE_MAGIC = "%%bash\n", "%%script node\n"
#: The largest JavaScript cell: it is an argument of node's.
NODE_BYTES = 100_000
_BANG = re.compile(r"^!(?!!)(?P<command>.*)\Z", re.DOTALL)
_NO_NODE = "node is not installed: JavaScript needs Node.js on the PATH of the session"
_NODE = f"command -v node >/dev/null || {{{{ echo '{_NO_NODE}' >&2; exit 127; }}}}\nnode --eval={{code}}"


@dataclass(frozen=True, slots=True)
class CodeCell:
    """Code in the language of the kernel that it is for."""

    source: str
    language: str = "python"
    asked: Cell | None = None
    """What was asked for, where something else is to run in its place."""

    @property
    def kernel(self) -> str:
        """Whose kernel runs it."""
        return self.language

    @property
    def request(self) -> str:
        """The code that runs this cell in the kernel."""
        return self.source


@dataclass(frozen=True, slots=True)
class ShellCell:
    """A shell command: ``source`` is what a notebook would hold, ``command`` what the shell runs.

    ``lasts`` says whether the command's ``cd`` and ``export`` last for the next one; ``work_dir`` and ``stdin`` go with
    that kind only.
    """

    source: str
    command: str
    lasts: bool = False
    work_dir: str | None = None
    stdin: str | None = None
    language: str = "python"
    asked: Cell | None = None

    @property
    def kernel(self) -> str:
        """Whose kernel runs it: commands run in the place of the Python kernel."""
        return "python"

    @property
    def request(self) -> str:
        """The code that runs this command in the kernel."""
        if not self.lasts:
            return self.source
        return protocol.run_command_source(self.command, self.work_dir, self.stdin)


Cell = CodeCell | ShellCell


def digest(cell: Cell) -> str:
    """The SHA-256 of the cell's source, in hexadecimal, as ``sha256sum`` would say it of the text."""
    return hashlib.sha256(cell.source.encode("utf-8", "replace")).hexdigest()


def fingerprint(cell: Cell) -> str:
    """What two requests for the same have in common, and no others."""
    if cell.asked is not None:
        return fingerprint(cell.asked)
    text = json.dumps([type(cell).__name__, *dataclasses.astuple(cell)[:-1]])
    return hashlib.sha256(text.encode()).hexdigest()


def parse(source: str, *, limit_bytes: int) -> Cell:
    """Tell a shell cell (only ``!command``, ``%%bash`` or ``%%sh``) from code.

    Raises:
        InvalidCode: see ``check``.
    """
    check(source, limit_bytes=limit_bytes)
    stripped = source.strip()
    if match := _SHELL_MAGIC.match(source.lstrip()):
        return ShellCell(source, match["script"])
    if (match := _BANG.match(stripped)) and not _ends_before(stripped):
        return ShellCell(source, match["command"])
    return CodeCell(source)


def command(text: str, *, work_dir: str | None, stdin: str | None, limit_bytes: int) -> ShellCell:
    """A command whose ``cd`` and ``export`` last for the next one.

    Raises:
        InvalidCode: see ``check``.
    """
    check(text, limit_bytes=limit_bytes, what="command")
    if stdin is not None:
        check(stdin, limit_bytes=limit_bytes, what="stdin")
    return ShellCell(_BASH_MAGIC + text, text, lasts=True, work_dir=work_dir, stdin=stdin, language="bash")


def node(code: str, *, stdin: str | None, limit_bytes: int) -> ShellCell:
    """JavaScript as a command: nothing of it lasts, but it runs where the session's shell is.

    Raises:
        InvalidCode: see ``check``; or more than a program's argument can hold.
    """
    check(code, limit_bytes=limit_bytes)
    if (size := len(code.encode())) > NODE_BYTES:
        message = (
            f"code is {size} bytes, the limit for node is {NODE_BYTES}: put it into a file of the workspace and require() it."
        )
        raise InvalidCode(message)
    if stdin is not None:
        check(stdin, limit_bytes=limit_bytes, what="stdin")
    return ShellCell(_NODE_MAGIC + code, _NODE.format(code=shlex.quote(code)), lasts=True, stdin=stdin, language="javascript")


def said(cell: Cell) -> str:
    """What who sent a cell had written, without the magic by which a notebook would hold it."""
    if not isinstance(cell, ShellCell) or not cell.lasts:
        return cell.source
    return cell.source.removeprefix(_NODE_MAGIC if cell.language == "javascript" else _BASH_MAGIC)


def rewritten(cell: Cell, text: str, *, limit_bytes: int) -> Cell:
    """Another text in the place of a cell's, run as that would have been.

    Raises:
        InvalidCode: see ``check``.
    """
    found: Cell
    match cell:
        case ShellCell(lasts=True, language="javascript"):
            found = node(text, stdin=cell.stdin, limit_bytes=limit_bytes)
        case ShellCell(lasts=True):
            found = command(text, work_dir=cell.work_dir, stdin=cell.stdin, limit_bytes=limit_bytes)
        case CodeCell(language=language) if language != "python":
            check(text, limit_bytes=limit_bytes)
            found = CodeCell(text, language)
        case _:
            found = parse(text, limit_bytes=limit_bytes)
    return dataclasses.replace(found, asked=cell.asked or cell)


def recorded(said: Mapping[str, Any]) -> Cell:
    """The cell that a journal's record of its beginning tells of.

    Raises:
        InvalidCode, LookupError: it tells of none.
    """
    source, limit = said["code"], sys.maxsize
    if said["kind"] != "command":
        check(source, limit_bytes=limit)
        return CodeCell(source, str(said["language"]))
    given = {name: said[name] if isinstance(said.get(name), str) else None for name in ("work_dir", "stdin")}
    if said["lasts"] is not True:
        return parse(source, limit_bytes=limit)
    if source.startswith(_NODE_MAGIC):
        return node(source.removeprefix(_NODE_MAGIC), stdin=given["stdin"], limit_bytes=limit)
    return command(source.removeprefix(_BASH_MAGIC), **given, limit_bytes=limit)


def check(source: object, *, limit_bytes: int, what: str = "code") -> None:
    """Refuse what no kernel could take.

    Raises:
        InvalidCode: not text, empty, with NUL characters or lone surrogates (one of them would wedge a kernel), or
            larger than the limit.
    """
    if not isinstance(source, str):
        message = f"{what} is {type(source).__name__}, not str."
        raise InvalidCode(message)
    if not source.strip() and what != "stdin":
        message = f"{what} is empty: there is nothing to run."
        raise InvalidCode(message)
    if "\x00" in source:
        message = f"{what} holds a NUL character at position {source.index(chr(0))}: remove it."
        raise InvalidCode(message)
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError as exc:
        message = f"{what} holds a lone surrogate at position {exc.start}: it is no valid Unicode text."
        raise InvalidCode(message) from exc
    if size > limit_bytes:
        message = f"{what} is {size} bytes, the limit is {limit_bytes}: put it into a file of the workspace and use that."
        raise InvalidCode(message)


def _ends_before(stripped: str) -> bool:
    """Whether the first line is a command of its own and code follows."""
    lines = stripped.split("\n")
    return any(not line.endswith("\\") for line in lines[:-1])
