"""Commands to a server that runs, from another terminal: what it does, a session's journal, a cell in it, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec.executor.control import control_client
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY, list_live_roots
from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from tests.conftest import Command
from tests.support.command_line import BOUND, COMMAND, environment, kernelexec
from tests.support.mcp_clients import record_of
from tests.support.mcp_server import Server, serving
from tests.support.pace import until


@pytest.fixture(scope="module", autouse=True)
def no_other_server(own_remains: None) -> Iterator[None]:
    """Have the module's own private directories in the only place where servers are searched for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", os.environ["KERNELEXEC_RUNTIME_DIR"])
        yield


@pytest.fixture(scope="module")
def server(no_other_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it running and without sessions."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


def shown(server: Server, cwd: Path, command: Command) -> list[dict[str, Any]]:
    """Return the rows of one server; other programs of this user may have sessions too."""
    done = command(cwd, "ps", "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return [row for row in rows if row["pid"] == server.process.pid]


def test_a_server_is_looked_at_attached_to_interrupted_and_stopped(tmp_path: Path, in_process: Command) -> None:
    with serving(tmp_path) as server:
        assert [(row["name"], row["state"]) for row in shown(server, tmp_path, in_process)] == [("", "no session")]
        with server.client(x_kernelexec_agent="a") as agent:
            agent.call("execute_code", code="x = 41")
            code = "import time; open('begun', 'w').close(); time.sleep(600)"
            begun = agent.call("execute_code", code=code, wait=0, timeout=600)
            until(lambda: list(tmp_path.glob("workspaces/*/begun")))
            (row,) = shown(server, tmp_path, in_process)
            name, own = row["name"], f"a/default@{row['pid']}"
            assert row["client"].endswith(", agent name a")
            assert "mcp" in row["client"].split()[0]
            assert (row["state"], row["cells"], row["pid"]) == ("busy", [record_of(begun)["execution_id"]], server.process.pid)
            lines = [line.split()[:3] for line in in_process(tmp_path, "ps").stdout.splitlines()]
            assert ["a/default", str(row["pid"]), "busy"] in lines
            assert name in in_process(tmp_path, "logs", "default", "--json").stdout
            assert "interrupted" in in_process(tmp_path, "stop", own, "--cell").stderr
            ended = agent.call("wait_execution", execution_id=record_of(begun)["execution_id"])
            assert (record_of(ended)["status"], record_of(ended)["state"]) == ("error", "kept")
            assert "nothing runs" in in_process(tmp_path, "stop", own, "--cell").stderr
            words = [COMMAND, "attach", own]
            typed = "print(x + 1)\n1 / 0\ny = 2\n"
            done = subprocess.run(
                words, input=typed, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=BOUND, check=False
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("42\n")
            assert "ZeroDivisionError" in done.stderr
            attached, count, value = agent.text("execute_code", code="y").strip().splitlines()
            assert (value, "has attached to this session" in attached, "3 cells of process" in count) == ("2", True, True)
            output = in_process(tmp_path, "logs", own, "-n", "1").stdout
            assert " y" in output.splitlines()[-1]
            assert "has ended" in in_process(tmp_path, "stop", own).stderr
            assert agent.rows("list_sessions", "sessions") == []
        assert kernelexec(tmp_path, "stop", "--process", str(server.process.pid)).returncode == 0
        assert server.process.wait(BOUND) == 0
        assert shown(server, tmp_path, in_process) == []


def test_a_journal_is_followed_until_its_session_ends(server: Server, tmp_path: Path, in_process: Command) -> None:
    with server.client(x_kernelexec_agent="a") as agent:
        agent.call("execute_code", code="1")
        words = [COMMAND, "logs", f"{shown(server, tmp_path, in_process)[0]['name']}@{server.process.pid}", "--follow"]
        with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            assert "seconds" in following.stdout.readline()
            assert following.stdout.readline()
            agent.call("execute_code", code="'followed'")
            assert any("'followed'" in line for line in following.stdout), "it comes while the session is open"
            agent.call("close_session", session="default")
            following.stdout.read()
            assert following.wait(BOUND) == 0


def test_only_a_client_with_the_key_is_answered(server: Server, tmp_path: Path, in_process: Command) -> None:
    with server.client(x_kernelexec_agent="a") as agent:
        agent.call("execute_code", code="1")
        (root,) = [root for root, pid in list_live_roots(runtime_bases()) if pid == server.process.pid]
        assert stat.S_IMODE((root / CONTROL).stat().st_mode) == stat.S_IMODE((root / CONTROL_KEY).stat().st_mode) == 0o600
        for line in (b'{"key": "0", "do": "stop"}\n', b'{"do": "stop"}\n', b"no JSON\n", b"[]\n", b"\n", b"x" * 100):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(root / CONTROL))
                connection.sendall(line)
                connection.shutdown(socket.SHUT_WR)
                assert b"stopping" not in connection.makefile("rb").read()
        code = f"import pathlib; pathlib.Path({str(root / CONTROL_KEY)!r}).read_text()"
        output = agent.text("execute_code", code=code)
        assert "PermissionError" in output, output
        assert shown(server, tmp_path, in_process)[0]["state"] == "idle"
        agent.call("close_session", session="default")


def test_invalid_stops_are_reported(
    server: Server, tmp_path: Path, in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(os.environ["KERNELEXEC_RUNTIME_DIR"])
    monkeypatch.setattr("kernelexec.executor.control.control_client.runtime_bases", lambda: iter([directory]))
    assert "You have no open session" in in_process(tmp_path, "stop").stderr
    assert "No server of yours is process 1:" in in_process(tmp_path, "stop", "--process", "1").stderr
    assert "must not be combined with a session" in in_process(tmp_path, "stop", "a", "--process", "1").stderr
    del server


def test_a_server_that_does_not_answer_delays_no_command(
    server: Server, tmp_path: Path, in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "ANSWER_SECONDS", 2.0)
    with server.client(x_kernelexec_agent="a") as agent:
        agent.call("execute_code", code="x = 41")
        server.process.send_signal(signal.SIGSTOP)
        try:
            rows = json.loads(in_process(tmp_path, "ps", "--json").stdout)
            assert [row["state"] for row in rows if row["pid"] == server.process.pid] == ["stopped"]
        finally:
            server.process.send_signal(signal.SIGCONT)
        agent.call("close_session", session="default")
