"""Sessions of older clients' connections: they end with the connection, and a new agent always gets one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.command_line import BOUND
from tests.support.mcp_server import Server, serving
from tests.support.pace import until

_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
_VERSION = "2025-06-18"
_CLIENT = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": {"name": "old", "version": "0"}}


class OldClient:
    """A client of the protocol with connections."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self.http = http
        self.url = url
        self._numbers = count(2)
        answer = self.post(id=1, method="initialize", params=_CLIENT)
        http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        http.headers["mcp-protocol-version"] = _VERSION
        self.post(method="notifications/initialized")

    def post(self, **message: Any) -> httpx.Response:
        return self.http.post(self.url, json={"jsonrpc": "2.0", **message})

    def call(self, tool: str, /, **arguments: Any) -> str:
        return self.post(id=next(self._numbers), method="tools/call", params={"name": tool, "arguments": arguments}).text

    def delete(self) -> int:
        return self.http.delete(self.url).status_code


@contextmanager
def old_client(server: Server) -> Iterator[OldClient]:
    with httpx.Client(timeout=BOUND, headers=_HEADERS) as http:
        yield OldClient(http, server.url)


def memory(server: Server) -> int:
    """Memory of the server and all its processes that is theirs whatever other programs map, in bytes."""
    total = 0
    root = psutil.Process(server.process.pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            used = process.memory_info()
        except psutil.Error:
            continue
        total += used.rss - used.shared
    return total


def open_sessions(server: Server) -> float:
    """Return the number of the server's open sessions by its metrics."""
    text = server.ask("GET", "/metrics")[1].decode()
    [line] = [line for line in text.splitlines() if line.startswith("kernelexec_sessions ")]
    return float(line.split()[-1])


def is_left_alone(server: Server) -> None:
    """Wait until no session is open: the server closes them in its own time."""
    until(lambda: open_sessions(server) == 0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server works."""
    return tmp_path_factory.mktemp("connections")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    """A server that closes nothing because of silence, as long as the tests run."""
    with serving(directory) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that closes the sessions of a connection after a second of silence."""
    with serving(tmp_path_factory.mktemp("silent"), "--linger", "1") as server:
        yield server


def test_a_connection_that_its_client_ends_takes_its_sessions_along(server: Server) -> None:
    with old_client(server) as client:
        assert "41" in client.call("execute_code", code="x = 41; x")
        assert "2" in client.call("execute_code", code="1 + 1", session="other")
        assert open_sessions(server) == 2
        assert client.delete() == 200
    is_left_alone(server)


def test_a_connection_that_only_looks_leaves_no_directory(server: Server, directory: Path) -> None:
    before = [*directory.glob("workspaces/*")]
    with old_client(server) as client:
        for tool, arguments in (("list_sessions", {}), ("list_files", {}), ("read_file", {"path": "x"})):
            client.call(tool, **arguments)
        assert '"entries":[]' in client.call("list_files").replace(" ", "")
        assert [*directory.glob("workspaces/*")] == before
        client.call("write_file", path="x", content="1")
        assert "x" in client.call("list_files")
        assert [*directory.glob("workspaces/*")] != before
        client.delete()
    is_left_alone(server)


@pytest.mark.nightly
def test_many_connections_one_after_the_other_leave_nothing(tmp_path: Path) -> None:
    size = 0
    with serving(tmp_path) as server:
        for number in range(60):
            with old_client(server) as client:
                assert f"number {number}" in client.call("execute_code", code=f"print('number', {number})")
                assert client.delete() == 200
            if number == 19:
                is_left_alone(server)
                size = memory(server)
        is_left_alone(server)
        until(lambda: memory(server) - size < 16 * 2**20)  # the last kernel may have its memory for a moment more


def test_a_running_cell_ends_with_the_connection_that_its_client_ends(server: Server) -> None:
    with old_client(server) as client:
        assert "running" in client.call("execute_code", code="import time; time.sleep(600)", wait=0.1)
        assert client.delete() == 200
    is_left_alone(server)


def test_a_silent_connection_loses_its_sessions_and_gets_new_ones(impatient: Server) -> None:
    with old_client(impatient) as client:
        client.call("execute_code", code="x = 41")
        is_left_alone(impatient)
        assert "NameError" in client.call("execute_code", code="x")
        client.delete()


def test_a_connection_whose_stream_of_events_is_open_keeps_its_sessions(impatient: Server) -> None:
    with old_client(impatient) as client:
        with client.http.stream("GET", client.url) as stream:
            assert stream.status_code == 200
            client.call("execute_code", code="x = 41")
            time.sleep(2)  # twice as long as silent connections live, so that one that is closed is seen
            assert "42" in client.call("execute_code", code="x + 1")
        is_left_alone(impatient)


@pytest.mark.nightly  # in the gate a test of connections alone shows it
def test_a_cell_keeps_the_session_of_a_silent_connection(impatient: Server, tmp_path: Path) -> None:
    code = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\nx = 41"
    with old_client(impatient) as client, ThreadPoolExecutor(1) as asking:
        assert "running" in client.call("execute_code", code=code, wait=0.1, timeout=700)
        time.sleep(2)  # longer than silent connections live, so that one that is closed is seen
        asked = asking.submit(client.call, "execute_code", code="x + 1  # waits")
        until(lambda: "# waits" in client.call("list_sessions"))
        (tmp_path / "go").touch()
        assert "42" in asked.result(BOUND)
        client.delete()


def test_sessions_with_handles_and_names_outlive_their_connection(impatient: Server) -> None:
    with old_client(impatient) as client:
        created = client.call("create_session")
        handle = created[created.index("ks-") :][:35]
        client.call("execute_code", code="x = 41", session=handle)
        client.delete()
    with old_client(impatient) as client:
        client.http.headers["x-kernelexec-agent"] = "named"
        client.call("execute_code", code="y = 1")
        client.delete()
    time.sleep(2)  # longer than silent connections live, so that one that is closed is seen
    with old_client(impatient) as client:
        assert "42" in client.call("execute_code", code="x + 1", session=handle)
        client.call("close_session", session=handle)
        client.http.headers["x-kernelexec-agent"] = "named"
        assert "43" in client.call("execute_code", code="y + 42")
        client.call("close_session", session="default")


def test_a_new_agent_is_not_refused_because_of_silent_connections(tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text("capacity: {sessions: 3}\npreload: []\n")
    with serving(tmp_path, "--config", str(tmp_path / "few.yaml")) as server:
        with httpx.Client(timeout=BOUND, headers=_HEADERS) as http:
            stays = OldClient(http, server.url)
            stays.call("execute_code", code="x = 41")
            for number in range(4):
                with old_client(server) as client:
                    assert f"number {number}" in client.call("execute_code", code=f"print('number', {number})")
                stays.call("execute_code", code="x += 1")
            assert "45" in stays.call("execute_code", code="x")
        assert open_sessions(server) == 3
