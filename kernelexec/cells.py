"""Cells: code for a kernel or a command for a shell, and the checks of their text."""

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
#: The largest JavaScript cell in bytes: its code is one argument of node.
NODE_BYTES = 100_000
_BANG = re.compile(r"^!(?!!)(?P<command>.*)\Z", re.DOTALL)
_NO_NODE = "node is not installed: JavaScript needs Node.js on the PATH of the session"
_NODE = f"command -v node >/dev/null || {{{{ echo '{_NO_NODE}' >&2; exit 127; }}}}\nnode --eval={{code}}"


@dataclass(frozen=True, slots=True)
class CodeCell:
    """Code in the language of its kernel."""

    source: str
    language: str = "python"
    original: Cell | None = None
    """The requested cell, if a rewrite replaced it."""

    @property
    def kernel(self) -> str:
        """The language of the kernel."""
        return self.language

    @property
    def request(self) -> str:
        """The code of this cell for the kernel."""
        return self.source


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """Options of a command: variables, account, byte streams. The bytes themselves are not part of the cell."""

    env: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    user: str | None = None
    owner_runs: bool = False
    """Whether the owner runs the command, because kernels cannot run processes as another user."""
    stdin_sha256: str | None = None
    """The digest of the bytes for standard input."""
    returns_bytes: bool = False
    """Whether a function of the caller gets the standard output."""

    @property
    def process(self) -> protocol.CommandProcess:
        """The options for the launcher."""
        return {
            "env": dict(self.env),
            "user": self.user,
            "owner_runs": self.owner_runs,
            "reads_owner": self.stdin_sha256 is not None,
            "writes_owner": self.returns_bytes,
        }

    @property
    def omissions(self) -> str:
        """The parts of the command missing in records, in words; empty if records are complete."""
        has_parts = ("environment variables", bool(self.env)), ("binary standard input", self.stdin_sha256 is not None)
        return " and ".join(label for label, is_used in has_parts if is_used)

    def to_record(self) -> dict[str, Any]:
        """Return the options as JSON types: of variables the names only, because values may be secrets."""
        fields = {name: getattr(self, name) for name in ("user", "owner_runs", "stdin_sha256", "returns_bytes")}
        return {"env": [name for name, _ in self.env], **{name: value for name, value in fields.items() if value}}

    @classmethod
    def from_record(cls, fields: object) -> CommandOptions | None:
        """Read the return value of ``to_record``, without the values of variables; None for any other value."""
        if not isinstance(fields, dict) or not isinstance(names := fields.get("env"), list):
            return None
        user, digest = (value if isinstance(value := fields.get(key), str) else None for key in ("user", "stdin_sha256"))
        owner_runs, returns_bytes = (fields.get(key) is True for key in ("owner_runs", "returns_bytes"))
        return cls(tuple((str(name), "") for name in names), user, owner_runs, digest, returns_bytes)


@dataclass(frozen=True, slots=True)
class ShellCell:
    """A shell command: ``source`` is its text in a notebook, ``command`` the text for the shell.

    A ``persistent`` command keeps ``cd`` and ``export`` for the next command; only such a command can have ``work_dir``,
    ``stdin`` and ``options``.
    """

    source: str
    command: str
    persistent: bool = False
    work_dir: str | None = None
    stdin: str | None = None
    language: str = "python"
    options: CommandOptions | None = None
    original: Cell | None = None

    @property
    def kernel(self) -> str:
        """The language of the kernel: the Python kernel runs commands."""
        return "python"

    @property
    def request(self) -> str:
        """The code of this command for the kernel."""
        if not self.persistent:
            return self.source
        process = None if self.options is None else self.options.process
        return protocol.run_command_source(self.command, self.work_dir, self.stdin, process)


Cell = CodeCell | ShellCell


def source_digest(cell: Cell) -> str:
    """Return the SHA-256 of the cell's source in hexadecimal, as ``sha256sum`` prints it."""
    return hashlib.sha256(cell.source.encode("utf-8", "replace")).hexdigest()


def fingerprint(cell: Cell) -> str:
    """Return a digest that is equal only for requests of the same cell; values of a command's variables do not count."""
    # By the requested cell: a rule may rewrite the same request in another way the next time.
    if cell.original is not None:
        return fingerprint(cell.original)
    values = list(dataclasses.astuple(cell)[:-1])  # without `original`; of a command, `options` is then the last
    if isinstance(cell, ShellCell):
        values[-1:] = [] if cell.options is None else [cell.options.to_record()]
    text = json.dumps([type(cell).__name__, *values])
    return hashlib.sha256(text.encode()).hexdigest()


def parse(source: str, *, limit_bytes: int) -> Cell:
    """Parse a cell: a shell cell is a single ``!command``, or begins with ``%%bash`` or ``%%sh``; any other cell is code.

    Raises:
        InvalidCode: see ``check``.
    """
    check(source, limit_bytes=limit_bytes)
    # Blank lines before a magic are dropped, as IPython does; `!!` is IPython's own, and stays code.
    stripped = source.strip()
    if match := _SHELL_MAGIC.match(source.lstrip()):
        return ShellCell(source, match["script"])
    if (match := _BANG.match(stripped)) and not _has_code_after_command(stripped):
        return ShellCell(source, match["command"])
    return CodeCell(source)


