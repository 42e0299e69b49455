"""Names bound, deleted and used at the top level of a cell, and the cell's defining statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WRAPPING = re.compile(r"\A\s*%%(?:time|capture|prun)\b[^\n]*\n|^[ \t]*%time[ \t]+", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def name_changes(source: str) -> dict[str, bool]:
    """Return each name bound (True) or deleted (False) at the top level of a cell; the last change counts."""
    tree = _tree(source)
    try:
        return dict(_changes_in(tree)) if tree is not None else {}
    except RecursionError:  # generated code: no names are claimed
        return {}


def used_names(source: str) -> frozenset[str]:
    """Return the names read by a cell, also within its functions."""
    tree = _tree(source)
    nodes = ast.walk(tree) if tree is not None else ()
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store))


def free_names(function: Function) -> frozenset[str]:
    """Return the names read but not bound by a function, and the attributes used there with a leading dot."""
    nodes = list(ast.walk(function))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(read - bound) | {f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute)}


def definitions(source: str) -> tuple[str, frozenset[str]]:
    """Return the imports, functions and classes of a cell as a separate cell, and the names bound by them."""
    tree = _tree(source)
    statements = [node for node in tree.body if isinstance(node, _DEFINING)] if tree is not None else []
    try:
        return "\n".join(map(ast.unparse, statements)), frozenset(name for node in statements for name, _ in _change(node))
    except RecursionError:
        return "", frozenset()


@lru_cache(maxsize=4)
def parse_cell(source: str) -> ast.Module | None:
    """Return the syntax tree of a cell, with magics turned into calls as in IPython, or None."""
    from IPython.core.inputtransformer2 import TransformerManager  # noqa: PLC0415 - half a second, needed by replays only

    try:
        return ast.parse(TransformerManager().transform_cell(source))  # type: ignore[no-untyped-call]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tree(source: str) -> ast.Module | None:
    """Return the tree of a cell without measuring magics."""
    return parse_cell(_WRAPPING.sub("", source))


def _changes_in(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the changes of names below a node in order, except inside functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield from _change(child)
        if isinstance(child, COMPREHENSIONS):  # only names that `:=` binds stay bound after it
            targets = [part.target for part in ast.walk(child) if isinstance(part, ast.NamedExpr)]
            yield from ((target.id, True) for target in targets)
        elif not isinstance(child, _SCOPES):
            yield from _changes_in(child)


def _change(node: ast.AST) -> Iterator[tuple[str, bool]]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del() as context):
            yield name, isinstance(context, ast.Store)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, True
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name.split(".")[0], True) for alias in aliases if alias.name != "*")
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name, True
