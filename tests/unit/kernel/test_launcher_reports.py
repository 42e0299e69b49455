"""Reports of a launcher: processes that were killed for want of memory, and the number of variables."""

from __future__ import annotations

import pytest

from kernelexec.kernel.launcher_reports import Usage, VariableNames


def report(kills: int, checkpoints: int | None = None) -> dict[str, object]:
    known = {} if checkpoints is None else {"checkpoints": checkpoints}
    return {"used": 90, "limit": 100, "high": True, "kills": kills, "biggest": [], **known}


def test_killed_checkpoints_are_counted_apart_also_where_only_the_last_report_knows_them() -> None:
    usage = Usage(lambda: None)
    usage.begin_cell()
    usage.update(report(3))
    assert (usage.killed, usage.killed_checkpoints) == (3, 0)
    usage.update(report(3, 2))
    assert (usage.killed, usage.killed_checkpoints) == (1, 2)
    usage.begin_cell()
    usage.update(report(4, 3))
    assert (usage.killed, usage.killed_checkpoints) == (0, 1)


def test_no_report_counts_more_checkpoints_than_processes() -> None:
    usage = Usage(lambda: None)
    usage.begin_cell()
    usage.update(report(1, 5))
    assert (usage.killed, usage.killed_checkpoints) == (0, 1)


@pytest.mark.parametrize("count", [10**30, 2**63, -1, True, 1.5, "2", None])
def test_a_number_of_variables_that_is_no_count_is_that_of_the_known_ones(count: object) -> None:
    names = VariableNames()
    names.update({"names_added": ["x", "y"], "names_count": count})
    assert names.count == 2
