"""After which cells a checkpoint is made."""

from __future__ import annotations

import pytest

from kernelexec.launcher.checkpoints.costs import AutomaticCheckpoints, is_pure
from kernelexec.launcher.protocol import NOTHING_SOURCE, save_variables_source, set_values_source, write_values_source


@pytest.mark.parametrize("code", ["", "1 + 1", "x", "(a, b)", "[1, 2] if a < b else -c", "f'{x}'", "not a and b", "# text"])
def test_cells_that_only_compute_are_pure(code: str) -> None:
    assert is_pure(code)


@pytest.mark.parametrize(
    "code",
    ["x = 1", "f()", "x.y", "x[0]", "del x", "import os", "!ls", "%time x", "(y := 1)", "1 +", "x" * 2001, "await x", "\0"],
)
def test_all_other_cells_are_not(code: str) -> None:
    assert not is_pure(code)


def test_each_cell_of_the_user_has_one_and_each_request_that_sets_variables() -> None:
    rule = AutomaticCheckpoints("each")
    rule.note_cost(9.0)
    assert rule.wants("1 + 1", 0.001)
    assert not rule.wants(save_variables_source("d", None, 1), 0.001)
    assert not rule.wants(write_values_source("p", ["x"], 1), 0.001)
    assert not rule.wants(NOTHING_SOURCE, 0.001)
    assert rule.wants(set_values_source("p"), 0.001)


@pytest.mark.parametrize("mode", ["named", "off", None])
def test_other_modes_make_none(mode: str | None) -> None:
    assert not AutomaticCheckpoints(mode).wants("x = 1", 1.0)


def test_they_take_a_twentieth_of_the_time() -> None:
    rule = AutomaticCheckpoints("auto")
    assert rule.wants("x = 1", 0.0)  # its cost is not known
    assert not rule.wants("x", 0.0)
    rule.note_cost(0.08)  # 0.02 of those for the start are left
    assert [rule.wants("x = 1", now) for now in (0.4, 1.0, 1.19, 1.21)] == [False, False, False, True]


def test_the_first_cells_may_follow_each_other_quickly() -> None:
    rule, answers = AutomaticCheckpoints("auto"), []
    for _ in range(20):
        answers.append(rule.wants("x = 1", 0.0))
        if answers[-1]:
            rule.note_cost(0.011)
    assert answers.index(False) == 9


def test_forks_may_follow_each_other_quickly_after_a_pause() -> None:
    rule, answers = AutomaticCheckpoints("auto"), []
    rule.wants("x = 1", 0.0)
    rule.note_cost(0.02)
    for number in range(100):
        answers.append(rule.wants("x = 1", 1000.0 + number / 1000))
        if answers[-1]:
            rule.note_cost(0.02)
    assert answers.index(False) == 50  # one second of forks was saved up


def test_a_fork_that_took_very_long_is_tried_again() -> None:
    rule = AutomaticCheckpoints("auto")
    rule.wants("x = 1", 0.0)
    rule.note_cost(3.0)
    assert [rule.wants("x = 1", now) for now in (1.0, 59.0, 61.0)] == [False, False, True]
