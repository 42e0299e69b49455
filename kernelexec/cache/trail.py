"""What a kernel has been through since it began, as one digest, and what of it may be found again.

Nobody can see from a cell's text what of the state it needs, nor what it leaves there. So a result belongs to one run of all
that came before it, in one kernel, which every run of a cell has a name of its own for: another value, order or outcome, or
only a cell that had to be run again, makes another key.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from kernelexec.cells import Cell, ShellCell, said
from kernelexec.recorded_history import PastCell
from kernelexec.replay_safety import Chance, SideEffectChecker
from kernelexec.results import ExecutionResult
from kernelexec.results.result import plain_json


class Trail:
    """Begins with what a kernel began with, and follows its cells; ``follows`` is whether a module is no cell's work.

    ``shown`` is how far its results are, found ones too; the kernel itself is as far as the cells that it has ``run``.
    """

    def __init__(self, begins: object, follows: Callable[[str], bool]) -> None:
        self.shown = self.run = digest("begins", begins)
        self._judges = SideEffectChecker(), Chance(follows)
        self.followed = 0

    @classmethod
    def lost(cls) -> Trail:
        """That of a kernel of which nobody knows what it has been through: nothing is found again."""
        return cls(secrets.token_hex(16), lambda _module: False)

    def judge(self, cell: Cell, *, ename: str | None = None) -> bool:
        """Follow what a cell imports, defines and sets, and say whether its result may be found again."""
        self.followed += 1
        past = PastCell(said(cell), "command" if isinstance(cell, ShellCell) else "code", cell.language, ename=ename)
        reasons = [judge.reason(past) for judge in self._judges]
        return not isinstance(cell, ShellCell) and not any(reasons)

    def lose(self) -> None:
        """Something happened that does not show: what comes is like nothing before."""
        self.shown = self.run = secrets.token_hex(16)


def key(at: str, source: str, files: str) -> str:
    """What the result of a code cell, with these files, is kept under."""
    return digest(at, "asks", source, files)


def after(at: str, cell: Sequence[Any], run: str, seen: str, files: str) -> str:
    """Where a trail is after a ``run`` of a cell that found these ``files`` and showed what ``seen`` stands for."""
    return digest(at, "ran", cell, run, seen, files)


def new_run() -> str:
    """A name for the run of a cell."""
    return secrets.token_hex(16)


def written(cell: Cell) -> Sequence[Any]:
    """All that a cell says."""
    work_dir, stdin = (cell.work_dir, cell.stdin) if isinstance(cell, ShellCell) else (None, None)
    return [type(cell).__name__, cell.language, cell.source, work_dir, stdin]


def seen_of(result: ExecutionResult) -> str:
    """What stands for all that a result shows of its cell's run."""
    return digest(result.status, result.exit_code, result.execution_count, plain_json(result.outputs))


def digest(*parts: object) -> str:
    """The SHA-256 of JSON values in order, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()
