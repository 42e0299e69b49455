"""The conventions of a framework's own executors: their arguments, their results, and the caller's functions in cells.

An adapter with such arguments follows these conventions. Cells import the functions from a module with their sources.
"""

from __future__ import annotations

import ast
import base64
import binascii
import copy
import functools
import inspect
import keyword
import logging
import os
import textwrap
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernelexec.config import Config, override
from kernelexec.provisioning.launch.kernelspec import KernelspecCatalog
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Stream
from kernelexec.text import quote_output
from kernelexec.workspace.safe_files import closing_fd, create_file

logger = logging.getLogger("kernelexec")
PYTHON_KERNEL = "python3"
#: The files of displays by media type: the suffix, and the name in texts.
_FILES = {"image/png": ("png", "Image"), "image/jpeg": ("jpg", "Image"), "text/html": ("html", "HTML")}
_UNREADABLE = "functions: {!r:.100} must have readable source: pass its source as text."
#: The prompt about the functions, a template for their module and stubs.
PROMPT = "You have access to these user defined functions. They are importable from the module `{module}`.\n\n{functions}"


@dataclass(slots=True)
class Conventions:
    """The arguments of the framework's own executors.

    With a ``work_dir`` blocks run as in the framework's command line executors: each is saved there as a file. With an
    ``output_dir`` blocks run as in the Jupyter executors: displays are files there.

    Raises:
        ValueError: the timeout is less than a second, or the output directory does not exist and is not created.
        FileNotFoundError: the parent directory of ``work_dir`` does not exist.
    """

    timeout: float | None
    work_dir: Path | None
    output_dir: Path | None
    kernel_name: str
    virtual_env_context: InitVar[SimpleNamespace | None]
    deletes_code: bool = False
    is_ag2: bool = False
    """Whether texts name the files of displays, and ``output_dir`` must exist, as in AG2; AutoGen creates that."""
    virtual_env: Path | None = field(default=None, init=False)
    """The directory of the virtual environment."""
    _output_identity: tuple[int, int] | None = field(default=None, init=False)
    """The device and number of ``output_dir`` at the beginning: a cell may put a link in its place."""

    def __post_init__(self, virtual_env_context: SimpleNamespace | None) -> None:
        """Check the arguments and create the directories, as the framework's own executors do at once."""
        if self.timeout is not None and not self.timeout >= 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        if self.output_dir is not None:
            if not self.is_ag2:
                self.output_dir.mkdir(parents=True, exist_ok=True)
            if not self.output_dir.is_dir():
                raise ValueError(f"Output directory {self.output_dir} does not exist.")
            self._output_identity = _identify(self.output_dir.stat())
        if self.work_dir is not None:
            self.work_dir.mkdir(exist_ok=True)
        if virtual_env_context is not None:
            self.virtual_env = Path(virtual_env_context.bin_path).absolute().parent

    @property
    def is_jupyter(self) -> bool:
        """Whether only an exception is a failure of a cell, as in Jupyter, and failed commands are not."""
        return self.work_dir is None and (self.is_ag2 or self.output_dir is not None)

    def configure(self, config: Config | Mapping[str, Any] | None) -> dict[str, Any]:
        """Return a configuration with the settings of these arguments."""
        changes: dict[str, Any] = {}
        if self.timeout is not None:
            changes["budgets"] = {"timeout": float(self.timeout)}
        if self.work_dir is not None:
            changes["work_dir"] = self.work_dir.absolute()
        if self.virtual_env is not None:
            changes["programs"] = {"venv": self.virtual_env}
        if self.output_dir is not None:
            changes["save_displays"] = False
        unrecorded = {} if self.work_dir is None and self.output_dir is None else {"notebook": False, "journal": False}
        return {**unrecorded, **override(config, changes)}

    def check_kernel(self, isolation: str) -> None:
        """Raise ``ValueError`` if the kernel is not installed on this machine; an image is asked at the first block."""
        if self.kernel_name == PYTHON_KERNEL or isolation == "container":
            return
        catalog = KernelspecCatalog.on_this_machine()
        if catalog.find(self.kernel_name) is None:
            listed = ", ".join(catalog.describe())
            raise ValueError(f"Kernel {self.kernel_name} is not installed. Install it, or choose one of {listed}.")

    @property
    def saves_code(self) -> bool:
        """Whether each block is saved as a file."""
        return self.work_dir is not None

    def delete_code(self, path: Path) -> None:
        """Delete the file of a block after the run, if ``deletes_code`` is set."""
        if self.deletes_code:
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                logger.error("Failed to delete temporary file %s: %s", path, exc)  # noqa: TRY400 - as the frameworks do

    def format_displays(self, result: ExecutionResult) -> tuple[list[str], list[str]]:
        """Save the displays of a result into ``output_dir``; return the texts of all outputs, and the files."""
        texts: list[str] = []
        files: list[str] = []
        for output in result.outputs:
            match output:
                case Stream():
                    texts.append(quote_output(output.text))
                case Error():
                    texts.append(quote_output("\n".join(output.traceback)))
                case DisplayData() | ExecuteResult():
                    self._format_display(output, texts, files)
        return texts, files

    def _format_display(self, output: DisplayData | ExecuteResult, texts: list[str], files: list[str]) -> None:
        for mime, content in output.data.items():
            if mime == "image/jpeg" and "image/png" in output.data:
                continue  # the same picture
            if mime == "text/plain":
                texts.append(quote_output(str(content)))
            elif mime in _FILES and (path := self._save(mime, content)) is not None:
                files.append(str(path))
                if self.is_ag2:
                    texts.append(f"{_FILES[mime][1]} data saved to {path}")

    def _save(self, mime: str, content: object) -> Path | None:
        assert self.output_dir is not None
        try:
            data = str(content).encode() if mime.startswith("text/") else base64.b64decode(str(content))
        except (binascii.Error, ValueError):  # a cell displayed it
            return None
        path = self.output_dir.absolute() / f"{uuid.uuid4().hex}.{_FILES[mime][0]}"
        # By descriptor: between a check of the path and a write by the path, a cell could put a link there.
        with closing_fd(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            if _identify(os.fstat(directory)) != self._output_identity:
                logger.error("A display is not saved: %s is another directory than before.", self.output_dir)
                return None
            create_file(Path(path.name), data, dir_fd=directory)
        return path


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def warn_about_restart() -> None:
    """Warn about a restart without an open session."""
    warnings.warn("Nothing is open that could be restarted. No action is taken.", UserWarning, stacklevel=3)


def optional_path(path: str | Path | None) -> Path | None:
    """Return an argument as a path."""
    return None if path is None else Path(path)


def is_current_directory(path: str | Path) -> bool:
    """Return whether a path names the current directory."""
    return Path(path).resolve() == Path.cwd()


@dataclass(frozen=True, slots=True)
class Functions:
    """A module of functions: name, source, stubs for a prompt, and required packages."""

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
                has no readable source, or is a partial or a bound method; or two functions share a name.
        """
        if not module.isidentifier() or keyword.iskeyword(module):
            problem = "is a keyword" if module.isidentifier() else "is not one"
            raise ValueError(f"Module name must be a valid Python identifier: functions_module={module!r} {problem}.")
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
        """Fill ``{module}`` and ``{functions}`` into a prompt; ``$module``, ``$module_name`` and ``$functions`` too."""
        for name, text in (("module_name", self.module), ("module", self.module), ("functions", self.stubs)):
            template = template.replace("{" + name + "}", text).replace("$" + name, text)
        return template


class FrameworkExecutor:
    """The common properties of the executors for AG2 and AutoGen."""

    _conventions: Conventions
    _functions: Functions

    @property
    def output_dir(self) -> Path | None:
        """Return the chosen directory for the files of displays."""
        return self._conventions.output_dir

    @property
    def kernel_name(self) -> str:
        """Return the kernelspec whose kernel runs Python blocks."""
        return self._conventions.kernel_name

    @property
    def functions_module(self) -> str:
        """Return the name of the module from which cells import the functions."""
        return self._functions.module

    def format_functions_for_prompt(self, prompt_template: str = PROMPT) -> str:
        """Return the prompt about the functions: their module and stubs."""
        return self._functions.format_prompt(prompt_template)


def _parse_function(function: Any) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]:  # noqa: ANN401 - a callable, or a framework's wrapping of one
    """Return a function as a syntax tree and as source without decorators."""
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
    code = getattr(None if isinstance(inner, str) else inspect.unwrap(inner), "__code__", None)
    if code is not None and code.co_name != node.name:  # since Python 3.13 a program of `python -c` is the source of such code
        raise ValueError(_UNREADABLE.format(inner))
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
        raise ValueError(_UNREADABLE.format(function)) from exc


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
