"""The order in which the system ends a kernel's checkpoints and commands when memory is short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelexec.launcher.processes import proc

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def own_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the places of those of this process and of another one."""
    monkeypatch.setattr(proc, "PROC", tmp_path)
    for name in ("self", "7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "oom_score_adj").write_text("0\n", encoding="ascii")
    proc.open_own_score()
    return tmp_path / "self" / "oom_score_adj"


@pytest.mark.parametrize(("used", "expected"), [(0.0, 800), (0.3, 500), (0.75, 50), (1.0, 50)])
def test_a_kernel_may_use_four_fifths_of_the_memory_before_it_is_ended_instead_of_its_checkpoint(
    own_score: Path, used: float, expected: int
) -> None:
    limit_pages = 100_000
    own_score.with_name("statm").write_text(f"999999 {round(used * limit_pages)} 0 0 0 0 0\n", encoding="ascii")
    assert proc.choose_checkpoint_score(limit_pages * PAGE_BYTES) == expected


def test_a_checkpoint_has_a_higher_score_than_its_kernel_also_where_that_is_high(own_score: Path) -> None:
    own_score.with_name("statm").write_text("1 1 0 0 0 0 0\n", encoding="ascii")
    for own, expected in ((150, 950), (400, 1000)):
        own_score.write_text(f"{own}\n", encoding="ascii")
        proc.open_own_score()
        assert proc.choose_checkpoint_score(None) == expected


def test_processes_started_within_the_block_inherit_the_score(own_score: Path) -> None:
    with proc.raise_oom_score():
        assert int(own_score.read_text(encoding="ascii").split()[0]) == 1000
    assert proc.read_own_score() == 0


def test_a_child_gets_the_score_of_this_process_or_another_one(own_score: Path) -> None:
    other = own_score.parents[1] / "7" / "oom_score_adj"
    proc.set_oom_score(7, proc.HIGHEST_OOM_SCORE)
    assert other.read_text(encoding="ascii") == "1000"
    proc.give_oom_score(7)
    assert int(other.read_text(encoding="ascii")) == 0
    proc.set_oom_score(8, 5)  # it has ended
