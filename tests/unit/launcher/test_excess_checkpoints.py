"""Which checkpoints are dropped when there are too many, or when they cost too much."""

from __future__ import annotations

import pytest

from kernelexec.launcher.checkpoints.costs import find_excess, find_excess_bytes


@pytest.mark.parametrize(
    ("numbers", "requested", "excess"),
    [
        ([1, 2, 3], [], []),
        ([1, 2, 3, 4, 5], [], [1, 2]),
        ([1, 2, 3, 4, 5], [1], [2, 3]),
        ([1, 2, 3, 4, 5], [1, 2, 3], [4]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4], [1]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 9], [1, 2]),
        ([], [1], []),
    ],
)
def test_automatic_ones_make_way_and_the_newest_of_them_stays(
    numbers: list[int], requested: list[int], excess: list[int]
) -> None:
    assert find_excess(numbers, requested, 3) == excess


@pytest.mark.parametrize(
    ("costs", "requested", "excess"),
    [
        ({1: 5, 2: 5}, [], []),
        ({1: 5, 2: 5, 3: 5}, [], [1]),
        ({1: 5, 2: 5, 3: 5}, [1], [2]),
        ({1: 5, 2: 5, 3: 20}, [1, 2, 3], [1, 2]),
        ({3: 20}, [], []),
        ({}, [], []),
    ],
)
def test_automatic_ones_go_first_if_all_cost_too_much(costs: dict[int, int], requested: list[int], excess: list[int]) -> None:
    assert find_excess_bytes(costs, requested, 10) == excess
