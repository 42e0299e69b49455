"""Replays what a session did before in a new one, cell by cell in order, and reports what came back.

A cell is run again if nothing speaks against it. Cells before a snapshot that took long, that are not safe to repeat, or that
use a variable which came from the snapshot already, are not run where the snapshot has all that they made: their imports,
functions and classes are run, their variables loaded. After the last cell before the snapshot all its variables are loaded,
so that what the cells changed in place counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import anyio.to_thread

from kernelexec.errors import InvalidRequest
from kernelexec.recorded_history import Past, PastCell
from kernelexec.replay_safety import SideEffectChecker, definitions, name_changes, reason_against, used_names
from kernelexec.results import ExecutionFailed, ExecutionResult, Outcome, Replay, ReplayedCell, Restored
from kernelexec.session import AsyncSession
from kernelexec.text import clean_text

#: A cell that had run for no longer is run again, whatever a snapshot has, in seconds.
QUICK = 1.0
#: Languages whose cells run in the Python kernel, or as commands of it.
_IN_PYTHONS_PLACE = ("python", "javascript")
_REPLACED = "After cell {} a new kernel had taken the old one's place: what the cells up to there left in it was gone then."
_HEAD_CHARS, _WHY_CHARS = 60, 300
#: How a secret is recorded that was part of a cell's own text.
_MASKED = re.compile(r"[\[<(]secret [A-Za-z_]\w*[\])>]", re.ASCII)
_HELD = "its text held a secret, which is not recorded"
_UNKNOWN_NAME = re.compile(r"name '(?P<name>[^']+)' is not defined")


async def replay(session: AsyncSession, past: Past, *, source: str, timeout: float, repeat_unsafe: bool = False) -> Replay:
    """Repeat cells in a session and report what came back.

    Args:
        session: where; a new one.
        past: what was done before.
        source: what the report calls it.
        timeout: seconds that each cell may run; one that took long before gets twice that and ten more.
        repeat_unsafe: run also what is not safe to repeat.

    Raises:
        Closed, KernelStartFailed: the session ended meanwhile, or its kernel could not be started again.
    """
    plans = await anyio.to_thread.run_sync(_plans, past.cells)
    player = _Player(session, past, timeout=timeout, repeat_unsafe=repeat_unsafe)
    for number, (cell, plan) in enumerate(zip(session.mask_history(past).cells, plans, strict=True), 1):
        await player.play(number, cell, plan)
        session.scope.check_open()
    return player.report(source)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a cell's text says: why not to repeat it, what it does to names, and what of it only defines."""

    unsafe: str | None
    changes: dict[str, bool]
    used: frozenset[str]
    definitions: str
    defined: frozenset[str]

    @property
    def made(self) -> frozenset[str]:
        """The variables that the cell leaves, without what it defines."""
        return frozenset(name for name, bound in self.changes.items() if bound) - self.defined


def _plans(past: tuple[PastCell, ...]) -> list[_Plan]:
    judge, plans = SideEffectChecker(), []
    for cell in past:
        unsafe = _HELD if _MASKED.search(cell.source) else judge.reason(cell)
        source = cell.source if cell.kind == "code" and cell.language == "python" else ""
        code, defined = definitions(source)
        code = "" if code and reason_against(PastCell(code)) else code
        plans.append(_Plan(unsafe, name_changes(source), used_names(source), code, defined))
    return plans


