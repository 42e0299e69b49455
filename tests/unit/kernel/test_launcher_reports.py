"""Processes that were killed for want of memory, and those of them that were checkpoints."""

from __future__ import annotations

from kernelexec.kernel.launcher_reports import Usage


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
