"""Whether an engine answers is found out at once, with its real cause, and asked again after a failure."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, IsolationUnavailable
from kernelexec.docker.client import Engine, probe
from kernelexec.errors import EngineUnavailable
from tests.support.engine import needs_engine


@pytest.fixture
def listening(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that takes connections and never says anything."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(short_path / "s"))
        server.listen()
        monkeypatch.setattr("kernelexec.docker.client.PROBE_SECONDS", 0.5)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{short_path}/s")
        yield server


def test_an_engine_that_never_answers_is_not_waited_for(listening: socket.socket) -> None:
    cause = probe()
    assert cause is not None
    assert "did not answer in time" in cause


def test_an_address_without_a_listener_is_named(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(short_path / "s"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{short_path}/s")
    assert probe() == f"The container engine does not answer: no server listens at unix://{short_path}/s. Is Docker started?"


def test_invalid_addresses_of_an_engine_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "gopher://here")
    with pytest.raises(IsolationUnavailable, match="gopher://here"):
        AsyncExecutor("container")


@needs_engine
def test_a_failure_is_not_remembered(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe() is not None
    monkeypatch.undo()
    assert probe() is None


@needs_engine
def test_the_connection_that_is_shared_is_to_the_engine_that_is_named(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    with Engine.acquire() as item:
        with Engine.acquire() as same:
            assert same is item
        monkeypatch.setenv("DOCKER_HOST", "unix:///no/such.sock")
        with pytest.raises(EngineUnavailable):
            Engine.acquire()
        monkeypatch.delenv("DOCKER_HOST")
        with Engine.acquire() as same:
            assert same is item


def test_an_engine_that_went_away_leaves_no_socket_open(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{short_path}/s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(short_path / "s"))
        server.listen()
        answers = threading.Thread(target=_answer_once, args=[server])
        answers.start()
        engine = Engine()
        answers.join()
    with engine, pytest.raises(EngineUnavailable, match="no server listens"):
        engine.inspect_container("x")
    gc.collect()  # a socket that is open by then is an error: a ResourceWarning


def _answer_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        output = b'{"ApiVersion": "1.41"}'
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(output) + output
        )
