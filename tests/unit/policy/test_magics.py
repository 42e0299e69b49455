"""Commands that IPython's syntax brings into cells, and everyday cells that must not be taken for one.

The lists are files of one cell a line, where ``⏎`` is a line end.
"""

from __future__ import annotations

import pytest

from kernelexec.cells import CodeCell, parse
from kernelexec.rules.policy import CommandRules
from tests.unit.policy.test_evasions import commands

RULES = CommandRules()


@pytest.mark.parametrize("source", commands("cells_evasions.txt"))
def test_a_command_is_seen_whatever_magic_brings_it(source: str) -> None:
    assert RULES.check_cell(CodeCell(source)) is not None


@pytest.mark.parametrize("source", commands("cells_everyday.txt"))
def test_everyday_cells_may_run(source: str) -> None:
    assert RULES.check_cell(CodeCell(source)) is None
    assert RULES.check_cell(parse(source, limit_bytes=10_000)) is None
