"""The costs of checkpoints: time decides whether a checkpoint follows a cell, memory decides which checkpoints are dropped.

The memory of a checkpoint is the pages shared with no other process.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..protocol import may_change_state

#: The part of the time that passes, cells or not, which checkpoints may take all together.
_PART = 0.05
#: Seconds of checkpoints that cells in quick succession may have at the start, and the most that are saved up for later; more
#: only for one checkpoint that takes longer.
_SAVED_AT_START, _MOST_SAVED = 0.1, 1.0
#: Cells that are longer are not looked at.
_CHARS = 2000
_PURE = (
    *(ast.Module, ast.Expr, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.JoinedStr, ast.FormattedValue, ast.Name),
)
#: The least seconds between two measurements: the system walks through all pages of each process.
_PAUSE_SECONDS = 1.0


class AutomaticCheckpoints:
    """The rule for checkpoints after cells in the modes ``each`` and ``auto``; other modes make none."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._last_end: float | None = None
        self._saved, self._cost = _SAVED_AT_START, 0.0

    def wants(self, code: str, now: float) -> bool:
        """Return whether a checkpoint is to follow a cell ending ``now``, in seconds of a monotonic clock."""
        if self._mode not in ("each", "auto") or not may_change_state(code):
            return False
        if self._last_end is not None:
            self._saved = min(self._saved + _PART * (now - self._last_end), max(_MOST_SAVED, self._cost))
        self._last_end = now
        if self._mode == "each":
            return True
        return not is_pure(code) and self._cost <= self._saved

    def note_cost(self, seconds: float) -> None:
        """Note the seconds of a checkpoint, or of the search for its obstacles."""
        # `wants` saves up to this cost, so even a checkpoint that takes longer than all savings allow is made now and then.
        self._cost = seconds
        self._saved = max(0.0, self._saved - seconds)


def is_pure(code: str) -> bool:
    """Return whether a cell only computes with constants and names, and binds none.

    Operators of a user's class can do anything; a cell with such an operator still gets no checkpoint.
    """
    if len(code) > _CHARS:
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _PURE) for node in ast.walk(tree))


class MemoryCosts:
    """The private pages of each checkpoint (``Private_Dirty`` of proc(5)), measured in a thread."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._measured = 0.0
        self._thread: threading.Thread | None = None

    def measure(self, processes: Mapping[int, int]) -> None:
        """Measure the checkpoints of these processes, unless a measurement still runs or began less than a second ago."""
        if (self._thread is not None and self._thread.is_alive()) or time.monotonic() - self._measured < _PAUSE_SECONDS:
            return
        self._measured = time.monotonic()
        self._thread = threading.Thread(target=self._measure, args=(processes,), name="checkpoints", daemon=True)
        self._thread.start()

    def take_excess(self, requested: Collection[int], limit_bytes: int) -> list[int]:
        """Return, once, the checkpoints to drop because all together cost more than ``limit_bytes``."""
        excess = find_excess_bytes(self._bytes, requested, limit_bytes)
        self._bytes = {number: cost for number, cost in self._bytes.items() if number not in excess}
        return excess

    def _measure(self, processes: Mapping[int, int]) -> None:
        costs = {}
        for number, pid in processes.items():
            with suppress(OSError, ValueError):
                costs[number] = _read_private_bytes(pid)
        # One assignment of a whole dictionary: the thread of cells reads it without a lock.
        self._bytes = costs


def _read_private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return 0


def find_excess(numbers: Collection[int], requested: Collection[int], limit: int) -> list[int]:
    """Return the checkpoints over the limit: the newest ``limit`` requested ones stay, and automatic ones in the room left.

    The newest automatic checkpoint always stays: the session goes on from there if its kernel ends.
    """
    by_request = sorted(number for number in numbers if number in requested)
    automatic = sorted(number for number in numbers if number not in requested)
    room = max(1, limit - len(by_request))
    return [*by_request[:-limit], *automatic[:-room]]


def find_excess_bytes(costs: Mapping[int, int], requested: Collection[int], limit_bytes: int) -> list[int]:
    """Return the checkpoints to drop, automatic ones first, until the others or the newest cost at most ``limit_bytes``."""
    excess, left = [], sum(costs.values())
    for number in sorted(set(costs) - {max(costs, default=0)}, key=lambda each: (each in requested, each)):
        if left <= limit_bytes:
            break
        excess.append(number)
        left -= costs[number]
    return excess
