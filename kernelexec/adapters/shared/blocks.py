"""Agents' code blocks in a session: run or saved, in order, up to the first failure, with one text for a model.

The steps are a generator of calls to a session, shared by blocking and asynchronous sessions: ``run_steps`` makes the calls
with a ``Session``, ``run_steps_async`` with an ``AsyncSession``.
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

from kernelexec.adapters.shared.functions import Functions
from kernelexec.adapters.shared.markdown import LINE_END, MarkdownBlock
from kernelexec.blocking import Session
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, Refused
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.session import AsyncSession
from kernelexec.untrusted_text import format_note, quote_output

T = TypeVar("T")
#: A generator of calls to a session; each call's result is sent back.
Steps = Generator[Any, Any, T]

#: The file suffix of each language, and other names of languages.
SUFFIXES = {"python": "py", "bash": "sh", "powershell": "ps1", "javascript": "js", "html": "html", "css": "css"}
ALIASES = {
    **dict.fromkeys(("py", "python3", "ipython"), "python"),
    **dict.fromkeys(("js", "node"), "javascript"),
    **dict.fromkeys(("sh", "shell", "console", "zsh"), "bash"),
    **dict.fromkeys(("pwsh", "ps1", "ps"), "powershell"),
}
#: Languages whose blocks are only saved; blocks of other languages run if the session has a kernel for them.
EXECUTION_POLICIES: Mapping[str, bool] = {"html": False, "css": False}

_FILENAME = re.compile(r"\s*(?:#|//|/\*|<!--)[ \t]*filename:[ \t]*(?P<name>.+?)[ \t]*(?:\*/|-->)?[ \t]*$", re.IGNORECASE)
_PIP = r"^(?P<call>[ \t]*(?:[!%][ \t]*)?(?:python3? -m )?pip install)(?P<rest>(?![^\n]*-q)(?![\w-])[^\n]*)$"
#: Patterns of text that is not an installation, by language: other magics, strings, comments and here-documents.
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
_INSTALL_PATTERNS = {name: re.compile("|".join((_PIP, *kept)), re.MULTILINE) for name, kept in _INSTALLATIONS.items()}


@dataclass(frozen=True, slots=True)
class BlocksResult:
    """The result of blocks: the exit code of the last one, all text, and files with their paths on this machine."""

    exit_code: int
    output: str
    files: tuple[str, ...] = ()


@dataclass(slots=True)
class BlockRunner:
    """A runner of blocks in one session. ``functions`` and their packages are installed before the first block."""

    workspace: Path
    functions: Functions
    policies: Mapping[str, bool] = field(default_factory=dict)
    _has_functions: bool = False
    _saved_files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The states of files that this object saved, which are not files of cells until a cell changes them."""

    def __post_init__(self) -> None:
        self.policies = {**EXECUTION_POLICIES, **{ALIASES.get(name, name): runs for name, runs in self.policies.items()}}

    def run(self, session: Session | AsyncSession, code_blocks: Sequence[MarkdownBlock]) -> Steps[BlocksResult]:
        """Run or save each block.

        Raises:
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, Closed, QueueFull: see ``AsyncSession.execute``.
        """
        yield from self.load_functions(session)
        done: list[BlocksResult] = []
        for block in code_blocks:
            done.append((yield from self._run_block(session, block)))
            if done[-1].exit_code:
                break
        files = tuple(dict.fromkeys(file for each in done for file in each.files))
        text = "".join(each.output if each.output.endswith("\n") else f"{each.output}\n" for each in done if each.output)
        return BlocksResult(done[-1].exit_code, text, files) if done else BlocksResult(0, "")

    def load_functions(self, session: Session | AsyncSession) -> Steps[None]:
        """Load the functions into the session once."""
        if self._has_functions or not self.functions.source:
            return
        if self.functions.packages:
            installed = yield session.install(self.functions.packages)
            if not installed.ok:
                raise ValueError(f"functions: the packages cannot be installed: {installed.output}")
        yield session.files.write(f"{self.functions.module}.py", self.functions.source)
        result = yield session.execute(f"import {self.functions.module}")
        if not result.ok:
            raise ValueError(f"functions: the module cannot be imported: {result_text(result)}")
        self._has_functions = True

    def _run_block(self, session: Session | AsyncSession, block: MarkdownBlock) -> Steps[BlocksResult]:
        language = ALIASES.get(block.language.lower(), block.language.lower())
        runs = self.policies.get(language, True)
        named = _FILENAME.match(LINE_END.split(block.code, maxsplit=1)[0])
        name = named["name"] if named else _default_name(block.code, language)
        saved = None
        try:
            if named or not runs or language == "powershell":
                written = yield session.files.write(name, block.code)
                saved = self.workspace / written.path
                self._saved_files[written.path] = _file_state(saved)
            if not runs:
                return BlocksResult(0, f"Code saved to {saved}", (str(saved),))
            result = yield from self._execute(session, quiet_pip(block.code, language), language, name)
        except (InvalidPath, FileRefused) as exc:
            return BlocksResult(1, f"{name} is not in the workspace, or cannot be written there: {exc}")
        except (Refused, InvalidRequest) as exc:
            return BlocksResult(1, str(exc))
        result = self._remove_saved_files(remove_notebooks(result))
        files = tuple(str(self.workspace / each) for each in result.files)
        text = result_text(result)
        if saved and result.error is not None and language == "python":
            text += f"\n[Cell In[{result.execution_count}] is {name}]"
        return BlocksResult(0 if result.ok else result.exit_code or 1, text, files)

    def _remove_saved_files(self, result: ExecutionResult) -> ExecutionResult:
        """Remove files from a result that this object saved, unless a cell has changed them."""
        for path in self._saved_files.keys() & result.files:
            if self._saved_files[path] != _file_state(self.workspace / path):
                del self._saved_files[path]
        return replace(result, files=tuple(each for each in result.files if each not in self._saved_files))

    def _execute(self, session: Session | AsyncSession, code: str, language: str, name: str) -> Steps[ExecutionResult]:
        match language:
            case "":
                raise InvalidRequest("unknown language: name the language after the opening fence.")
            case "bash":
                result = yield session.execute_command(code)
            case "powershell":
                result = yield session.execute_command(f"pwsh -NonInteractive -File {shlex.quote(name)}")
            case _:
                result = yield session.execute(code, language=language)
        outcome: ExecutionResult = result
        return outcome