def make_command_cell(
    text: str, *, work_dir: str | None, stdin: str | None, limit_bytes: int, options: CommandOptions | None = None
) -> ShellCell:
    """Return the cell of a command whose ``cd`` and ``export`` last for the next command.

    Raises:
        InvalidCode: see ``check``.
    """
    check(text, limit_bytes=limit_bytes, label="command")
    if stdin is not None:
        check(stdin, limit_bytes=limit_bytes, label="stdin")
    source = _BASH_MAGIC + text
    return ShellCell(source, text, persistent=True, work_dir=work_dir, stdin=stdin, language="bash", options=options)


def make_node_cell(code: str, *, stdin: str | None, limit_bytes: int) -> ShellCell:
    """Return the cell of JavaScript code: a command without lasting state, in the directory of the session's shell.

    Raises:
        InvalidCode: see ``check``; or the code is too large for an argument of a program.
    """
    check(code, limit_bytes=limit_bytes)
    # Linux takes arguments of at most 128 KiB (MAX_ARG_STRLEN), whatever `ulimit -s` allows for all of them together.
    if (size := len(code.encode())) > NODE_BYTES:
        message = (
            f"code is {size} bytes, the limit for node is {NODE_BYTES}: put it into a file of the workspace and require() it."
        )
        raise InvalidCode(message)
    if stdin is not None:
        check(stdin, limit_bytes=limit_bytes, label="stdin")
    return ShellCell(
        _NODE_MAGIC + code, _NODE.format(code=shlex.quote(code)), persistent=True, stdin=stdin, language="javascript"
    )


def original_source(cell: Cell) -> str:
    """Return a cell's text as sent, without the magic line of notebooks."""
    if not isinstance(cell, ShellCell) or not cell.persistent:
        return cell.source
    return cell.source.removeprefix(_NODE_MAGIC if cell.language == "javascript" else _BASH_MAGIC)


def with_source(cell: Cell, text: str, *, limit_bytes: int) -> Cell:
    """Return a cell of the same kind with another text.

    Raises:
        InvalidCode: see ``check``.
    """
    replacement: Cell
    match cell:
        case ShellCell(persistent=True, language="javascript"):
            replacement = make_node_cell(text, stdin=cell.stdin, limit_bytes=limit_bytes)
        case ShellCell(persistent=True):
            plain = make_command_cell(text, work_dir=cell.work_dir, stdin=cell.stdin, limit_bytes=limit_bytes)
            replacement = dataclasses.replace(plain, options=cell.options)
        case CodeCell(language=language) if language != "python":
            check(text, limit_bytes=limit_bytes)
            replacement = CodeCell(text, language)
        case _:
            replacement = parse(text, limit_bytes=limit_bytes)
    # Of several rewrites in a row, the first request is the original.
    return dataclasses.replace(replacement, original=cell.original or cell)


def from_record(fields: Mapping[str, Any]) -> Cell:
    """Return the cell of a journal's record of its start.

    Raises:
        InvalidCode, LookupError: the record holds no valid cell.
    """
    source, limit_bytes = fields["code"], sys.maxsize
    if fields["kind"] != "command":
        check(source, limit_bytes=limit_bytes)
        return CodeCell(source, str(fields["language"]))
    work_dir, stdin = (fields[name] if isinstance(fields.get(name), str) else None for name in ("work_dir", "stdin"))
    if fields["lasts"] is not True:
        return parse(source, limit_bytes=limit_bytes)
    if source.startswith(_NODE_MAGIC):
        return make_node_cell(source.removeprefix(_NODE_MAGIC), stdin=stdin, limit_bytes=limit_bytes)
    options, text = CommandOptions.from_record(fields.get("options")), source.removeprefix(_BASH_MAGIC)
    return make_command_cell(text, work_dir=work_dir, stdin=stdin, limit_bytes=limit_bytes, options=options)


def check(source: object, *, limit_bytes: int, label: str = "code") -> None:
    """Refuse text that no kernel can run.

    Raises:
        InvalidCode: the text is not ``str``, is empty, has NUL characters or lone surrogates (a lone surrogate would block a
            kernel), or is larger than the limit.
    """
    if not isinstance(source, str):
        message = f"{label} is {type(source).__name__}, not str."
        raise InvalidCode(message)
    if not source.strip() and label != "stdin":
        message = f"{label} is empty: there is nothing to run, so a loop goes on without it."
        raise InvalidCode(message)
    if "\x00" in source:
        message = f"{label} holds a NUL character at position {source.index(chr(0))}: remove it."
        raise InvalidCode(message)
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError as exc:
        message = f"{label} holds a lone surrogate at position {exc.start}: it must be valid Unicode text."
        raise InvalidCode(message) from exc
    if size > limit_bytes:
        message = f"{label} is {size} bytes, the limit is {limit_bytes}: put it into a file of the workspace and use that."
        raise InvalidCode(message)


def _has_code_after_command(stripped: str) -> bool:
    """Return whether code follows the command, which ends at the first line without a backslash at the end."""
    lines = stripped.split("\n")
    return any(not line.endswith("\\") for line in lines[:-1])
