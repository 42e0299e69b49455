"""Unused kernels end after a time, used ones do not; the session's next cell says what was lost."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from kernelexec import CapacityReached, Config, Executor, Session
from kernelexec.docker.client import Engine
from kernelexec.events import Event, KernelChanged
from kernelexec.mcp.http_server import HttpOptions, serve_http
from tests.support.engine import MINIMAL, containers, needs_engine
from tests.support.mcp_clients import connected
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import BOUND, RunningCell, slow, until

IDLE = 0.6
#: The rest of a cell that waits for a file.
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"


@contextmanager
def culling(directory: Path, isolation: str = "local", **capacity: Any) -> Iterator[tuple[Executor, list[Event]]]:
    reported: list[Event] = []
    config = {
        "capacity": {"idle_seconds": IDLE, **capacity},
        **({"container": {"image": MINIMAL}} if isolation == "container" else {}),
    }
    with Executor(isolation, workspace=directory / "w", config=config, hooks=[reported.append]) as executor:
        yield executor, reported


def died(reported: list[Event]) -> list[KernelChanged]:
    return [event for event in reported if isinstance(event, KernelChanged) and event.change == "died"]


def deaths(reported: list[Event]) -> list[str | None]:
    return [event.cause for event in died(reported)]


def wait_until_culled(session: Session) -> None:
    until(lambda: session.stats().kernel == "none")


def test_an_idle_kernel_ends_and_the_next_cell_says_what_was_lost(tmp_path: Path) -> None:
    with culling(tmp_path) as (executor, reported):
        session = executor.session("a")
        first = session.execute("x = 1; import os; print(os.getpid())")
        until(lambda: not psutil.pid_exists(int(first.stdout)))
        until(lambda: deaths(reported) == ["culled"] * first.kernel_epoch)
        assert executor.sessions() == ("a",)
        session.start_background("sleep 600")  # so that the next kernel lives
        result = session.execute("x")
        assert (result.state, result.cause, result.kernel_epoch) == ("lost", "culled", first.kernel_epoch + 1)
        assert "x" in result.lost_names
        assert result.error is not None
        assert result.error.ename == "NameError"
        assert session.execute("y = 2").state == "kept"
        assert session.execute("y").text.strip() == "2"


def test_sessions_in_use_are_not_culled(tmp_path: Path) -> None:
    idle = slow(1)
    with culling(tmp_path, idle_seconds=idle) as (executor, reported):
        long = executor.session("long")
        running = long.execute(f"x = 1\n{WAITS}", wait=0.01, timeout=600)
        beside = executor.session("beside")
        beside.start_background("until [ -e go ]; do sleep 0.05; done")
        used = executor.session("used")
        end, longest = time.monotonic() + idle * 1.5, 0.0
        while (now := time.monotonic()) < end:
            used.execute("1")
            time.sleep(idle / 10)  # it is used more often than it would have to be
            longest = max(longest, time.monotonic() - now)
        stalled = ["used"] if longest > idle / 2 else []  # it may then have been idle for so long in truth
        assert [event.session for event in died(reported) if event.session not in stalled] == []
        for session in (long, beside):
            (session.workspace / "go").touch()
        done = long.wait_for(running.execution_id, wait=BOUND).result
        assert done is not None
        assert (done.status, done.state) == ("ok", "kept")
        until(lambda: {event.session for event in died(reported)} == {"long", "beside", "used"})
        assert set(deaths(reported)) == {"culled"}


def test_a_cell_of_another_client_is_a_use(tmp_path: Path) -> None:
    with culling(tmp_path) as (executor, reported):
        session = executor.session("a")
        session.start_background("until [ -e visited ]; do sleep 0.05; done")
        session.execute("1")
        client: Any = BlockingKernelClient(connection_file=str(session.connection_file))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=BOUND)
            msg_id = client.execute(f"open('visited', 'w').close()\n{WAITS}")
            until((session.workspace / "visited").exists)
            time.sleep(IDLE * 2)
            assert deaths(reported) == []
            (session.workspace / "go").touch()
            while client.get_shell_msg(timeout=BOUND)["parent_header"]["msg_id"] != msg_id:
                pass
        finally:
            client.stop_channels()
        until(lambda: deaths(reported) == ["culled"])


def test_a_cell_that_comes_as_its_kernel_ends_is_never_lost(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    with culling(tmp_path, idle_seconds=0.05) as (executor, reported):
        session = executor.session("a")
        for number in range(40 if pytestconfig.getoption("nightly") else 15):
            result = session.execute(f"n = {number}; n")
            assert (result.status, result.text.strip()) == ("ok", str(number))
            time.sleep(0.03 + number % 5 * 0.01)  # around the moment at which it ends
        until(lambda: "culled" in deaths(reported))


def test_of_culled_sessions_the_first_makes_room(tmp_path: Path) -> None:
    with culling(tmp_path, sessions=2) as (executor, _):
        for name in ("first", "second"):
            session = executor.session(name)
            session.execute("1")
            wait_until_culled(session)
        third = executor.session("third")
        assert executor.sessions() == ("second", "third")
        third.execute("import time; time.sleep(600)", wait=0.01, timeout=600)
        busy = executor.session("fourth")
        assert executor.sessions() == ("third", "fourth")
        busy.execute("import time; time.sleep(600)", wait=0.01, timeout=600)
        with pytest.raises(CapacityReached, match="2 sessions are open"):
            executor.session("fifth")


@needs_engine
def test_an_idle_container_is_removed(tmp_path: Path) -> None:
    with culling(tmp_path, "container") as (executor, reported):
        session = executor.session("a")
        cell = RunningCell(session, f"x = 1; print('begun', flush=True)\n{WAITS}")
        container = session.stats().container
        assert container is not None
        (session.workspace / "go").touch()
        assert cell.result().ok
        until(lambda: deaths(reported) == ["culled"])
        with Engine() as engine:
            until(lambda: container not in {item["Id"] for item in containers(engine)})
        result = session.execute("1 + 1")
        assert (result.text.strip(), result.state, result.cause) == ("2", "lost", "culled")


def test_a_server_says_how_long_unused_kernels_live(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--idle", "90"), "auto") as agent:
        answer = {tool.name: tool.description for tool in agent.do("list_tools")}
        for name in ("execute_code", "execute_command", "create_session"):
            assert "idle for 1.5 min loses its kernel" in answer[name]


@pytest.mark.parametrize(("idle", "least"), [(60, 1800), (3600, 7200), pytest.param(None, 10**9, marks=pytest.mark.nightly)])
def test_an_older_clients_connection_outlives_its_kernels(tmp_path: Path, idle: float | None, least: float) -> None:
    actual: list[float | None] = []

    def ready(_where: str) -> None:
        gc.collect()
        managers = [item for item in gc.get_objects() if isinstance(item, StreamableHTTPSessionManager)]
        actual.extend(item.session_idle_timeout for item in managers)
        signal.raise_signal(signal.SIGTERM)

    config = Config(isolation="local", workspace=tmp_path / "w", capacity={"idle_seconds": idle})  # type: ignore[arg-type]
    asyncio.run(serve_http(config, HttpOptions(port=0), on_listening=ready))
    assert actual == [least]
