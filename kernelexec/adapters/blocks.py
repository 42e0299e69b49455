"""Code blocks of agents in a session: run or saved, in order, up to the first failure, with one text for a model.

The steps are a generator of calls to a session, so that they are the same for a blocking session and an asynchronous one:
``drive`` has a ``Session`` take them, ``drive_async`` an ``AsyncSession``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kernelexec.adapters.functions import Functions
from kernelexec.adapters.markdown import LINE_END, Block
from kernelexec.blocking import Session
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, Refused
from kernelexec.results import ExecutionResult, remarks
from kernelexec.session import AsyncSession

T = TypeVar("T")
#: Calls to a session, each answered by its result.
Steps = Generator[Any, Any, T]

#: The suffix of a file of each language; what has another name elsewhere.
SUFFIXES = {"python": "py", "bash": "sh", "powershell": "ps1", "javascript": "js", "html": "html", "css": "css"}
ALIASES = {"py": "python", "python3": "python", "ipython": "python", "js": "javascript", "node": "javascript"} | dict.fromkeys(
    ("sh", "shell", "console", "zsh"), "bash"
)
ALIASES |= dict.fromkeys(("pwsh", "ps1", "ps"), "powershell")
#: Whether blocks of a language run, or are saved only; every other one runs, where the session has a kernel for it.
EXECUTION_POLICIES: Mapping[str, bool] = {"html": False, "css": False}

_FILENAME = re.compile(r"\s*(?:#|//|/\*|<!--)[ \t]*filename:[ \t]*(?P<name>.+?)[ \t]*(?:\*/|-->)?[ \t]*$", re.IGNORECASE)
_PIP = r"^(?P<call>[ \t]*(?:[!%][ \t]*)?(?:python3? -m )?pip install)(?P<rest>(?![^\n]*-q)(?![\w-])[^\n]*)$"
#: An installation, or else what none can stand in: by language other magics, text, comments, and documents for commands.
_INSTALLATIONS = {
    "python": (
        r"^[ \t]*[!%][^\n]*",
        r"(?P<quotes>\"\"\"|''')(?:\\[\s\S]|[^\\])*?(?:(?P=quotes)|\Z)",
        r"\"(?:\\[\s\S]|[^\"\\\n])*\"?",
        r"'(?:\\[\s\S]|[^'\\\n])*'?",
        r"#[^\n]*",
    ),
    "bash": (
        r"\\[\s\S]",
        r"'[^']*'",
        r"\"(?:\\[\s\S]|[^\"\\])*\"",
        r"(?:^|(?<=\s))#[^\n]*",
        r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)[^\n]*\n(?:[^\n]*\n)*?[ \t]*(?P=end)[ \t]*$",
    ),
}
_SILENCED = {name: re.compile("|".join((_PIP, *kept)), re.MULTILINE) for name, kept in _INSTALLATIONS.items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of blocks: the exit code of the last that ran, all text, and files with their paths on this machine."""

    exit_code: int
    output: str
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class Blocks:
    """Blocks for one session. ``functions`` are written into its workspace, with their packages, ahead of the first block."""

    workspace: Path
    functions: Functions
    policies: Mapping[str, bool] = field(default_factory=dict)
    _loaded: bool = False
    _saved: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Files that were saved here, and no cell's, as long as they are as they were then."""

    def __post_init__(self) -> None:
        self.policies = {**EXECUTION_POLICIES, **{ALIASES.get(name, name): runs for name, runs in self.policies.items()}}

    def run(self, session: Session | AsyncSession, code_blocks: Sequence[Block]) -> Steps[Outcome]:
        """Run or save each block.

        Raises:
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, Closed, QueueFull: see ``AsyncSession.execute``.
        """
        yield from self.load(session)
        done: list[Outcome] = []
        for block in code_blocks:
            done.append((yield from self._block(session, block)))
            if done[-1].exit_code:
                break
        files = tuple(dict.fromkeys(file for each in done for file in each.files))
        text = "".join(_ended(each.output) for each in done)
        return Outcome(done[-1].exit_code, text, files) if done else Outcome(0, "")

    def load(self, session: Session | AsyncSession) -> Steps[None]:
        """Have the functions in the session, once."""
        if self._loaded or not self.functions.source:
            return
        if self.functions.packages:
            installed = yield session.install(self.functions.packages)
            if not installed.ok:
                raise ValueError(f"functions: their packages cannot be installed: {installed.output}")
        yield session.files.write(f"{self.functions.module}.py", self.functions.source)
        result = yield session.execute(f"import {self.functions.module}")
        if not result.ok:
            raise ValueError(f"functions: they cannot be imported: {told(result)}")
        self._loaded = True

    def _block(self, session: Session | AsyncSession, block: Block) -> Steps[Outcome]:
        language = ALIASES.get(block.language.lower(), block.language.lower())
        runs = self.policies.get(language, True)
        named = _FILENAME.match(LINE_END.split(block.code, maxsplit=1)[0])
        name = named["name"] if named else _unnamed(block.code, language)
        saved = None
        try:
            if named or not runs or language == "powershell":
                saved = yield from self._save(session, name, block.code)
            if not runs:
                return Outcome(0, f"Code saved to {saved}", (str(saved),))
            result = yield from self._executed(session, silent(block.code, language), language, name)
        except (InvalidPath, FileRefused) as exc:
            return Outcome(1, f"{name} is not in the workspace, or cannot be written there: {exc}")
        except (Refused, InvalidRequest) as exc:
            return Outcome(1, str(exc))
        result = self._without_saved(without_notebooks(result))
        files = tuple(str(self.workspace / each) for each in result.files)
        text = told(result)
        if saved and result.error is not None and language == "python":
            text += f"\n[Cell In[{result.execution_count}] is {name}]"
        return Outcome(_exit_code(result), text, files)

    def _save(self, session: Session | AsyncSession, name: str, code: str) -> Steps[str]:
        written = yield session.files.write(name, code)
        self._saved[written.path] = _seen(self.workspace / written.path)
        return str(self.workspace / written.path)

    def _without_saved(self, result: ExecutionResult) -> ExecutionResult:
        """Return a result without the files that were saved here, unless a cell changed them since."""
        for path in self._saved.keys() & result.files:
            if self._saved[path] != _seen(self.workspace / path):
                del self._saved[path]
        return replace(result, files=tuple(each for each in result.files if each not in self._saved))

    def _executed(self, session: Session | AsyncSession, code: str, language: str, name: str) -> Steps[ExecutionResult]:
        match language:
            case "":
                raise InvalidRequest("unknown language: name the language behind the opening fence.")
            case "bash":
                result = yield session.execute_command(code)
            case "powershell":
                result = yield session.execute_command(f"pwsh -NonInteractive -File {shlex.quote(name)}")
            case _:
                result = yield session.execute(code, language=language)
        outcome: ExecutionResult = result
        return outcome


