"""What the server reads over HTTP: cells of any size that sessions take, and of strangers nothing."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import BOUND
from tests.support.mcp_clients import ERAS
from tests.support.mcp_server import Server, create_token, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("bodies")) as server:
        yield server


def test_foreign_hosts_and_pages_and_large_bodies_are_refused(server: Server) -> None:
    assert server.ask("POST", "/mcp", b"{}", Host="evil.example")[0] == 403
    assert server.ask("POST", "/mcp", b"{}", Origin="https://evil.example")[0] == 403
    status, answer = server.ask("POST", "/mcp", b"", **{"Content-Length": str(10**9)})
    assert (status, "must have at most" in answer["error"]) == (413, True)
    assert server.ask("POST", "/mcp", b"{")[0] == 400
    assert [server.ask("GET", path)[0] for path in ("/healthz", "/readyz", "/")] == [200, 200, 404]


@pytest.mark.parametrize("era", ERAS)
def test_the_largest_cell_comes_by_with_every_character_escaped(server: Server, era: str) -> None:
    line = "x = '" + "\x01" * (4 * 2**20 - 100) + "'"
    with server.client(era, x_kernelexec_agent=f"large-{era}") as agent:
        assert agent.text("execute_code", code=f"{line}\nlen(x)").splitlines()[0] == str(4 * 2**20 - 100)
        answer = agent.text("execute_code", code=line + " " * 100)
    assert answer.startswith("code is 4194310 bytes, the limit is 4194304")


def test_nothing_is_read_from_a_client_without_a_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    create_token(tokens, "alice")
    with serving(tmp_path, "--tokens", str(tokens)) as running:
        head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n"
        for sent in (head.encode(), head.replace("\r\n\r\n", "\r\nAuthorization: Bearer wrong\r\n\r\n").encode()):
            with socket.create_connection(running.address, BOUND) as stranger:
                stranger.sendall(sent + b"{")
                assert stranger.recv(12) == b"HTTP/1.1 401"


def test_a_body_without_a_length_ends_at_the_limit(server: Server) -> None:
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with socket.create_connection(server.address, BOUND) as stranger:
        head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n"
        stranger.sendall(f"{head}Accept: application/json, text/event-stream\r\n\r\n".encode())
        for _ in range(64):
            stranger.sendall(chunk)
        stranger.settimeout(0.2)  # so that an answer that comes too early is seen
        with pytest.raises(TimeoutError):
            stranger.recv(1)
        stranger.settimeout(BOUND)
        stranger.sendall(b"1\r\n \r\n")
        assert stranger.recv(12) == b"HTTP/1.1 413"
    assert server.ask("GET", "/readyz")[0] == 200


def test_a_client_that_leaves_during_its_request_is_no_error_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nContent-Type: application/json\r\n"
        for more in ("", "MCP-Protocol-Version: 2026-07-28\r\n"):
            with socket.create_connection(running.address, BOUND) as leaver:
                leaver.sendall(f"{head}{more}Accept: application/json, text/event-stream\r\n\r\n{{".encode())
        assert running.ask("POST", "/mcp", b"{")[0] == 400
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(BOUND) == 0
        assert "Traceback" not in (tmp_path / "stderr.txt").read_text()
