"""The choice of the cells to run again while other tasks forget cells."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Config, ExecutionResult
from kernelexec.cells import CodeCell
from kernelexec.events import CellExecuted, CellStarted
from kernelexec.rules.replay_safety import SideEffectChecker
from kernelexec.session.cells.cell_repeats import CellRepeats
from kernelexec.session.cells.cell_run import CellRun


def test_cells_may_be_forgotten_while_they_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[str, CellRun] = {}
    repeats, kernel = CellRepeats(Config(), tmp_path, runs), object()
    judge, repeated = SideEffectChecker.reason, list[str]()

    def judge_and_forget(checker: SideEffectChecker, cell: Any) -> str | None:
        repeats.forget_state()
        return judge(checker, cell)

    async def run(_: CellRepeats, _kernel: object, run: CellRun, _seconds: float) -> None:
        repeated.append(run.execution_id)

    monkeypatch.setattr(SideEffectChecker, "reason", judge_and_forget)
    monkeypatch.setattr(CellRepeats, "_run", run)

    async def main() -> None:
        for number in (1, 2):
            cell = CodeCell(f"x = {number}")
            added = CellRun(cell=cell, masked_cell=cell, timeout=1.0, isolation="local")
            runs[added.execution_id] = added
            result = ExecutionResult(added.execution_id, "s", "ok", execution_count=number)
            added.result = result
            repeats(CellStarted("s", added.execution_id, cell, 1))
            repeats(CellExecuted("s", cell, result))
        await repeats.repeat(kernel, 1, "", 3, is_accused=False)  # type: ignore[arg-type]

    asyncio.run(main())
    assert repeated == list(runs)
