"""The replay of a recorded history in a new session, in order, with a report; the history is checked before anything starts.

A cell runs again if safe to repeat. A cell before a snapshot does not run again if the snapshot has all variables of the cell,
and the cell was slow, is unsafe to repeat, or uses a variable already loaded from the snapshot. Of such a cell the imports,
functions and classes run, and the variables are loaded. After the last cell before the snapshot all variables of the snapshot
are loaded, so changes in place are applied once.
"""

from __future__ import annotations

import io
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.records import journal
from kernelexec.records.notebook.notebook_io import FILE_BYTES, CellFile
from kernelexec.results import ExecutionFailed, ExecutionResult, Outcome, Replay, ReplayedCell, Restored
from kernelexec.rules.diagnosis import find_undefined_name
from kernelexec.rules.recorded_history import History, RecordedCell
from kernelexec.rules.replay_safety import SideEffectChecker, definitions, name_changes, reason_against, used_names
from kernelexec.session import AsyncSession
from kernelexec.text import clean_text, has_more_elements
from kernelexec.workspace.safe_files import read_regular

#: A cell of at most this duration in seconds is always run again, also if a snapshot has its variables.
QUICK_SECONDS = 1.0
#: Languages whose cells run in the Python kernel.
_IN_PYTHONS_PLACE = ("python", "javascript")
_REPLACED = "After cell {} a new kernel had replaced the old one: the state of the cells up to there was lost then."
_HEAD_CHARS, _REASON_CHARS = 60, 300
#: The recorded form of a secret in a cell's own text.
_MASKED = re.compile(r"[\[<(]secret [A-Za-z_]\w*[\])>]", re.ASCII)
_CONTAINED_MASK = "its text held a secret, which is not recorded"
#: The limits of a replay in cells, and of the elements of a notebook's JSON.
CELLS_MAX, _ELEMENTS_MAX = 10_000, 2_000_000


async def replay(
    session: AsyncSession, history: History, *, source: str, timeout: float, repeat_unsafe: bool = False
) -> Replay:
    """Repeat recorded cells in a session and return the report.

    Args:
        session: a new session.
        history: the recorded cells.
        source: the name of their source in the report.
        timeout: the timeout of each cell in seconds, or twice the recorded duration and 10 s if longer.
        repeat_unsafe: whether to run cells that are unsafe to repeat.

    Raises:
        InvalidRequest: the kernelspec of the recorded cells is not installed; nothing ran.
        Closed, KernelStartFailed: the session ended meanwhile, or a new kernel did not start.
    """
    if history.kernelspec is not None:
        await session.check_kernelspec(history.kernelspec)
    plans = await anyio.to_thread.run_sync(_make_plans, history.cells)
    player = _Player(session, history, timeout=timeout, repeat_unsafe=repeat_unsafe)
    for number, (cell, plan) in enumerate(zip(session.mask_history(history).cells, plans, strict=True), 1):
        await player.play(number, cell, plan)
        session.scope.check_open()
    return player.report(source)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The analysis of a cell's text: the reason against a repetition, the changes of names, and the definitions."""

    unsafe: str | None
    changes: dict[str, bool]
    used: frozenset[str]
    definitions: str
    defined_names: frozenset[str]

    @property
    def variables(self) -> frozenset[str]:
        """The variables bound by the cell, without definitions."""
        return frozenset(name for name, bound in self.changes.items() if bound) - self.defined_names


def _make_plans(recorded: tuple[RecordedCell, ...]) -> list[_Plan]:
    checker, plans = SideEffectChecker(), []
    for cell in recorded:
        unsafe = _CONTAINED_MASK if _MASKED.search(cell.source) else checker.reason(cell)
        source = cell.source if cell.kind == "code" and cell.language == "python" else ""
        code, defined_names = definitions(source)
        code = "" if code and reason_against(RecordedCell(code)) else code  # default values and decorators run, too
        plans.append(_Plan(unsafe, name_changes(source), used_names(source), code, defined_names))
    return plans