class _Player:
    """Plays the cells one after the other; knows what came back so far, and what did not."""

    def __init__(self, session: AsyncSession, past: Past, *, timeout: float, repeat_unsafe: bool) -> None:
        self._session = session
        self._snapshot = past.snapshot
        self._cells = past.cells
        self._covered = min(past.covered, len(past.cells)) if past.snapshot else 0
        self._timeout = timeout
        self._repeat_unsafe = repeat_unsafe
        self._played: list[ReplayedCell] = []
        self._makers: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._loaded: set[str] = set()
        self._notes = [_REPLACED.format(number) for number in past.replaced]
        self._ender: int | None = None

    async def play(self, number: int, cell: PastCell, plan: _Plan) -> None:
        """Play one cell, and load the whole snapshot after the last one that it covers."""
        told = await self._play(number, cell, plan)
        self._played.append(told)
        if told.outcome != "skipped":
            self._follow(number, plan, came_back=told.outcome in ("repeated", "restored"))
        if self._ender == number:
            self._gone = dict(self._makers)
        if number == self._covered and self._ender is None:
            await self._load_all()

    def _follow(self, number: int, plan: _Plan, *, came_back: bool) -> None:
        """Note which cell makes a name, and which names are missing by now."""
        for name, bound in plan.changes.items():
            self._makers.pop(name, None)
            self._gone.pop(name, None)
            if bound:
                self._makers[name] = number
            if bound and not came_back:
                self._gone[name] = number

    def report(self, source: str) -> Replay:
        """What came back of it all."""
        there = set(self._session.names)
        return Replay(
            source=clean_text(source),
            cells=tuple(self._played),
            names=tuple(sorted(there & self._makers.keys())),
            missing=tuple(sorted(self._gone.keys() - there)),
            state_lost=self._ender is not None,
            notes=tuple(self._notes),
        )

    async def _play(self, number: int, cell: PastCell, plan: _Plan) -> ReplayedCell:
        if ender := self._ender:
            return _told(number, cell, "not_reached", f"cell {ender} ended the kernel: what it may need is gone")
        if ended := _ended_early(cell):
            return _told(number, cell, *ended)
        unsafe = None if self._repeat_unsafe else plan.unsafe
        note = ""
        if number <= self._covered and self._can_restore(cell, plan, unsafe=unsafe is not None):
            failed = await self._restore_cell(number, plan)
            if failed is None:
                return _told(number, cell, "restored", "its variables were loaded; what else it did was not repeated")
            note = f"{failed}; "
        if self._ender == number:
            return _told(number, cell, "failed", note + "the kernel ended")
        if unsafe is not None:
            return _told(number, cell, "unsafe", note + unsafe)
        return await self._repeat(number, cell, note)

    def _can_restore(self, cell: PastCell, plan: _Plan, *, unsafe: bool) -> bool:
        """Whether the snapshot has all that a cell made and worked on, and there is a reason to use it."""
        assert self._snapshot is not None
        saved = {variable.name: variable for variable in self._snapshot.variables}
        unsaved = {left.name for left in self._snapshot.left_out if not left.defined}
        needed = self._wanted(plan)
        if cell.status == "error" or not needed or not plan.made <= saved.keys() or plan.used & unsaved:
            return False
        slow = (cell.seconds or 0.0) > max(QUICK, sum(saved[name].seconds for name in needed))
        return slow or unsafe or bool(plan.used & self._loaded)

    def _wanted(self, plan: _Plan) -> frozenset[str]:
        return (plan.made | plan.used) & self._snapshot.names if self._snapshot is not None else frozenset()

    async def _restore_cell(self, number: int, plan: _Plan) -> str | None:
        """Run what a cell defines and load what it made; None, or why it did not work."""
        if plan.definitions:
            result = await self._session.execute(plan.definitions, timeout=self._timeout)
            if result.state == "lost":
                self._ender = number
            if not result.ok:
                return f"its definitions failed: {_failure(result)}"
        restored = await self._load(self._wanted(plan))
        if isinstance(restored, Restored) and not restored.missing:
            return None
        if isinstance(restored, str):
            self._ender = number if not self._session.names else None
            return f"its variables could not be loaded: {restored}"
        return f"{restored.missing[0].name} could not be loaded: {restored.missing[0].why}"

    async def _load_all(self) -> None:
        assert self._snapshot is not None
        restored = await self._load(self._snapshot.names)
        if isinstance(restored, str):
            self._notes.append(f"The snapshot's variables were not loaded: {restored}.")
            return
        self._notes += [f"Not loaded from the snapshot: {left.name}: {left.why}." for left in restored.missing]
        self._notes.append("What variables shared with each other they hold as copies of their own now.")
        for name in restored.names:
            self._gone.pop(name, None)

    async def _load(self, names: frozenset[str]) -> Restored | str:
        """Load variables of the snapshot; the reason where the kernel did not come to say what came of it."""
        assert self._snapshot is not None
        took = sum(variable.seconds for variable in self._snapshot.variables if variable.name in names)
        try:
            restored = await self._session.restore(self._snapshot, names=names, timeout=self._budget(took))
        except ExecutionFailed as exc:
            return str(exc)[:_WHY_CHARS]
        self._loaded.update(restored.names)
        return restored

    def _budget(self, took: float | None) -> float:
        return self._timeout if took is None else max(self._timeout, took * 2 + 10)

    async def _repeat(self, number: int, cell: PastCell, note: str) -> ReplayedCell:
        try:
            result = await self._send(self._cells[number - 1])
        except InvalidRequest as exc:  # a directory that is no longer there
            return _told(number, cell, "failed", note + str(exc))
        if result.state == "lost" and (cell.kind == "command" or cell.language in _IN_PYTHONS_PLACE):
            self._ender = number
        outcome, why = self._judge(cell, result)
        return _told(number, cell, outcome, note + why if why else note.rstrip("; ") or None, result)

    async def _send(self, cell: PastCell) -> ExecutionResult:
        """The one place where a past cell becomes an execution."""
        timeout = self._budget(cell.seconds)
        if cell.kind == "command":
            return await self._session.execute_command(cell.source, timeout=timeout, work_dir=cell.work_dir, stdin=cell.stdin)
        return await self._session.execute(cell.source, language=cell.language, stdin=cell.stdin, timeout=timeout)

    def _judge(self, cell: PastCell, result: ExecutionResult) -> tuple[Outcome, str | None]:
        """What a result means beside what the cell did before."""
        if result.state == "lost":
            how = "the kernel had ended before it" if result.ok else "it ended the kernel"
            return "failed", f"{how} ({result.cause})"
        if result.ok:
            return "repeated", None
        if result.interrupted is not None:
            return "failed", f"it was ended by {'its timeout' if result.interrupted == 'timeout' else 'an interrupt'}"
        why = _failure(result)
        ename = result.error.ename if result.error else None
        if cell.status == "error" and (cell.ename is None or cell.ename == ename):
            return "repeated", f"failed as before: {why}"
        if cell.may_fail:
            return "repeated", f"failed, as its tag allows: {why}"
        if ename == "NameError" and result.error and (found := _UNKNOWN_NAME.search(result.error.evalue)):
            maker = self._gone.get(found["name"])
            why = f"it needs `{found['name']}`, which cell {maker} makes" if maker else why
        return "failed", why


def _ended_early(cell: PastCell) -> tuple[Outcome, str] | None:
    """A cell that had not come to its own end is not repeated, whatever it does."""
    if cell.status == "aborted":
        return "skipped", "it never ran"
    if cell.ended_kernel:
        return "unfinished", "it had ended its kernel"
    if cell.interrupted is not None:
        return "unfinished", f"it was ended by {'its timeout' if cell.interrupted == 'timeout' else 'an interrupt'}"
    if cell.status == "unfinished":
        return "unfinished", "it had not ended when its session did"
    return None


def _told(
    number: int, cell: PastCell, outcome: Outcome, why: str | None, result: ExecutionResult | None = None
) -> ReplayedCell:
    head = clean_text(cell.source.strip().partition("\n")[0][:_HEAD_CHARS])
    said = clean_text(why[:_WHY_CHARS]) if why else None
    if result is None:
        return ReplayedCell(number, head, outcome, said)
    return ReplayedCell(number, head, outcome, said, result.execution_id, result.timing.run)


def _failure(result: ExecutionResult) -> str:
    """A failure in one line."""
    error = result.error
    text = f"{error.ename}: {error.evalue}" if error else f"exit code {result.exit_code}"
    return text.partition("\n")[0][:_WHY_CHARS]
