"""Which checkpoints are before the present state, after ways back and forth."""

from __future__ import annotations

from kernelexec.session.kernels.starts import Lineage


def past(lineage: Lineage, newest: int) -> list[int]:
    return [number for number in range(1, newest + 1) if lineage.has(number)]


def test_without_a_way_back_all_are() -> None:
    assert past(Lineage(), 5) == [1, 2, 3, 4, 5]


def test_cells_of_an_abandoned_state_are_no_ancestors() -> None:
    lineage = Lineage()
    lineage.go_to(2, newest=4)
    assert past(lineage, 6) == [1, 2, 5, 6]
    lineage.go_to(5, newest=6)
    assert past(lineage, 8) == [1, 2, 5, 7, 8]


def test_a_state_that_was_left_can_be_the_present_one_again() -> None:
    lineage = Lineage()
    lineage.go_to(1, newest=3)
    lineage.go_to(3, newest=4)
    assert past(lineage, 6) == [1, 2, 3, 5, 6]


def test_the_same_checkpoint_serves_many_times() -> None:
    lineage = Lineage()
    for newest in (3, 3, 4):
        lineage.go_to(2, newest)
    assert past(lineage, 6) == [1, 2, 5, 6]