class _Player:
    """A replay in progress: the reports of cells, and the restored and missing names so far."""

    def __init__(self, session: AsyncSession, history: History, *, timeout: float, repeat_unsafe: bool) -> None:
        self._session = session
        self._snapshot = history.snapshot
        self._cells = history.cells  # as they run; those of ``play`` have masked texts, for the report
        self._covered = min(history.covered, len(history.cells)) if history.snapshot else 0
        self._timeout = timeout
        self._repeat_unsafe = repeat_unsafe
        self._reports: list[ReplayedCell] = []
        # Of each name the cell that bound it last in the recording; and the part of them that is not there again.
        self._makers: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._loaded_names: set[str] = set()
        self._notes = [*history.notes, *(_REPLACED.format(number) for number in history.replaced)]
        self._ended_at: int | None = None

    async def play(self, number: int, cell: RecordedCell, plan: _Plan) -> None:
        """Replay a cell; after the last cell before the snapshot, load all variables of the snapshot."""
        report = await self._play_cell(number, cell, plan)
        self._reports.append(report)
        if report.outcome != "skipped":
            self._track_names(number, plan, came_back=report.outcome in ("repeated", "restored"))
        if number == self._covered and self._ended_at is None:
            await self._load_all()
        if self._ended_at == number:  # with the kernel went all that earlier cells had made
            self._missing = dict(self._makers)

    def _track_names(self, number: int, plan: _Plan, *, came_back: bool) -> None:
        """Track which cell binds a name, and which names are missing."""
        for name, bound in plan.changes.items():
            self._makers.pop(name, None)
            self._missing.pop(name, None)
            if bound:
                self._makers[name] = number
            if bound and not came_back:
                self._missing[name] = number

    def report(self, source: str) -> Replay:
        """Return the report of the replay."""
        present = set(self._session.names)
        return Replay(
            source=clean_text(source),
            cells=tuple(self._reports),
            names=tuple(sorted(present & self._makers.keys())),
            missing=tuple(sorted(self._missing.keys() - present)),
            state_lost=self._ended_at is not None,
            notes=tuple(self._notes),
        )

    async def _play_cell(self, number: int, cell: RecordedCell, plan: _Plan) -> ReplayedCell:
        if ended_at := self._ended_at:
            return _report_cell(
                number, cell, "not_reached", f"cell {ended_at} ended the kernel: the state that it may need is gone"
            )
        if early_end := _early_end(cell):
            return _report_cell(number, cell, *early_end)
        unsafe = None if self._repeat_unsafe else plan.unsafe
        note = ""
        if number <= self._covered and self._can_restore(cell, plan, unsafe=unsafe is not None):
            failure = await self._restore_cell(number, plan)
            if failure is None:
                return _report_cell(number, cell, "restored", "its variables were loaded; other effects were not repeated")
            note = f"{failure}; "
        if self._ended_at == number:
            return _report_cell(number, cell, "failed", note + "the kernel ended")
        if unsafe is not None:
            return _report_cell(number, cell, "unsafe", note + unsafe)
        return await self._repeat(number, cell, note)

    def _can_restore(self, cell: RecordedCell, plan: _Plan, *, unsafe: bool) -> bool:
        """Return whether the snapshot has all variables bound or used by a cell, with a reason to load them."""
        assert self._snapshot is not None
        saved = {variable.name: variable for variable in self._snapshot.variables}
        unsaved = {left.name for left in self._snapshot.left_out if not left.defined}
        needed = self._names_to_load(plan)
        if cell.status == "error" or not needed or not plan.variables <= saved.keys() or plan.used & unsaved:
            return False
        slow = (cell.seconds or 0.0) > max(QUICK_SECONDS, sum(saved[name].seconds for name in needed))
        # A loaded variable has the changes of later cells already: to run the cell would apply them twice.
        return slow or unsafe or bool(plan.used & self._loaded_names)

    def _names_to_load(self, plan: _Plan) -> frozenset[str]:
        return (plan.variables | plan.used) & self._snapshot.names if self._snapshot is not None else frozenset()

    async def _restore_cell(self, number: int, plan: _Plan) -> str | None:
        """Run a cell's definitions and load the variables; return None, or the reason of a failure."""
        if plan.definitions:
            result = await self._session.execute(plan.definitions, timeout=self._timeout)
            if result.state == "lost":
                self._ended_at = number
            if not result.ok:
                return f"its definitions failed: {_failure(result)}"
        restored = await self._load(self._names_to_load(plan))
        if isinstance(restored, Restored) and not restored.missing:
            return None
        if isinstance(restored, str):
            self._ended_at = number if not self._session.names else None
            return f"its variables could not be loaded: {restored}"
        return f"{restored.missing[0].name} could not be loaded: {restored.missing[0].reason}"

    async def _load_all(self) -> None:
        assert self._snapshot is not None
        restored = await self._load(self._snapshot.names)
        if isinstance(restored, str):
            self._ended_at = self._covered if not self._session.names else None
            self._notes.append(f"The snapshot's variables were not loaded: {restored}.")
            return
        self._notes += [f"Not loaded from the snapshot: {left.name}: {left.reason}." for left in restored.missing]
        self._notes.append("Objects that several variables shared are separate copies now.")
        for name in restored.names:
            self._missing.pop(name, None)

    async def _load(self, names: frozenset[str]) -> Restored | str:
        """Load variables of the snapshot; return the reason if the kernel ended before the answer."""
        assert self._snapshot is not None
        seconds = sum(variable.seconds for variable in self._snapshot.variables if variable.name in names)
        try:
            restored = await self._session.restore(self._snapshot, names=names, timeout=self._timeout_for(seconds))
        except ExecutionFailed as exc:
            return str(exc)[:_REASON_CHARS]
        self._loaded_names.update(restored.names)
        return restored

    def _timeout_for(self, seconds: float | None) -> float:
        return self._timeout if seconds is None else max(self._timeout, seconds * 2 + 10)

    async def _repeat(self, number: int, cell: RecordedCell, note: str) -> ReplayedCell:
        try:
            result = await self._send(self._cells[number - 1])
        except InvalidRequest as exc:  # a directory that is no longer there
            return _report_cell(number, cell, "failed", note + str(exc))
        if result.state == "lost" and (cell.kind == "command" or cell.language in _IN_PYTHONS_PLACE):
            self._ended_at = number
        outcome, reason = self._judge_result(cell, result)
        return _report_cell(number, cell, outcome, note + reason if reason else note.rstrip("; ") or None, result)

    async def _send(self, cell: RecordedCell) -> ExecutionResult:
        """Execute a recorded cell."""
        timeout = self._timeout_for(cell.seconds)
        if cell.kind == "command":
            return await self._session.execute_command(
                cell.source, timeout=timeout, work_dir=cell.work_dir, stdin=cell.stdin, user=cell.user
            )
        return await self._session.execute(cell.source, language=cell.language, stdin=cell.stdin, timeout=timeout)

    def _judge_result(self, cell: RecordedCell, result: ExecutionResult) -> tuple[Outcome, str | None]:
        """Compare a result with the recorded outcome of the cell; return the outcome and a reason."""
        if result.state in ("restored", "lost"):
            how = "the kernel had ended before it" if result.ok else "it ended the kernel"
            notes = f": {' '.join(result.notes)}" if result.state == "restored" else ""
            return "failed" if result.state == "lost" or not result.ok else "repeated", f"{how} ({result.cause}){notes}"
        if result.ok:
            return "repeated", None
        if result.interrupted is not None:
            return "failed", f"it was ended by {'its timeout' if result.interrupted == 'timeout' else 'an interrupt'}"
        reason = _failure(result)
        ename = result.error.ename if result.error else None
        if cell.status == "error" and (cell.ename is None or cell.ename == ename):
            return "repeated", f"failed as before: {reason}"
        if cell.may_fail:
            return "repeated", f"failed, as its tag allows: {reason}"
        name = find_undefined_name(result.error)
        if maker := self._missing.get(name):
            reason = f"it needs `{name}`, which cell {maker} makes"
        return "failed", reason


