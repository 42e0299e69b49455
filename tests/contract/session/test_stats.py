"""A living session says what it uses: memory, processor time, processes, and where it runs."""

from __future__ import annotations

import pytest

from kernelexec import Closed, Executor, Session
from kernelexec.docker.running_container import usage_figures
from kernelexec.results.usage import LargeVariable, MemoryUse, format_size
from tests.support.low_memory import MIB, Tight
from tests.support.pace import RunningCell

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_the_figures_follow_the_work", "test_where_it_runs_is_reported")

#: The tests count memory and processes, while a checkpoint may just begin.
CHECKPOINTS = "named"


def test_the_figures_follow_the_work(session: Session) -> None:
    before = session.stats()
    session.execute("x = bytearray(b'x') * 100_000_000\nimport time\nend = time.process_time() + 0.5")
    session.execute("while time.process_time() < end: pass")
    after = session.stats()
    assert before.memory_bytes is not None
    assert after.memory_bytes is not None
    assert after.memory_bytes - before.memory_bytes > 80_000_000
    assert before.cpu_seconds is not None
    assert after.cpu_seconds is not None
    assert after.cpu_seconds - before.cpu_seconds > 0.4
    assert after.cpu_percent is not None
    assert after.cpu_percent > 0
    assert (after.kernel, after.kernel_epoch) == ("idle", 1)
    assert after.uptime_seconds is not None
    assert before.uptime_seconds is not None
    assert after.uptime_seconds > before.uptime_seconds


def test_processes_started_by_the_kernel_count(session: Session) -> None:
    before = session.stats().pids
    session.execute("import subprocess\nchildren = [subprocess.Popen(['sleep', '600']) for _ in range(5)]")
    during = session.stats().pids
    session.execute("for child in children: child.kill(); child.wait()")
    assert before is not None
    assert during is not None
    assert during >= before + 5


def test_a_running_cell_is_seen(session: Session) -> None:
    cell = RunningCell(session, "import time\nprint('begun', flush=True)\ntime.sleep(600)", timeout=600)
    assert session.stats().kernel == "busy"
    session.interrupt()
    assert cell.result().interrupted == "request"
    assert session.stats().kernel == "idle"


def test_without_a_kernel_there_are_no_figures(session: Session) -> None:
    session.execute("import os; os._exit(3)")
    actual = session.stats()
    assert (actual.kernel, actual.memory_bytes, actual.cpu_percent, actual.pids) == ("none", None, None, None)


def test_a_closed_session_has_none(executor: Executor) -> None:
    session = executor.session("short")
    session.close()
    with pytest.raises(Closed):
        session.stats()


def test_where_it_runs_is_reported(session: Session) -> None:
    actual = session.stats()
    assert actual.isolation == session.execute("1").isolation
    assert (actual.container is None) == (actual.isolation == "local")
    assert actual.to_dict()["kernel"] == "idle"


def test_the_limit_is_among_the_figures(tight: Tight) -> None:
    session = tight.session(128 * MIB)
    session.execute("1")
    actual = session.stats()
    assert actual.memory_limit_bytes == 128 * MIB
    assert actual.memory_bytes is not None
    assert 10 * MIB < actual.memory_bytes < 128 * MIB


def test_a_kernel_without_a_limit_has_no_thread_for_it(session: Session) -> None:
    has = session.execute("import threading\nprint('memory' in [thread.name for thread in threading.enumerate()])")
    limited = session.stats().memory_limit_bytes is not None
    assert has.stdout == f"{limited}\n"


INSPECTED = {
    "Id": "ab" * 32,
    "Name": "/kernelexec-a",
    "Config": {"Image": "an-image"},
    "HostConfig": {"Memory": 64 * MIB, "NanoCpus": 500_000_000, "PidsLimit": 256, "NetworkMode": "none"},
}


@pytest.mark.parametrize("word", ["total_inactive_file", "inactive_file"])
def test_reports_of_the_engine_become_figures(word: str) -> None:
    memory = {"usage": 50 * MIB, "stats": {word: 10 * MIB}}
    used = {"memory_stats": memory, "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}}, "pids_stats": {"current": 7}}
    actual = usage_figures(used, INSPECTED)
    assert (actual.memory_bytes, actual.memory_limit_bytes, actual.cpu_seconds, actual.cpus) == (40 * MIB, 64 * MIB, 2.5, 0.5)
    assert (actual.pids, actual.pids_limit, actual.container, actual.image) == (7, 256, "ab" * 32, "an-image")
    assert (actual.container_name, actual.network) == ("kernelexec-a", "none")


def test_an_engine_that_says_nothing_of_a_container_that_ended_leaves_the_figures_out() -> None:
    actual = usage_figures({"memory_stats": {}, "cpu_stats": {}, "pids_stats": {}}, {**INSPECTED, "HostConfig": {}})
    assert (actual.memory_bytes, actual.memory_limit_bytes, actual.cpu_seconds, actual.pids) == (None, None, None, None)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 KiB"),
        (345, "345 B"),
        (2048, "2 KiB"),
        (3 * MIB // 2, "1.5 MiB"),
        (64 * MIB, "64 MiB"),
        (200_000_000, "190 MiB"),
        (2**30, "1 GiB"),
    ],
)
def test_a_size_is_reported_in_round_figures(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    "message",
    [None, 5, {}, {"used": -1, "limit": 1, "kills": 0}, {"used": True, "limit": 1, "kills": 0}, {"used": 2**70, "limit": 1}],
    ids=repr,
)
def test_invalid_memory_reports_of_a_kernel_are_ignored(message: object) -> None:
    assert MemoryUse.from_reply(message) is None


def test_of_the_biggest_variables_those_that_make_sense_are_taken() -> None:
    biggest = [["df", 200 * MIB], ["x", "1"], 5, ["only"], ["y" * 200, 80 * MIB], ["z", True]]
    actual = MemoryUse.from_reply({"used": 410 * MIB, "limit": 512 * MIB, "kills": 0, "high": True, "biggest": biggest})
    assert actual is not None
    assert actual.biggest == (LargeVariable("df", 200 * MIB), LargeVariable("y" * 100, 80 * MIB))
    assert str(actual).startswith("memory: 410 of 512 MiB in use; biggest: df 200 MiB, yyy")
