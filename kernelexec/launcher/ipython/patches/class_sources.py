"""The source of classes that cells define, for ``inspect.getsource``.

- Checked for: CPython 3.11 to 3.14, IPython 9.18.
- Gain: ``inspect.getsource``, ``getsourcefile`` and ``??`` find classes and dataclasses of cells, as they find functions.
- Obsolete when: ``test_python_finds_no_source_of_a_class_of_a_cell``.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

_MAIN = "__main__"


def find_class_sources(compiler: Any) -> None:
    """Make ``inspect`` look for a class without a file in the cells of a compiler, the newest first."""
    get_file = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002 - its name in inspect
        """Work out which source or compiled file an object was defined in."""
        try:
            return get_file(object)
        except (OSError, TypeError):
            name = _find_cell(object, compiler) if isinstance(object, type) and object.__module__ == _MAIN else None
            if name is None:
                raise
            return name

    inspect.getfile = getfile


def cell_sources(compiler: Any) -> Iterator[tuple[str, str]]:
    """Yield the file name and source of each cell, the newest first."""
    numbers: dict[str, int] = compiler._filename_map  # noqa: SLF001 - IPython has no other
    for name in sorted(numbers, key=lambda name: numbers[name], reverse=True):
        if lines := linecache.cache.get(name):
            yield name, "".join(lines[2]) if len(lines) > 1 else ""


def _find_cell(cls: type, compiler: Any) -> str | None:
    """Return the file name of the cell that defines a class: by its methods, or else by its name, fields and line."""
    for member in vars(cls).values():
        code = getattr(inspect.unwrap(_function_of(member)), "__code__", None)
        if isinstance(code, CodeType) and code.co_filename in linecache.cache and _is_part(code, cls):
            return code.co_filename
    candidates = [
        (name, node)
        for name, source in cell_sources(compiler)
        if f"class {cls.__name__}" in source
        for node in _find_definitions(source, cls.__qualname__)
    ]
    fields = list(vars(cls).get("__annotations__", ()) or ())
    line = vars(cls).get("__firstlineno__")
    ranked = sorted(candidates, key=lambda item: (_fields(item[1]) != fields, line is not None and _line(item[1]) != line))
    return ranked[0][0] if ranked else None


def _function_of(member: Any) -> Any:
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, None) or member
    return member


def _is_part(code: CodeType, cls: type) -> bool:
    return code.co_qualname.startswith(f"{cls.__qualname__}.")


def _find_definitions(source: str, qualname: str) -> Iterator[ast.ClassDef]:
    """Yield the definitions of a class with that qualified name."""
    pending: list[tuple[ast.AST, str]] = []
    with suppress(SyntaxError, ValueError, RecursionError):
        pending = [(ast.parse(source), "")]
    while pending:
        parent, prefix = pending.pop()
        for node in ast.iter_child_nodes(parent):
            inner = prefix
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{prefix}{node.name}."
                if isinstance(node, ast.ClassDef) and inner == f"{qualname}.":
                    yield node
                if not isinstance(node, ast.ClassDef):
                    inner += "<locals>."
            pending.append((node, inner))


def _fields(node: ast.ClassDef) -> list[str]:
    """Return the annotated names of a class."""
    return [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
