"""The caller's functions that cells can import: a module of their sources, and the packages that it needs."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import keyword
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_UNREADABLE = "functions: {!r:.100} must have readable source: pass its source as text."
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
