"""Commands that IPython's syntax brings into cells, and everyday cells that must not be taken for one.

The lists are files of one cell a line, where ``⏎`` is a line end.
"""

from __future__ import annotations

from time import perf_counter

import pytest

from kernelexec.cells import CodeCell, parse
from kernelexec.policy import CommandRules
from tests.unit.policy.test_evasions import commands

RULES = CommandRules()
ORDINARY = "import numpy as np\n\ndef area(radius):\n    return np.pi * radius**2\n\n!ls -la | head\nprint(area(3))\n"


@pytest.mark.parametrize("source", commands("cells_evasions.txt"))
def test_a_command_is_seen_whatever_magic_brings_it(source: str) -> None:
    assert RULES.check_cell(CodeCell(source)) is not None


@pytest.mark.parametrize("source", commands("cells_everyday.txt"))
def test_everyday_cells_may_run(source: str) -> None:
    assert RULES.check_cell(CodeCell(source)) is None
    assert RULES.check_cell(parse(source, limit_bytes=10_000)) is None


def test_an_ordinary_cell_is_judged_in_less_than_a_millisecond() -> None:
    def once() -> float:
        begin = perf_counter()
        assert RULES.check_cell(CodeCell(ORDINARY)) is None
        return perf_counter() - begin

    assert min(once() for _ in range(20)) < 1e-3
