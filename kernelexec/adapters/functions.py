"""Functions of the caller's that cells can import: a module of them, written from their sources, and what it needs."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import keyword
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

#: How models are told of the functions, with their module and stubs put in.
PROMPT = "You have access to these user defined functions. They are importable from the module `{module}`.\n\n{functions}"


@dataclass(frozen=True, slots=True)
class Functions:
    """A module of functions: its name, its source, stubs for a prompt, and the packages that it needs."""

    module: str
    source: str
    stubs: str
    packages: tuple[str, ...]

    @classmethod
    def of(cls, functions: Iterable[Any], *, module: str = "functions") -> Functions:
        """Make a module of functions, of what a framework's ``with_requirements`` makes of them, or of source texts.

        Sources are read, never run. Decorators are left away: they belong to this program.

        Raises:
            ValueError: the module's name is no identifier, or a keyword; a text is not exactly one function; a function has no
                source here, is a partial or a bound method; or two have the same name.
        """
        if not module.isidentifier() or keyword.iskeyword(module):
            what = "a keyword" if module.isidentifier() else "no identifier"
            raise ValueError(f"functions_module={module!r}: it is {what}, so no cell could import it.")
        listed = list(functions)
        read = [_read(each) for each in listed]
        names = [node.name for node, _ in read]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"functions: there are {names.count(name)} functions named {name}.")
        imports = dict.fromkeys(_import(each) for function in listed for each in getattr(function, "global_imports", ()))
        packages = dict.fromkeys(str(each) for function in listed for each in getattr(function, "python_packages", ()))
        parts = ["\n".join(imports)] if imports else []
        source = "\n\n\n".join([*parts, *(text for _, text in read)])
        return cls(module, source + "\n" if source else "", "\n\n".join(_stub(node) for node, _ in read), tuple(packages))

    def prompt(self, template: str = PROMPT) -> str:
        """Return the prompt about the functions: ``{module}`` and ``{functions}``, or with ``$``, are filled in."""
        for name, text in (("module", self.module), ("functions", self.stubs)):
            template = template.replace("{" + name + "}", text).replace("$" + name, text)
        return template


class Told:
    """What an executor says of its functions, by the names that AG2 and AutoGen have for it."""

    _functions: Functions

    @property
    def functions_module(self) -> str:
        """Return the module from which cells import the functions."""
        return self._functions.module

    def format_functions_for_prompt(self, prompt_template: str = PROMPT) -> str:
        """Return the prompt about the functions: their module and stubs."""
        return self._functions.prompt(prompt_template)


def _read(function: Any) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]:  # noqa: ANN401 - a callable, or a framework's wrapping of one
    """Return a function as a syntax tree and as its source without decorators."""
    inner = function if isinstance(function, functools.partial) else getattr(function, "func", function)
    text = inner if isinstance(inner, str) else _source(inner)
    text = textwrap.dedent(text).strip()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as exc:
        raise ValueError(f"functions: {text[:60]!r} does not compile: {exc}.") from exc
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(functions) != 1:
        raise ValueError(f"functions: {text[:60]!r} holds {len(functions)} functions: a source text is exactly one.")
    lines = text.split("\n")  # as Python counts them: it has no other line ends, once a source is read
    node = functions[0]
    if isinstance(inner, str):
        return node, text
    return node, "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _source(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial) or inspect.ismethod(function):
        what = "a bound method, whose object" if inspect.ismethod(function) else "a partial, whose arguments"
        raise ValueError(f"functions: {function!r:.100} is {what} no source would have: give a plain function that calls it.")
    try:
        return inspect.getsource(function)
    except (OSError, TypeError) as exc:
        raise ValueError(f"functions: {function!r:.100} has no source that could be read: give its source as text.") from exc


def _import(item: Any) -> str:  # noqa: ANN401 - a name, or what a framework says of one
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
