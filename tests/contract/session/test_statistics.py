"""What calls take: each is counted, and all together are what they add up to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelexec import CallStatistics, Executor, Statistics
from kernelexec.results import StatisticsAccumulator
from tests.support.engine import IMAGE, needs_engine


def call(number: int, *, success: bool = True, took: float = 1.0) -> CallStatistics:
    return CallStatistics(str(number), "python", success, took, cpu_seconds=0.5, peak_memory_bytes=number, output_bytes=2)


def test_without_calls_there_are_no_shares() -> None:
    actual = StatisticsAccumulator(2).statistics
    assert actual == Statistics()
    assert (actual.success_rate, actual.p50, actual.p95, actual.peak_memory_bytes) == (None, None, None, None)


def test_all_are_counted_and_the_newest_remembered() -> None:
    tally = StatisticsAccumulator(20)
    for number in range(1, 31):
        tally.add(call(number, success=number % 3 != 0, took=float(number)))
    actual = tally.statistics
    assert (actual.count, actual.succeeded, actual.success_rate) == (30, 20, 20 / 30)
    assert (actual.execution_time, actual.cpu_seconds, actual.peak_memory_bytes, actual.output_bytes) == (465, 15, 30, 60)
    assert [item.execution_id for item in actual.calls] == [str(number) for number in range(11, 31)]
    assert (actual.p50, actual.p95) == (20, 29)  # of 11 to 30
    answer = json.loads(json.dumps(actual.to_dict()))
    assert (answer["count"], answer["p50"], answer["calls"][-1]["execution_time"]) == (30, 20, 30)


@pytest.mark.parametrize(("count", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (20, 10, 19), (100, 50, 95)])
def test_percentiles_are_of_the_nearest_rank(count: int, p50: float, p95: float) -> None:
    tally = StatisticsAccumulator(100)
    for number in range(count, 0, -1):
        tally.add(call(number, took=float(number)))
    assert (tally.statistics.p50, tally.statistics.p95) == (p50, p95)


def test_a_session_counts_what_ran(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        assert session.statistics == Statistics()
        session.execute("print('abc')")
        session.execute("1 / 0", timeout=7)
        session.execute_command("rm -rf /")
        session.execute_command("echo a")
        actual = session.statistics
    assert [(item.success, item.language, item.timeout) for item in actual.calls] == [
        (True, "python", 60),
        (False, "python", 7),
        (True, "bash", 60),
    ]
    assert (actual.count, actual.succeeded) == (3, 2)
    assert actual.calls[0].output_bytes == 4
    assert all(item.execution_time > 0 and item.peak_memory_bytes and item.cpu_seconds is not None for item in actual.calls)
    assert {(item.complexity, item.memory_limit, item.cpu_limit) for item in actual.calls} == {(None, None, None)}


@needs_engine
def test_a_call_says_what_it_was_allowed(tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE}, "profile": "simple"}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session()
        session.execute("x = 1")
        session.set_limits("medium")
        assert session.execute("x").text == "1"
        first, second = session.statistics.calls
    mib = 1024 * 1024
    assert (first.complexity, first.memory_limit, first.cpu_limit, first.timeout) == ("simple", 256 * mib, 0.5, 30)
    assert (second.complexity, second.memory_limit, second.cpu_limit, second.timeout) == ("medium", 512 * mib, 1.0, 120)
