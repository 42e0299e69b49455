"""Agents' code blocks in a session: run or saved, in order, up to the first failure, with a text for a model."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelexec.adapters.shared.conventions import PYTHON_KERNEL, Conventions, Functions
from kernelexec.adapters.shared.markdown import LINE_END, MarkdownBlock
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, Refused
from kernelexec.executor.blocking import Session
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.session import AsyncSession
from kernelexec.session.kernels.verdict import NEW_KERNEL_NOTE
from kernelexec.text import format_note, quote_output

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
#: A comment that is nothing but the name of a file.
_PLAIN_FILENAME = re.compile(r"\s*(?:#|//|/\*|<!--)[ \t]*(?P<name>[\w./-]+\.\w+)[ \t]*(?:\*/|-->)?[ \t]*$")
#: A line of Jupyter's for the shell: in bash, ``!`` is followed by a blank.
_BANG = re.compile(r"\s*!\S")
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
    """The result of blocks: the exit code of the last run block, all text, and files with their paths on this machine."""

    exit_code: int
    output: str
    files: tuple[str, ...] = ()
    code_file: str | None = None
    """The file in which the code of the first block was saved."""
    timed_out: bool = False


@dataclass(slots=True)
class BlockRunner:
    """A runner of blocks in a session. ``functions`` and their packages are installed before the first block."""

    workspace: Path
    functions: Functions
    policies: Mapping[str, bool]
    """For each language whether its blocks run; see ``merge_policies``."""
    conventions: Conventions
    is_restarted: bool = False
    """Whether the caller has restarted the session since its last block."""
    _has_functions: bool = False
    _saved_files: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The states of files that this object saved, which are not files of cells until a cell changes them."""

    async def run(self, session: AsyncSession, code_blocks: Sequence[MarkdownBlock]) -> BlocksResult:
        """Run or save each block.

        Raises:
            ValueError: the functions cannot be imported, or their packages cannot be installed.
            KernelStartFailed, Closed, QueueFull: see ``AsyncSession.execute``.
        """
        await self._load_functions(session)
        done: list[BlocksResult] = []
        for block in code_blocks:
            done.append(await self._run_block(session, block))
            if done[-1].exit_code:
                break
        if not done:
            return BlocksResult(0, "")
        files = tuple(dict.fromkeys(file for each in done for file in each.files))
        if self.conventions.output_dir is not None:
            text = "\n".join(each.output for each in done)
        else:
            text = "".join(each.output if each.output.endswith("\n") else f"{each.output}\n" for each in done if each.output)
        return replace(done[-1], output=text, files=files, code_file=done[0].code_file)

    async def _load_functions(self, session: AsyncSession) -> None:
        """Load the functions into the session once."""
        if self._has_functions or not self.functions.source:
            return
        if self.functions.packages:
            installed = await session.install(self.functions.packages)
            if not installed.ok:
                raise ValueError(f"functions: the packages cannot be installed: {installed.output}")
        await session.files.write(f"{self.functions.module}.py", self.functions.source)
        result = await session.execute(f"import {self.functions.module}")
        if not result.ok:
            raise ValueError(f"functions: the module cannot be imported: {result_text(result)}")
        self._has_functions = True

    async def _run_block(self, session: AsyncSession, block: MarkdownBlock) -> BlocksResult:
        language = ALIASES.get(block.language.lower(), block.language.lower())
        runs = self.policies.get(language, True)
        named = _FILENAME.match(LINE_END.split(block.code, maxsplit=1)[0])
        if self.conventions.saves_code and named is None:
            named = _PLAIN_FILENAME.match(LINE_END.split(block.code, maxsplit=1)[0])
        name = named["name"] if named else _default_name(block.code, language)
        saved = None
        try:
            if named or not runs or language == "powershell" or self.conventions.saves_code:
                written = await session.files.write(name, block.code)
                saved = self.workspace / written.path
                self._saved_files[written.path] = _file_state(saved)
            if not runs:
                return BlocksResult(0, f"Code saved to {saved}", (str(saved),), str(saved))
            result = await self._execute(session, quiet_pip(block.code, language), language, name)
            result = self._remove_saved_files(remove_notebooks(result))
        except (InvalidPath, FileRefused) as exc:
            return BlocksResult(1, f"Filename is not in the workspace, or cannot be written there: {name}: {exc}")
        except (Refused, InvalidRequest) as exc:
            return BlocksResult(1, str(exc))
        finally:
            if saved is not None and runs and not named:
                self.conventions.delete_code(saved)
        code_file = None if saved is None else str(saved)
        return self._make_result(session, result, language, code_file, name if named else "")

    def _make_result(
        self, session: AsyncSession, result: ExecutionResult, language: str, code_file: str | None, name: str
    ) -> BlocksResult:
        """Return the result of a block; ``name`` is the file named in the block, or empty."""
        result = self._remove_notes(remove_start_notes(result, session))
        files = tuple(str(self.workspace / each) for each in result.files)
        exit_code = 0 if result.ok else result.exit_code or 1
        if self.conventions.output_dir is not None:
            pieces, saved_displays = self.conventions.format_displays(result)
            notes = _list_notes(result if result.error is None else replace(result, diagnosis=None))
            text, files = "\n".join([*pieces, *notes]), (*saved_displays, *files)
        else:
            text = result_text(result)
        if name and result.error is not None and language == "python":
            text += f"\n[Cell In[{result.execution_count}] is {name}]"
        if exit_code and self._is_failed_bang(result, language):
            exit_code = 0
        return BlocksResult(exit_code, text, files, code_file, result.interrupted == "timeout")

    def _remove_notes(self, result: ExecutionResult) -> ExecutionResult:
        """Remove the notes about a restart by the caller, and about the environment of the caller's choice."""
        removed: tuple[str, ...] = ()
        if self.is_restarted and result.cause == "request":
            result = replace(result, state="kept", cause=None, lost_names=())
            removed += tuple(note for note in result.notes if note.startswith(NEW_KERNEL_NOTE))
        if (venv := self.conventions.virtual_env) is not None:
            removed += tuple(note for note in result.notes if str(venv) in note)
        self.is_restarted = False
        return replace(result, notes=tuple(note for note in result.notes if note not in removed))

    def _is_failed_bang(self, result: ExecutionResult, language: str) -> bool:
        """Return whether only a command of a cell failed (``!command``), which is no failure of the cell in Jupyter."""
        # An exception or an exit has an error output. A refused cell has neither, but its state is `unknown`.
        is_jupyter = self.conventions.is_jupyter and language == "python"
        return is_jupyter and result.error is None and result.interrupted is None and result.state == "kept"

    def _remove_saved_files(self, result: ExecutionResult) -> ExecutionResult:
        """Remove the files saved by this object from a result, except those changed by a cell."""
        for path in self._saved_files.keys() & result.files:
            if self._saved_files[path] != _file_state(self.workspace / path):
                del self._saved_files[path]
        return replace(result, files=tuple(each for each in result.files if each not in self._saved_files))

    async def _execute(self, session: AsyncSession, code: str, language: str, name: str) -> ExecutionResult:
        match language:
            case "":
                raise InvalidRequest("unknown language: name the language after the opening fence.")
            case "bash" if not _BANG.match(code):
                return await session.execute_command(code)
            case "bash":
                return await session.execute(code)
            case "powershell":
                return await session.execute_command(f"pwsh -NonInteractive -File {shlex.quote(name)}")
            case "python" if self.conventions.kernel_name != PYTHON_KERNEL:
                return await session.execute(code, language=self.conventions.kernel_name)
            case _:
                return await session.execute(code, language=language)


