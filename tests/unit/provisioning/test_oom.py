"""Who was killed for want of memory: a kernel is, where more were killed than it lived to tell of."""

from __future__ import annotations

import time

import pytest

from kernelexec.provisioning.container.oom import Kills


@pytest.fixture
def kills() -> Kills:
    return Kills()


def test_the_first_kill_that_nobody_lived_to_tell_of_is_the_kernel(kills: Kills) -> None:
    assert kills.was_one(1, flagged=True)


def test_without_any_kill_it_was_somebody_else(kills: Kills) -> None:
    assert not kills.was_one(0, flagged=False)


def test_a_kill_that_the_kernel_told_of_was_not_its_own(kills: Kills) -> None:
    kills.survived(1, 1)
    assert not kills.was_one(1, flagged=True)
    assert kills.was_one(2, flagged=True)


def test_news_that_come_after_the_kernel_told_of_the_kill_are_of_that_kill(kills: Kills) -> None:
    kills.survived(2, 0)
    assert not kills.was_one(2, flagged=True)
    assert kills.was_one(3, flagged=True)


def test_news_that_never_came_excuse_no_later_kill(kills: Kills, monkeypatch: pytest.MonkeyPatch) -> None:
    kills.survived(2, 1)
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kills.was_one(2, flagged=True)


def test_the_engines_flag_counts_where_no_news_came_and_the_kernel_knew_of_no_kill(kills: Kills) -> None:
    assert kills.was_one(0, flagged=True)
    kills.survived(1, 0)
    assert not kills.was_one(0, flagged=True)
