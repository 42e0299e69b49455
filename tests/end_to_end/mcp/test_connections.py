"""Sessions of older clients' connections: they end with the connection, and a new agent always gets one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.command_line import BOUND
from tests.support.mcp_server import Server, serving

_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
_VERSION = "2025-06-18"
_CLIENT = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": {"name": "old", "version": "0"}}


class OldClient:
    """A client of the protocol with connections, one request at a time."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self.http = http
        self.url = url
        answer = self.post(id=1, method="initialize", params=_CLIENT)
        http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        http.headers["mcp-protocol-version"] = _VERSION
        self.post(method="notifications/initialized")

    def post(self, **message: Any) -> httpx.Response:
        return self.http.post(self.url, json={"jsonrpc": "2.0", **message})

    def call(self, tool: str, /, **arguments: Any) -> str:
        return self.post(id=2, method="tools/call", params={"name": tool, "arguments": arguments}).text

    def delete(self) -> int:
        return self.http.delete(self.url).status_code


@contextmanager
def old_client(server: Server) -> Iterator[OldClient]:
    with httpx.Client(timeout=BOUND, headers=_HEADERS) as http:
        yield OldClient(http, server.url)


def memory(server: Server) -> int:
    """Proportional memory of the server and all its processes, in bytes."""
    total = 0
    root = psutil.Process(server.process.pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def open_sessions(server: Server) -> float:
    """Return the number of the server's open sessions by its metrics."""
    text = server.ask("GET", "/metrics")[1].decode()
    [line] = [line for line in text.splitlines() if line.startswith("kernelexec_sessions ")]
    return float(line.split()[-1])


def falls_to(server: Server, count: int) -> bool:
    end = time.monotonic() + BOUND
    while open_sessions(server) > count:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)  # the server closes them in its own time
    return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("connections"), "--linger", "1") as server:
        yield server


def test_a_connection_that_its_client_ends_takes_its_sessions_along(server: Server) -> None:
    with old_client(server) as client:
        assert "41" in client.call("execute_code", code="x = 41; x")
        assert "2" in client.call("execute_code", code="1 + 1", session="other")
        assert open_sessions(server) == 2
        assert client.delete() == 200
    assert falls_to(server, 0)


def test_many_connections_one_after_the_other_leave_nothing(tmp_path: Path) -> None:
    sizes = []
    with serving(tmp_path) as server:
        for number in range(60):
            with old_client(server) as client:
                assert f"number {number}" in client.call("execute_code", code=f"print('number', {number})")
                assert client.delete() == 200
            if number in (19, 59):
                assert falls_to(server, 0)
                sizes.append(memory(server))
    assert sizes[1] - sizes[0] < 16 * 2**20


def test_a_running_cell_ends_with_the_connection_that_its_client_ends(server: Server) -> None:
    with old_client(server) as client:
        assert "running" in client.call("execute_code", code="import time; time.sleep(600)", wait=0.1)
        assert client.delete() == 200
    assert falls_to(server, 0)


def test_a_silent_connection_loses_its_sessions_and_gets_new_ones(server: Server) -> None:
    with old_client(server) as client:
        client.call("execute_code", code="x = 41")
        assert falls_to(server, 0)
        assert "NameError" in client.call("execute_code", code="x")
        client.delete()


def test_a_connection_whose_stream_of_events_is_open_keeps_its_sessions(server: Server) -> None:
    with old_client(server) as client:
        client.call("execute_code", code="x = 41")
        with client.http.stream("GET", client.url) as stream:
            assert stream.status_code == 200
            time.sleep(3)  # three times as long as silent connections may be
            assert "42" in client.call("execute_code", code="x + 1")
        assert falls_to(server, 0)


def test_a_cell_keeps_the_session_of_a_silent_connection(server: Server) -> None:
    with old_client(server) as client:
        assert "running" in client.call("execute_code", code="import time; time.sleep(3); x = 41", wait=0.1)
        time.sleep(2)  # longer than silent connections live
        assert "42" in client.call("execute_code", code="x + 1")
        client.delete()


def test_sessions_with_handles_and_names_outlive_their_connection(server: Server) -> None:
    with old_client(server) as client:
        created = client.call("create_session")
        handle = created[created.index("ks-") :][:35]
        client.call("execute_code", code="x = 41", session=handle)
        client.delete()
    with old_client(server) as client:
        client.http.headers["x-kernelexec-agent"] = "named"
        client.call("execute_code", code="y = 1")
        client.delete()
    time.sleep(2)  # longer than silent connections live
    with old_client(server) as client:
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
            for number in range(8):
                with old_client(server) as client:
                    assert f"number {number}" in client.call("execute_code", code=f"print('number', {number})")
                stays.call("execute_code", code="x += 1")
            assert "49" in stays.call("execute_code", code="x")
        assert open_sessions(server) == 3