def merge_policies(policies: Mapping[str, bool] | None, **defaults: bool) -> dict[str, bool]:
    """Return the policies by language: the usual policies, then ``defaults``, then ``policies``, where the last wins."""
    chosen = {ALIASES.get(name, name): runs for name, runs in (policies or {}).items()}
    return {**EXECUTION_POLICIES, **defaults, **chosen}


def result_text(result: ExecutionResult) -> str:
    """Return the text of a result for a model: all output, then the notes, which output cannot imitate."""
    return "\n".join([*([quote_output(result.text).rstrip("\n")] if result.text.strip() else []), *_list_notes(result)])


def _list_notes(result: ExecutionResult) -> list[str]:
    lines = list(map(format_note, model_notes(result)))
    if result.error is None and result.diagnosis is not None:
        lines.insert(0, result.diagnosis.message)
    return lines


def remove_notebooks(result: ExecutionResult) -> ExecutionResult:
    """Remove session notebooks from a result: another process may write a notebook in the same directory."""
    name = rf"{re.escape(result.session)}(?:-\d+)?\.ipynb"
    theirs = re.compile(rf"{name}|\.{name}\.[0-9a-f]+\.tmp")
    return replace(result, files=tuple(each for each in result.files if not theirs.fullmatch(each)))


def remove_start_notes(result: ExecutionResult, session: Session | AsyncSession) -> ExecutionResult:
    """Remove the notes on kernel and place from a session's first result; notes on the cell stay."""
    start_notes = session.start_notes
    return replace(result, notes=tuple(note for note in result.notes if note not in start_notes)) if start_notes else result


def quiet_pip(code: str, language: str) -> str:
    """Add ``-qq`` to pip installations, which then report failures only; string contents do not change."""

    def add_quiet(match: re.Match[str]) -> str:
        # The pattern also consumes strings, comments and here-documents, whose `pip install` is text: they return unchanged.
        return match[0] if match["call"] is None else f"{match['call']} -qq{match['rest']}"

    pattern = _INSTALL_PATTERNS.get(language)
    return code if pattern is None else pattern.sub(add_quiet, code)


def _default_name(code: str, language: str) -> str:
    digest = hashlib.md5(code.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"tmp_code_{digest}.{SUFFIXES.get(language, 'txt')}"


def _file_state(path: Path) -> tuple[int, ...]:
    """Return the parts of a file's status that change with the file; empty for a missing file."""
    # The change time as well: unlike the time of modification, no call of a cell can set it back.
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
