"""The safe cells to run again when a session goes on from a checkpoint before them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from kernelexec.cells import Cell, ShellCell, original_source
from kernelexec.config import Config
from kernelexec.events import BranchPromoted, CellAborted, CellExecuted, CellStarted, Event, StateRestored
from kernelexec.kernel import Kernel
from kernelexec.launcher.protocol import METADATA_KEY
from kernelexec.outputs import Collector
from kernelexec.results import ExecutionResult
from kernelexec.results.outputs import last_error
from kernelexec.rules.recorded_history import CellLineage, RecordedCell
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.result_builder import decide_status
from kernelexec.session.kernels.escalation import escalate
from kernelexec.session.kernels.starts import RepeatedCells
from kernelexec.session.kernels.verdict import Verdict

if TYPE_CHECKING:
    from kernelexec.rules.replay_safety import OutsideUse

#: The most seconds that the cells that run again may have taken together, since the caller waits for them; they get twice as
#: much, and a fixed time, for a machine that is busier by now. And the most cells.
SECONDS_MAX, _FACTOR, _FIXED_SECONDS = 5.0, 2, 2.0
_CELLS_MAX = 200
#: The text of all cells together, and of one, that is judged, in characters: names are followed in quadratic time.
_TEXT_MAX, _CELL_MAX = 128 * 1024, 8000
_SET_OUTSIDE = "variables were set from outside of a cell before it"
_ENDED_KERNEL = "the kernel ended after it had run again"
_ENDS = {"timeout": "it was ended by its timeout", "request": "it was ended by an interrupt"}


@dataclass(frozen=True, slots=True)
class _Known:
    """The known facts of a cell. Without a ``cell`` this is a change of variables from outside of cells."""

    cell: RecordedCell | None
    number: int | None = None
    seconds: float = 0.0
    made_files: bool = False
    """Whether the cell made or changed files of the workspace."""
    has_ended: bool = True
    was_run: bool = True


_CHANGE, _NO_TEXT = _Known(None), RecordedCell("")


class CellRepeats:
    """The repeater of a session's Python cells, and a hook to follow the cells."""

    def __init__(self, config: Config, workspace: Path, runs: Mapping[str, CellRun]) -> None:
        self._config, self._workspace = config, workspace
        self._runs = runs
        self._lineage = CellLineage()
        self._known: dict[str, _Known] = {}
        self._text_size = 0
        self._is_whole = True
        self._refused: dict[str, str] = {}
        """The cells not to run again, with the reasons."""
        self._repeated: set[str] = set()

    def __call__(self, event: Event, /) -> None:
        """Follow the cells of the Python kernel."""
        match event:
            case CellStarted(cell=cell, execution_id=execution_id) if cell.kernel == "python":
                self._add(execution_id, _Known(_record(cell), has_ended=False))
            case CellExecuted(result=result) | CellAborted(result=result) if result.execution_id in self._known:
                self._known[result.execution_id] = _finish(self._known[result.execution_id], result)
            case StateRestored(after=after):
                self._lineage.go_back(after)
            case BranchPromoted(after=after):
                self._lineage.go_back(after)
                self.note_change()

    def note_change(self) -> None:
        """Note a change of variables from outside of cells."""
        self._add(uuid.uuid4().hex, _CHANGE)

    def forget_state(self) -> None:
        """Note the start of a new kernel without the previous variables."""
        self._lineage, self._is_whole, self._text_size = CellLineage(), True, 0
        for kept in (self._known, self._refused, self._repeated):
            kept.clear()

    async def plan(self, cell: int, after: str, until: float) -> tuple[RepeatedCells, list[CellRun], Sequence[str]]:
        """Return the cells to run again after a checkpoint before ``cell``, with the next cell's obstacle; see ``repeat``.

        The second item is the runs of these cells, the third the execution ids of the other cells.
        """
        chain = [name for name in self._lineage.active if self._known[name].was_run]
        begin = len(chain) - len(self._find_since(chain, cell, after))
        if until <= cell or not any(self._known[name].has_ended for name in chain[begin:]):
            return RepeatedCells(cell, after), [], ()
        # during the thread, hooks and other tasks may forget cells: hence the list, and ``get`` from here on
        all_known = [self._known[name] for name in chain]
        reasons = await anyio.to_thread.run_sync(self._judge, chain, all_known, begin)
        runs, obstacle = list[CellRun](), ""
        for execution_id, reason in zip(chain[begin:], reasons, strict=False):
            known, run = self._known.get(execution_id, _CHANGE), self._runs.get(execution_id)
            if not known.has_ended or (cell + len(runs) >= until and known.cell is not None):
                break
            obstacle = reason or self._refused.get(execution_id, "")
            if obstacle or run is None:
                break
            runs.append(run)
        return RepeatedCells(cell, after, len(runs), obstacle), runs, chain[begin + len(runs) :]

    async def can_begin(self, *, is_accused: bool) -> bool:
        """Return whether the first cell can run again; see ``CellRepeater``."""
        _, runs, _ = await self.plan(1, "", 2)
        return bool(runs) and not (is_accused and runs[0].execution_id in self._repeated)

    def _find_since(self, chain: Sequence[str], cell: int, after: str) -> Sequence[str]:
        """Return the end of the chain after a checkpoint, by the numbers of cells if another client's cell precedes it."""
        if not after or after in chain:
            return chain[chain.index(after) + 1 :] if after else chain
        numbers = (self._known[name].number for name in chain)
        index = next((index for index, number in enumerate(numbers) if (number or 0) >= cell), len(chain))
        while index and self._known[chain[index - 1]].cell is None:
            index -= 1
        return chain[index:]

    async def _list_older(self, kernel: Kernel, execution_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the kernel's variables bound by the given cells, according to the text of the cells."""
        left = [known.cell for name in execution_ids if (known := self._known.get(name)) is not None and known.has_ended]
        names = await anyio.to_thread.run_sync(_list_names, left)
        return tuple(sorted(kernel.variable_names.known & names))

    async def repeat(self, kernel: Kernel, cell: int, after: str, until: float, *, is_accused: bool) -> RepeatedCells:
        """Run cells again; see ``CellRepeater``."""
        plan, runs, others = await self.plan(cell, after, until)
        seconds = sum(self._known.get(run.execution_id, _CHANGE).seconds for run in runs) * _FACTOR + _FIXED_SECONDS
        until_time = anyio.current_time() + seconds
        for count, run in enumerate(runs):
            is_first = run.execution_id not in self._repeated or not is_accused
            # before the run: if the cell ends the kernel now, the next try must find its mark and not run it a third time
            self._repeated.add(run.execution_id)
            failure = await self._run(kernel, run, until_time - anyio.current_time()) if is_first else _ENDED_KERNEL
            if failure:
                self._refused[run.execution_id] = failure
                before = runs[count - 1].execution_id if count else after
                older_names = await self._list_older(kernel, [*(run.execution_id for run in runs[count:]), *others])
                return RepeatedCells(cell, before, count, failure, older_names, has_failed=is_first)
        older_names = await self._list_older(kernel, others) if plan.obstacle else ()
        return replace(plan, after=runs[-1].execution_id if runs else after, older_names=older_names)

    def _add(self, execution_id: str, known: _Known) -> None:
        self._lineage.add(execution_id)
        self._text_size += len(known.cell.source) if known.cell is not None else 0
        self._is_whole &= self._text_size <= _TEXT_MAX
        # above the limit the text is dropped for memory's sake; ``_judge`` then refuses every later cell as not whole
        self._known[execution_id] = known if self._is_whole else replace(known, cell=_NO_TEXT)

    def _judge(self, chain: Sequence[str], all_known: Sequence[_Known], begin: int) -> list[str]:
        """Return an empty text for each safe cell from ``begin`` on; the last item is the reason against the first unsafe cell.

        For a thread, since all cells are parsed.
        """
        from kernelexec.rules.replay_safety import OutsideUse, SideEffectChecker  # noqa: PLC0415 - few sessions go back

        checker, use, reasons, seconds, number = SideEffectChecker(), OutsideUse(self._has_module), list[str](), 0.0, 0
        is_whole, later = self._is_whole, all_known[begin:]
        for index, (execution_id, known) in enumerate(zip(chain, all_known, strict=True)):
            run = self._runs.get(execution_id)
            has_ended, unsafe, cell = known.has_ended, None, known.cell
            if cell is not None:
                number += 1
                is_whole &= (not has_ended or known.number == number) and len(cell.source) <= _CELL_MAX
            if cell is not None and is_whole:
                if index < begin:
                    checker.learn(cell)
                else:
                    unsafe = checker.reason(cell)
                if cell.kind == "code":
                    use.learn(cell.source)
            if index < begin or (cell is not None and not has_ended):
                continue
            later, seconds = later[1:], seconds + known.seconds
            is_long = seconds > SECONDS_MAX or index - begin >= _CELLS_MAX
            reason = _SET_OUTSIDE if cell is None else _find_reason(cell, run, is_whole=is_whole, is_long=is_long) or unsafe
            reasons.append(reason or _find_difference(known, later, use, is_new=not begin))
            if reasons[-1]:
                break
        return reasons

    def _has_module(self, name: str) -> bool:
        return (self._workspace / f"{name}.py").exists() or (self._workspace / name).is_dir()

    async def _run(self, kernel: Kernel, run: CellRun, seconds: float) -> str | None:
        """Run a cell again; return a clause on a different outcome, or None."""
        output, result = self._config.output, run.result
        assert result is not None
        collector, late = (Collector(each, displays=kernel.displays, widgets=kernel.widgets) for each in (output, output.late))
        overruled, msg_id = run.rules_overridden, run.execution_id
        execution = kernel.submit(run.cell.request, collector, late, overruled=overruled, msg_id=msg_id)
        await execution.wait_for_turn(max(seconds, 0.0))
        if not execution.ended.is_set():
            await escalate(kernel, execution, self._config.budgets)
            return "it did not end in time when it ran again"
        if not kernel.confirms_state(execution):
            return "the kernel ended when it ran again"
        execution.settle()
        reply, report = execution.reply or {}, execution.reply_metadata.get(METADATA_KEY)
        outputs = collector.outputs()
        status, _ = decide_status(run.cell, reply, Verdict(), report if isinstance(report, dict) else {}, outputs)
        before, now = last_error(result.outputs), last_error(outputs)
        if status == result.status and (status == "ok" or (before and before.ename) == (now and now.ename)):
            return None
        return f"it ended otherwise when it ran again ({status if now is None else now.ename})"


def _find_reason(cell: RecordedCell, run: CellRun | None, *, is_whole: bool, is_long: bool) -> str:
    """Return the reason against a cell apart from its code; empty if none."""
    reasons = {
        "the cells before it are not all known, or too long to be judged": not is_whole,
        "it is not remembered any more": run is None or run.result is None,
        "it asks for input": run is not None and run.on_input is not None,
        _ENDS.get(cell.interrupted or "", ""): cell.interrupted is not None,
        f"its {cell.omissions}": bool(cell.omissions),
        f"the cells since the checkpoint took more than {SECONDS_MAX:g} s, or are more than {_CELLS_MAX}": is_long,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _find_difference(known: _Known, later: Sequence[_Known], use: OutsideUse, *, is_new: bool) -> str:
    """Return why a cell may have other values or effects than before, according to its text; empty if none are expected.

    Args:
        known: the cell.
        later: the cells after this cell.
        use: the judge of these cells.
        is_new: whether the cell runs in a new kernel.
    """
    assert known.cell is not None
    if reason := use.explain_difference(known.cell.source, is_new=is_new):
        return reason
    reads = use.reads_files(known.cell.source)
    if (reads or known.made_files) and any(
        cell.made_files or (cell.cell is not None and use.changes_files(cell.cell.source)) for cell in later
    ):
        return "it may use files, and some may have changed since"
    return "it may read a file and change it" if reads and known.made_files else ""


def _list_names(recorded: Sequence[RecordedCell | None]) -> set[str]:
    """Return the names bound by cells, according to their text."""
    from kernelexec.rules.replay_safety import name_changes  # noqa: PLC0415 - as above

    return {name for cell in recorded if cell is not None and cell.kind == "code" for name in name_changes(cell.source)}


def _record(cell: Cell) -> RecordedCell:
    if not isinstance(cell, ShellCell) or not cell.persistent:
        return RecordedCell(cell.source)
    omissions = "options of its own are not recorded" if cell.options is not None or cell.stdin is not None else ""
    return RecordedCell(original_source(cell), "command", cell.language, omissions=omissions)


def _finish(known: _Known, result: ExecutionResult) -> _Known:
    assert known.cell is not None
    error = last_error(result.outputs)
    cell = replace(
        known.cell,
        status="ok" if result.ok else "error",
        interrupted=result.interrupted,
        ename=None if error is None else error.ename,
    )
    return replace(
        known,
        cell=cell,
        number=result.execution_count,
        seconds=result.timing.run,
        made_files=bool(result.files),
        has_ended=True,
        was_run=result.status in ("ok", "error") and not result.cached,
    )