def _early_end(cell: RecordedCell) -> tuple[Outcome, str] | None:
    """Return the outcome and reason of a cell that did not end by itself, or lacks a complete record; None for other cells."""
    if cell.omissions:
        return "failed", f"not recorded: its {cell.omissions}"
    if cell.status == "aborted":
        return "skipped", "it never ran"
    if cell.ended_kernel:
        return "unfinished", "it had ended its kernel"
    if cell.interrupted is not None:
        return "unfinished", f"it was ended by {'its timeout' if cell.interrupted == 'timeout' else 'an interrupt'}"
    if cell.status == "unfinished":
        return "unfinished", "it had not ended when its session did"
    return None


def _report_cell(
    number: int, cell: RecordedCell, outcome: Outcome, reason: str | None, result: ExecutionResult | None = None
) -> ReplayedCell:
    head = clean_text(cell.source.strip().partition("\n")[0][:_HEAD_CHARS])
    reason_text = clean_text(reason[:_REASON_CHARS]) if reason else None
    if result is None:
        return ReplayedCell(number, head, outcome, reason_text)
    return ReplayedCell(number, head, outcome, reason_text, result.execution_id, result.timing.run)


def _failure(result: ExecutionResult) -> str:
    """Return a short line about a failure."""
    error = result.error
    text = f"{error.ename}: {error.evalue}" if error else f"exit code {result.exit_code}"
    return text.partition("\n")[0][:_REASON_CHARS]