def result_text(result: ExecutionResult) -> str:
    """Return the text of a result for a model: all output, then the notes, which output cannot imitate."""
    lines = list(map(format_note, model_notes(result)))
    if result.error is None and result.diagnosis is not None:
        lines.insert(0, result.diagnosis.message)
    return "\n".join([*([quote_output(result.text).rstrip("\n")] if result.text.strip() else []), *lines])


def remove_notebooks(result: ExecutionResult) -> ExecutionResult:
    """Remove session notebooks from a result: another process may write one in the same directory."""
    name = rf"{re.escape(result.session)}(?:-\d+)?\.ipynb"
    theirs = re.compile(rf"{name}|\.{name}\.[0-9a-f]+\.tmp")
    return replace(result, files=tuple(each for each in result.files if not theirs.fullmatch(each)))


def quiet_pip(code: str, language: str) -> str:
    """Add ``-qqq`` to pip installations, so that they report failures only; string contents do not change."""

    def add_quiet(match: re.Match[str]) -> str:
        return match[0] if match["call"] is None else f"{match['call']} -qqq{match['rest']}"

    pattern = _INSTALL_PATTERNS.get(language)
    return code if pattern is None else pattern.sub(add_quiet, code)


def run_steps(steps: Steps[T]) -> T:
    """Run steps with a blocking session."""
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value


async def run_steps_async(steps: Steps[T], *, wrap: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None) -> T:
    """Run steps with an asynchronous session; exceptions of calls are raised in the steps. ``wrap`` wraps each call."""
    answer, failure = None, None
    while True:
        try:
            call = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            value: T = end.value
            return value
        answer, failure = None, None
        try:
            answer = await (call if wrap is None else wrap(call))
        except Exception as exc:  # noqa: BLE001 - raised in the steps
            failure = exc


def _default_name(code: str, language: str) -> str:
    digest = hashlib.md5(code.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"tmp_code_{digest}.{SUFFIXES.get(language, 'txt')}"


def _file_state(path: Path) -> tuple[int, ...]:
    """Return the parts of a file's status that change with the file; empty if it does not exist."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
