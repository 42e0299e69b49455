"""A control group of either version says how much memory is used, and a thread that looks at it sleeps while no cell runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelexec.launcher.features import memory_monitor
from kernelexec.launcher.features.memory_monitor import CGroup, MemoryMonitor
from tests.support.pace import BOUND, until

FILES = {
    1: {
        "memory.usage_in_bytes": "{used}\n",
        "memory.limit_in_bytes": "{limit}\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
        "memory.stat": "inactive_file 7\ntotal_inactive_file {idle}\n",
    },
    2: {
        "memory.current": "{used}\n",
        "memory.max": "{limit}\n",
        "memory.events": "low 0\nhigh 0\nmax 3\noom 3\noom_kill {kills}\n",
        "memory.stat": "anon 5\ninactive_file {idle}\n",
    },
}
NONE = {1: "9223372036854771712", 2: "max"}


@pytest.fixture(params=FILES)
def version(request: pytest.FixtureRequest) -> int:
    actual: int = request.param
    return actual


def write(directory: Path, version: int, **message: object) -> CGroup:
    for name, text in FILES[version].items():
        (directory / name).write_text(text.format(**{"used": 10, "limit": 1000, "kills": 0, "idle": 0, **message}))
    return CGroup(directory, memory_monitor._FILES[version - 1])


def test_a_group_says_what_is_used_of_how_much(tmp_path: Path, version: int) -> None:
    group = write(tmp_path, version, used=900, idle=300, kills=4)
    assert (group.read_limit(), group.read_usage(1000), group.read_kills()) == (1000, 600, 4)


def test_no_limit_is_none(tmp_path: Path, version: int) -> None:
    assert write(tmp_path, version, limit=NONE[version]).read_limit() is None


def test_missing_control_files_are_read_as_nothing(tmp_path: Path, version: int) -> None:
    group = CGroup(tmp_path / "gone", memory_monitor._FILES[version - 1])
    assert (group.read_limit(), group.read_usage(1000), group.read_kills()) == (None, 0, 0)


def test_the_innermost_group_with_a_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, inner = tmp_path / "memory", tmp_path / "memory" / "a" / "b"
    inner.mkdir(parents=True)
    for directory, limit in ((base, NONE[1]), (inner.parent, "500"), (inner, NONE[1])):
        write(directory, 1, limit=limit)
    groups = tmp_path / "cgroup"
    groups.write_text("9:name=systemd:/a\n4:memory:/a/b\n0::/\n")
    monkeypatch.setattr(memory_monitor, "_BASES", (base, tmp_path))
    monkeypatch.setattr(memory_monitor, "_GROUPS", groups)
    actual = memory_monitor.find_limited_cgroup()
    assert actual is not None
    assert actual.read_limit() == 500


def test_the_biggest_variables_are_looked_for_when_usage_has_grown_only(tmp_path: Path, version: int) -> None:
    looks: list[int] = []

    def biggest() -> list[tuple[str, int]]:
        looks.append(1)
        return [("x", 5)]

    actual = MemoryMonitor(write(tmp_path, version), biggest, lambda _: None)
    for used, expected in ((10, 0), (100, 1), (110, 1), (600, 2), (590, 2), (810, 3), (815, 3)):
        write(tmp_path, version, used=used)
        reported: Any = actual.end_cell()
        assert (reported["used"], reported["high"], len(looks)) == (used, used >= 800, expected)


def test_without_a_limit_there_is_no_thread_and_nothing_is_reported() -> None:
    before = {*threading.enumerate()}
    actual = MemoryMonitor(None, list, lambda _: None)
    actual.begin_cell()
    assert actual.end_cell() is None
    assert {*threading.enumerate()} <= before


def test_the_thread_looks_while_a_cell_runs_and_sleeps_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_monitor, "TICK_SECONDS", 0.01)
    message: list[Any] = []
    reported = threading.Event()
    looks: list[int] = []

    class Counting(CGroup):
        def read_usage(self, limit: int) -> int:
            looks.append(1)
            return super().read_usage(limit)

    write(tmp_path, 1, used=900)

    def say(use: object) -> None:
        message.append(use)
        reported.set()

    actual = MemoryMonitor(Counting(tmp_path, memory_monitor._FILES[0]), lambda: [("x", 5)], say)
    assert looks == []
    actual.begin_cell()
    assert reported.wait(BOUND)
    assert message == [{"used": 900, "limit": 1000, "high": True, "kills": 0, "biggest": [("x", 5)]}]
    actual.end_cell()
    until(lambda: actual._is_sleeping)
    seen = len(looks)
    time.sleep(0.2)  # for looks that must not come: a slow machine only finds fewer
    assert len(looks) == seen
