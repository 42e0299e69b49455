"""Kills for lack of memory: the kernel was killed if there were more kills than it reported."""

from __future__ import annotations

import time

import pytest

from kernelexec.provisioning.container.container_state import OomCounter


@pytest.fixture
def kills() -> OomCounter:
    return OomCounter()


def test_the_first_unreported_kill_is_the_kernel(kills: OomCounter) -> None:
    assert kills.includes_kernel(1, flagged=True)


def test_without_any_kill_it_was_another_process(kills: OomCounter) -> None:
    assert not kills.includes_kernel(0, flagged=False)


def test_a_kill_that_the_kernel_reported_was_not_its_own(kills: OomCounter) -> None:
    kills.on_survived(1, 1)
    assert not kills.includes_kernel(1, flagged=True)
    assert kills.includes_kernel(2, flagged=True)


def test_reports_after_the_kernels_report_of_a_kill_are_of_that_kill(kills: OomCounter) -> None:
    kills.on_survived(2, 0)
    assert not kills.includes_kernel(2, flagged=True)
    assert kills.includes_kernel(3, flagged=True)


def test_news_that_never_came_excuse_no_later_kill(kills: OomCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    kills.on_survived(2, 1)
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kills.includes_kernel(2, flagged=True)


def test_the_engines_flag_counts_where_no_news_came_and_the_kernel_knew_of_no_kill(kills: OomCounter) -> None:
    assert kills.includes_kernel(0, flagged=True)
    kills.on_survived(1, 0)
    assert not kills.includes_kernel(0, flagged=True)