def told(result: ExecutionResult) -> str:
    """Return a result as a text for a model: all output, then the notes in brackets."""
    lines = [f"[{line}]" for line in remarks(result)]
    if result.error is None and result.diagnosis is not None:
        lines.insert(0, result.diagnosis.message)
    return "\n".join([*([result.text.rstrip("\n")] if result.text.strip() else []), *lines])


def without_notebooks(result: ExecutionResult) -> ExecutionResult:
    """Return a result without the notebooks of sessions of its name: another process may keep one in the same directory."""
    name = rf"{re.escape(result.session)}(?:-\d+)?\.ipynb"
    theirs = re.compile(rf"{name}|\.{name}\.[0-9a-f]+\.tmp")
    return replace(result, files=tuple(each for each in result.files if not theirs.fullmatch(each)))


def silent(code: str, language: str) -> str:
    """Add ``-qqq`` to installations by pip, so that they report failures only; lines within a text stay."""

    def quiet(match: re.Match[str]) -> str:
        return match[0] if match["call"] is None else f"{match['call']} -qqq{match['rest']}"

    pattern = _SILENCED.get(language)
    return code if pattern is None else pattern.sub(quiet, code)


def drive(steps: Steps[T]) -> T:
    """Take the steps with a blocking session."""
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value


async def drive_async(steps: Steps[T], *, taken: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None) -> T:
    """Take the steps with an asynchronous session; what a call raises is raised amid the steps. ``taken`` wraps each call."""
    answer, failure = None, None
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            value: T = end.value
            return value
        answer, failure = None, None
        try:
            answer = await (call if taken is None else taken(call))
        except Exception as exc:  # noqa: BLE001 - it goes to the steps, and on from there
            failure = exc


def _exit_code(result: ExecutionResult) -> int:
    return 0 if result.ok else result.exit_code or 1


def _unnamed(code: str, language: str) -> str:
    digest = hashlib.md5(code.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"tmp_code_{digest}.{SUFFIXES.get(language, 'txt')}"


def _seen(path: Path) -> tuple[int, ...]:
    """Return the parts of a file's status that change with the file; None if it is gone."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
