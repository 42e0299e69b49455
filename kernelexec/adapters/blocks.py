"""Agents' code blocks: found in messages, and run or saved in a session with the caller's functions, up to the first failure.

The steps are a generator of calls to a session, shared by blocking and asynchronous sessions: ``run_steps`` makes the calls
with a ``Session``, ``run_steps_async`` with an ``AsyncSession``.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
import keyword
import os
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kernelexec.blocking import Session
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, Refused
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.session import AsyncSession

#: A fence at the beginning of a line or a list item, followed by an info string only.
_FENCE = re.compile(r"(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)")
#: Line ends. Other characters at which ``splitlines`` splits may be in string literals of the code.
LINE_END = re.compile(r"\r\n?|\n")
#: The extra indentation with which a fence belongs to the code of the block.
_DEEPER = 4
_TEXT_PARTS = ("text", "input_text")
_COMMANDS = ("python ", "python3 ", "pip")


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A code block without its fences, and its language in lower case, or an empty text if unknown."""

    code: str
    language: str


def read_content(content: object) -> str:
    """Return the text of a message: text, None, or the lines of a list's parts ``text`` and ``input_text``.

    Raises:
        TypeError: the content has another type.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Iterable):
        raise TypeError(f"content is {type(content).__name__}: must be text, None, or a list of parts.")
    text_parts = [part for part in content if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS]
    return "\n".join(str(part.get("text", "")) for part in text_parts)


def find_blocks(content: object) -> list[MarkdownBlock]:
    """Return the code blocks of a message in order, with the language that a block names or that its code shows.

    A fence begins its line. It is closed by a fence of the same kind that is at least as long, so a block may contain shorter
    fences, and fences that are indented by four more columns, which close it only if no other fence does. An unclosed block may
    be incomplete, so it and its contents are ignored. The fence's indentation is removed from the code. A block without a
    language is ``sh`` if it begins with ``python``, ``python3`` or ``pip``, else ``python`` if it is valid Python.

    Raises:
        TypeError: see ``content_text``.
    """
    lines = LINE_END.split(read_content(content))
    code_blocks: list[MarkdownBlock] = []
    number = 0
    while number < len(lines):
        opening = _FENCE.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        if not (end := _closing_line(lines, number, opening)):
            break
        indent = opening["indent"] if opening["indent"].isspace() else " " * len(opening["indent"])
        code = "\n".join(line.removeprefix(indent) for line in lines[number:end])
        code_blocks.append(MarkdownBlock(code, _parse_language(opening["info"]) or infer_language(code)))
        number = end + 1
    return [block for block in code_blocks if block.code.strip()]


def infer_language(code: str) -> str:
    """Infer the language of code; empty if unknown."""
    if code.lstrip().startswith(_COMMANDS):
        return "sh"
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "python"


def _closing_line(lines: list[str], start: int, opening: re.Match[str]) -> int:
    """Return the number of the line that closes the block at ``start``; 0 if it is not closed.

    The first fence without deeper indentation and without a language closes it. Models sometimes indent the closing fence: a
    single deeper fence before the next block or the message's end closes the block; two belong to the code, as in a docstring.
    """
    deeper: list[int] = []
    for number in range(start, len(lines)):
        fence = _FENCE.fullmatch(lines[number])
        if fence is None or not fence["fence"].startswith(opening["fence"]):
            continue
        bare = not fence["info"].strip() and not fence["indent"].strip()
        if _fence_column(fence) >= _fence_column(opening) + _DEEPER:
            deeper.append(number if bare else 0)
        elif bare:
            return number
        elif len(deeper) == 1 and deeper[0]:
            break
    return deeper[0] if len(deeper) == 1 else 0


def _fence_column(fence: re.Match[str]) -> int:
    """Return the column in which a fence begins."""
    return len(fence["indent"].expandtabs(_DEEPER))


def _parse_language(info: str) -> str:
    """Return the language of an info string as ``python``, ``{.python .numbered}`` or ``py title="x"``."""
    words = info.strip().strip("{}").replace(",", " ").split()
    return words[0].lstrip(".").lower() if words else ""


#: The prompt about the functions, a template for their module and stubs.
PROMPT = "You have access to these user defined functions. They are importable from the module `{module}`.\n\n{functions}"


@dataclass(frozen=True, slots=True)
class Functions:
    """A module of functions: its name, its source, stubs for a prompt, and the packages that it needs."""

    module: str
    source: str
    stubs: str
    packages: tuple[str, ...]

    @classmethod
    def from_callables(cls, functions: Iterable[Any], *, module: str = "functions") -> Functions:
        """Create a module from functions, results of a framework's ``with_requirements``, or source texts.

        Sources are read, never run. Decorators are removed, because they belong to this program.

        Raises:
            ValueError: the module's name is not an identifier, or is a keyword; a text is not exactly one function; a function
                has no readable source, or is a partial or a bound method; or two functions have the same name.
        """
        if not module.isidentifier() or keyword.iskeyword(module):
            problem = "it is a keyword" if module.isidentifier() else "it is not an identifier"
            raise ValueError(f"functions_module={module!r}: must be an importable module name; {problem}.")
        listed = list(functions)
        read = [_parse_function(each) for each in listed]
        for name, count in Counter(node.name for node, _ in read).items():
            if count > 1:
                raise ValueError(f"functions: names must be unique, but {count} functions are named {name}.")
        imports = dict.fromkeys(
            _import_statement(each) for function in listed for each in getattr(function, "global_imports", ())
        )
        packages = dict.fromkeys(str(each) for function in listed for each in getattr(function, "python_packages", ()))
        blocks = ["\n".join(imports)] if imports else []
        source = "\n\n\n".join([*blocks, *(text for _, text in read)])
        return cls(module, source + "\n" if source else "", "\n\n".join(_stub(node) for node, _ in read), tuple(packages))

    def format_prompt(self, template: str = PROMPT) -> str:
        """Fill ``{module}`` and ``{functions}``, or ``$module`` and ``$functions``, into a prompt about the functions."""
        for name, text in (("module", self.module), ("functions", self.stubs)):
            template = template.replace("{" + name + "}", text).replace("$" + name, text)
        return template


class FunctionPrompt:
    """The methods with which AG2 and AutoGen read an executor's functions."""

    _functions: Functions

    @property
    def functions_module(self) -> str:
        """Return the name of the module from which cells import the functions."""
        return self._functions.module

    def format_functions_for_prompt(self, prompt_template: str = PROMPT) -> str:
        """Return the prompt about the functions: their module and stubs."""
        return self._functions.format_prompt(prompt_template)


