"""Whether a checkpoint follows a cell."""

from __future__ import annotations

import ast
from typing import Any

from ..protocol import may_change_state

#: The part of the time that passes, cells or not, which checkpoints may take all together.
_PART = 0.05
#: Seconds of checkpoints that cells in quick succession may have at the start, and the most that are saved up for later; more
#: only for one checkpoint that takes longer.
_SAVED_AT_START, _MOST_SAVED = 0.1, 1.0


class AutomaticCheckpoints:
    """The rule of the modes ``each`` and ``auto``; in other modes none is made."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._last_end: float | None = None
        self._saved, self._cost = _SAVED_AT_START, 0.0

    def wants(self, code: str, now: float) -> bool:
        """Return whether a checkpoint is to follow a cell that ends ``now``, on a monotonic clock, in seconds."""
        if self._mode not in ("each", "auto") or not may_change_state(code):
            return False
        if self._last_end is not None:
            self._saved = min(self._saved + _PART * (now - self._last_end), max(_MOST_SAVED, self._cost))
        self._last_end = now
        if self._mode == "each":
            return True
        return not is_pure(code) and self._cost <= self._saved

    def note_cost(self, seconds: float) -> None:
        """Note the time that a checkpoint took, or that it took to find out what prevents it."""
        self._cost = seconds
        self._saved = max(0.0, self._saved - seconds)


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