def read_history(path: str | os.PathLike[str], config: Config) -> History:
    """Read and check the cells of a notebook, script or journal. For a thread: a large file takes long.

    In a session's workspace, links to the outside are refused.

    Raises:
        InvalidRequest: the path is missing, not a file, too large, not a valid notebook, or has an invalid cell.
    """
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        message = f"notebook={path!r:.200}: must be the path of a notebook, a script or a journal."
        raise InvalidRequest(message)
    try:
        file = Path(path).expanduser()
        problem = _file_problem(file, config.absolute_workspace)
    except (OSError, ValueError, RuntimeError) as exc:
        message = f"notebook {str(path)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if problem is not None:
        message = f"notebook {str(path)!r} {problem}."
        raise InvalidRequest(message)
    history = journal.read_history(file) if file.suffix.lower() == journal.SUFFIX else _read_cell_file(file)
    if not _is_own_journal(file, config):
        history = replace(history, cells=tuple(cell.without_account() for cell in history.cells))
    if len(history.cells) > CELLS_MAX:
        message = f"notebook {str(path)!r} has {len(history.cells)} cells, the limit is {CELLS_MAX}: open a shorter one."
        raise InvalidRequest(message)
    for number, cell in enumerate(history.cells, 1):
        cells.check(cell.source, limit_bytes=config.capacity.code_bytes, label=f"cell {number} of {path}")
        if cell.stdin is not None:
            cells.check(cell.stdin, limit_bytes=config.capacity.code_bytes, label="stdin")
    return history


def _read_cell_file(file: Path) -> History:
    """Read a notebook or a script, which a cell may have written, and may still write."""
    try:
        text = io.TextIOWrapper(io.BytesIO(read_regular(file.resolve(), FILE_BYTES)), "utf-8-sig").read()
    except (OSError, UnicodeDecodeError) as exc:
        message = f"notebook {str(file)!r:.200} cannot be read: {getattr(exc, 'strerror', None) or exc}."
        raise InvalidRequest(message) from exc
    if file.suffix.lower() != ".ipynb":
        return CellFile.script(text).history
    if has_more_elements(text, _ELEMENTS_MAX):
        message = f"notebook {str(file)!r} has more than {_ELEMENTS_MAX:,} elements of JSON: clear its outputs."
        raise InvalidRequest(message)
    return CellFile.notebook(text, str(file)).history


def _is_own_journal(file: Path, config: Config) -> bool:
    """Return whether a file is among the journals of this executor's sessions, where no cell can write."""
    return file.resolve().parent == journal.journal_path(config.absolute_workspace.resolve(), "").parent


def _file_problem(file: Path, workspace: Path) -> str | None:
    info = file.stat()
    absolute = Path(os.path.abspath(file))  # noqa: PTH100 - without following links
    if absolute.is_relative_to(workspace) and absolute.parent != workspace:
        session_directory = (workspace / absolute.relative_to(workspace).parts[0]).resolve()
        if not file.resolve().is_relative_to(session_directory):
            return "leads out of the session's directory by a link, which cells may have created"
    if not stat.S_ISREG(info.st_mode):
        return "is no file: name a notebook or a script"
    if info.st_size > FILE_BYTES:
        return f"has {info.st_size} bytes, the limit is {FILE_BYTES}: clear its outputs"
    return None