def _parse_function(function: Any) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]:  # noqa: ANN401 - a callable, or a framework's wrapping of one
    """Return a function as a syntax tree and as its source without decorators."""
    inner = function if isinstance(function, functools.partial) else getattr(function, "func", function)
    text = inner if isinstance(inner, str) else _read_source(inner)
    text = textwrap.dedent(text).strip()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as exc:
        raise ValueError(f"functions: {text[:60]!r} does not compile: {exc}.") from exc
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(functions) != 1:
        raise ValueError(f"functions: {text[:60]!r} holds {len(functions)} functions: must be exactly one.")
    node = functions[0]
    if isinstance(inner, str):
        return node, text
    return node, "\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno])  # only these are line ends in source


def _read_source(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial) or inspect.ismethod(function):
        problem = "a bound method" if inspect.ismethod(function) else "a partial"
        raise ValueError(
            f"functions: {function!r:.100} must be a plain function, not {problem}: write a function that calls it."
        )
    try:
        return inspect.getsource(function)
    except (OSError, TypeError) as exc:
        raise ValueError(f"functions: {function!r:.100} must have readable source: pass its source as text.") from exc


def _import_statement(item: Any) -> str:  # noqa: ANN401 - a name, or a framework's description of an import
    """Return the statement for a framework's import: ``name``, ``name`` with ``alias``, or ``module`` with ``imports``."""
    if isinstance(item, str):
        return f"import {item}"
    if hasattr(item, "imports"):
        names = ", ".join(each if isinstance(each, str) else f"{each.name} as {each.alias}" for each in item.imports)
        return f"from {item.module} import {names}"
    return f"import {item.name} as {item.alias}"


def _stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the signature and docstring of a function."""
    stub = copy.copy(node)
    stub.decorator_list = []
    text = ast.get_docstring(node)
    doc: list[ast.stmt] = [ast.Expr(ast.Constant(text))] if text else []
    stub.body = [*doc, ast.Expr(ast.Constant(...))]
    return ast.unparse(ast.fix_missing_locations(stub))


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
    """Return the text of a result for a model: all output, then the notes in brackets."""
    lines = [f"[{line}]" for line in model_notes(result)]
    if result.error is None and result.diagnosis is not None:
        lines.insert(0, result.diagnosis.message)
    return "\n".join([*([result.text.rstrip("\n")] if result.text.strip() else []), *lines])


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
