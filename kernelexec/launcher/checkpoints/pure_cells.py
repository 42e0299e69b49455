"""Cells that change nothing, by their syntax."""

from __future__ import annotations

import ast

#: Cells that are longer are not looked at.
_CHARS = 2000
_PURE = (
    *(ast.Module, ast.Expr, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.JoinedStr, ast.FormattedValue, ast.Name),
)


def is_pure(code: str) -> bool:
    """Return whether a cell only computes with constants, and with names that it does not bind.

    Operators of the user's classes can do anything; such a cell has no checkpoint after it.
    """
    if len(code) > _CHARS:
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _PURE) for node in ast.walk(tree))
