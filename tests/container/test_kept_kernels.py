"""A server that ends in order and keeps its kernels: the next server in the same workspace goes on with them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from tests.conftest import Command
from tests.support.command_line import BOUND, COMMAND, environment, kernelexec
from tests.support.engine import MINIMAL, needs_engine
from tests.support.mcp_clients import raw, record_of, text_of
from tests.support.mcp_server import Server, serving
from tests.support.night import at_night

pytestmark = needs_engine

OPTIONS = ("--isolation", "container", "--image", MINIMAL, "--workspace")
#: Goes on until it is told to end, so that it runs while servers end and begin, whatever time that takes.
COUNTS = """
import os, time
open('begun', 'w').close()
for n in range(80):
    print(f'n={n}', flush=True)
    time.sleep(0.05)
while not os.path.exists('go'):
    time.sleep(0.01)
x += 1
x
"""


def begin_cell(server: Server) -> str:
    """Run a cell that goes on after its call; return its execution id."""
    with server.client("auto", x_kernelexec_agent="a") as agent:
        agent.text("execute_code", code="x = 41")
        begun = agent.call("execute_code", code=COUNTS, wait=0.5, timeout=600)
        assert record_of(begun)["status"] == "running"
        return str(record_of(begun)["execution_id"])


def check_cell_and_state(server: Server, execution_id: str, workspace: str) -> None:
    with server.client("auto", x_kernelexec_agent="a") as agent:
        seen = agent.call("wait_execution", execution_id=execution_id, wait=0)
        assert record_of(seen)["status"] == "running"
        (begun,) = Path(workspace).glob("*/begun")
        begun.with_name("go").touch()
        ended = agent.call("wait_execution", execution_id=execution_id)
        assert re.findall(r"n=(\d+)\n", text_of(ended)) == [str(n) for n in range(80)], text_of(ended)
        assert (record_of(ended)["status"], record_of(ended)["state"]) == ("ok", "kept")
        assert agent.text("execute_code", code="x").strip() == "42"


def check_commands(server: Server, command: Command, directory: Path) -> None:
    """Look at, use, close and stop what a server has adopted; it ends."""
    (row,) = json.loads(command(directory, "ps", "--json").stdout)
    assert (row["pid"], row["state"]) == (server.process.pid, "idle")
    assert command(directory, "attach", row["name"], stdin=b"x + 1\n").stdout == "43\n"
    assert "it has ended" in command(directory, "stop", row["name"]).stderr
    done = command(directory, "stop", "--process", str(server.process.pid), "--restart")
    assert "wait for the next server" in done.stderr


@pytest.mark.parametrize("how", ["SIGTERM", *at_night("stop --restart")])
def test_the_next_server_has_the_state_and_the_running_cell(how: str, tmp_path: Path, in_process: Command) -> None:
    workspace = str(tmp_path / "ws")
    kept = ("--keep-kernels",) if how == "SIGTERM" else ()
    with serving(tmp_path, *OPTIONS, workspace, *kept) as server:
        execution_id = begin_cell(server)
        with server.client("auto", x_kernelexec_agent="a") as agent:
            waiting = agent.start("wait_execution", execution_id=execution_id, wait=60)
            agent.call("list_sessions")  # the server has read what was sent before
            if how == "SIGTERM":
                server.process.send_signal(signal.SIGTERM)
            else:
                done = kernelexec(tmp_path, "stop", "--process", str(server.process.pid), "--restart")
                assert "wait for the next server" in done.stderr
            assert record_of(waiting.result(BOUND))["status"] == "running"
        assert server.process.wait(BOUND) == 0
    with serving(tmp_path, *OPTIONS, workspace) as server:
        check_cell_and_state(server, execution_id, workspace)
        check_commands(server, in_process, tmp_path)
        assert server.process.wait(BOUND) == 0
    with Engine() as engine:
        assert engine.list_containers(f"{WORKSPACE}={workspace}") == []


@pytest.mark.nightly
def test_a_server_that_runs_already_goes_on_with_the_sessions_of_one_that_ends(tmp_path: Path) -> None:
    workspace = str(tmp_path / "ws")
    (tmp_path / "next").mkdir()
    with serving(tmp_path, *OPTIONS, workspace, "--keep-kernels") as old:
        execution_id = begin_cell(old)
        with serving(tmp_path / "next", *OPTIONS, workspace) as server:
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(BOUND) == 0
            check_cell_and_state(server, execution_id, workspace)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(BOUND) == 0


@pytest.mark.nightly
def test_results_that_no_call_has_collected_are_at_the_next_server(tmp_path: Path) -> None:
    workspace = str(tmp_path / "ws")
    code = "import time; time.sleep(0.5); print('printed'); 6 * 7"
    with serving(tmp_path, *OPTIONS, workspace, "--keep-kernels") as server:
        with server.client("auto", x_kernelexec_agent="a") as agent:
            begun = record_of(agent.call("execute_code", code=code, wait=0))
            agent.call("execute_code", code="1")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND) == 0
    with serving(tmp_path, *OPTIONS, workspace) as server:
        with server.client("auto", x_kernelexec_agent="a") as agent:
            for cursor in (0, begun["cursor"] + 1):
                ended = agent.call("wait_execution", execution_id=begun["execution_id"], cursor=cursor)
                assert record_of(ended)["status"] == "ok"
                assert "printed\n42" in text_of(ended)
            assert "printed" in agent.text("read_output", execution_id=begun["execution_id"])
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND) == 0


@pytest.mark.nightly
def test_a_server_over_stdio_keeps_them_when_its_client_leaves(tmp_path: Path) -> None:
    options = (*OPTIONS, str(tmp_path / "ws"), "--keep-kernels")
    with raw(tmp_path, "legacy", *options) as client:
        client.answer(client.call("execute_code", code="x = 41"))
        client.end()
    assert client.process.returncode == 0
    with raw(tmp_path, "legacy", *options) as client:
        answer = client.answer(client.call("execute_code", code="x + 1"))
        assert "42" in answer["result"]["content"][0]["text"]
        client.process.send_signal(signal.SIGINT)  # ends the kernels too
        client.end()
    with Engine() as engine:
        assert engine.list_containers(f"{WORKSPACE}={tmp_path / 'ws'}") == []


@pytest.mark.nightly
def test_a_server_without_sessions_leaves_nothing(tmp_path: Path, short_path: Path) -> None:
    with serving(tmp_path, *OPTIONS, str(tmp_path / "ws"), "--keep-kernels", KERNELEXEC_RUNTIME_DIR=str(short_path)) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND) == 0
    assert list(short_path.iterdir()) == []


@pytest.mark.nightly
def test_kernels_that_no_server_could_adopt_are_not_kept(tmp_path: Path) -> None:
    words = [COMMAND, "mcp", "--isolation", "local", "--keep-kernels"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert "--keep-kernels" in done.stderr
    with serving(tmp_path) as server:
        done = kernelexec(tmp_path, "stop", "--process", str(server.process.pid), "--restart")
        assert done.returncode == 125
        assert "end with it" in done.stderr
        assert server.process.poll() is None
