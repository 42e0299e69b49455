"""The time in which a cell's input requests are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernelexec.cells import CodeCell
from kernelexec.config import OutputLimits
from kernelexec.kernel.execution import Execution
from kernelexec.outputs import Collector
from kernelexec.session.cells.cell_requests import answer_input_requests
from kernelexec.session.cells.cell_run import CellRun


def test_after_a_failure_no_request_waits_for_an_answer() -> None:
    cell = CodeCell("input()")
    execution = Execution("m", Collector(OutputLimits()), Collector(OutputLimits()), lambda: 0.0)
    kernel: Any = None

    async def fail() -> None:
        run = CellRun(cell=cell, masked_cell=cell, timeout=1.0, isolation="local", on_input=lambda _: "")
        async with answer_input_requests(run, kernel, execution, session="s", seconds=1.0):
            assert execution.on_input_request is not None
            raise LookupError

    with pytest.raises(ExceptionGroup):
        asyncio.run(fail())
    assert execution.on_input_request is None
