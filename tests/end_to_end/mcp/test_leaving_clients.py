"""Clients that leave during a cell, over HTTP: what becomes of it is what the README says, and the next cell is in step."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import BOUND
from tests.support.engine import MINIMAL, needs_engine
from tests.support.mcp_clients import BOTH_ERAS, Agent, record_of, text_of
from tests.support.mcp_server import Server, serving
from tests.support.night import at_night
from tests.support.pace import slow, until

CLIENT = """
import asyncio, sys
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

async def main():
    url, era, agent, timeout = sys.argv[1:]
    transport = StreamableHttpTransport(url, headers={"x-kernelexec-agent": agent})
    async with Client(transport, mode=era, timeout=float(timeout)) as client:
        code = "open('begun', 'w').close()\\nimport time\\nfor n in range(6000): time.sleep(0.1)"
        await client.call_tool("execute_code", {"code": code, "timeout": 700, "wait": 600})

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("leaving")) as server:
        yield server


def left(server: Server, agent: Agent, era: str, name: str, *, how: str) -> None:
    """Have a client begin a cell of ten minutes and leave."""
    agent.text("execute_code", code="x = 41")
    begun = Path(agent.rows("list_sessions", "sessions")[0]["workspace"], "begun")
    words = [sys.executable, "-c", CLIENT, server.url, era, name, str(slow(3)) if how == "times out" else "600"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as client:
        until(begun.exists)
        if how == "killed":
            client.kill()
        client.wait(BOUND)


@pytest.mark.parametrize("how", ["killed", *at_night("times out")])
def test_a_client_of_today_that_leaves_takes_its_cell_along(server: Server, how: str) -> None:
    name = f"today {how}"
    with server.client("auto", x_kernelexec_agent=name) as agent:
        left(server, agent, "auto", name, how=how)
        assert agent.text("execute_code", code="x + 1").splitlines()[0] == "42"


def test_an_old_client_that_is_killed_leaves_its_cell_running(server: Server) -> None:
    with server.client("legacy", x_kernelexec_agent="old killed") as agent:
        left(server, agent, "legacy", "old killed", how="killed")
        [row] = agent.rows("list_sessions", "sessions")
        [running] = row["executions"]
        assert row["busy"]
        ended = agent.call("interrupt_kernel")
        assert record_of(ended)["execution_id"] == running["execution_id"]
        assert agent.text("execute_code", code="x + 1").splitlines()[0] == "42"


@pytest.mark.nightly  # it cancels its call, which a test of the gate does
def test_an_old_client_that_times_out_takes_its_cell_along(server: Server) -> None:
    with server.client("legacy", x_kernelexec_agent="old times out") as agent:
        left(server, agent, "legacy", "old times out", how="times out")
        assert agent.text("execute_code", code="x + 1").splitlines()[0] == "42"


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_a_cancelled_call_interrupts_its_cell(server: Server, era: str) -> None:
    with server.client(era, x_kernelexec_agent=f"cancels {era}") as agent:
        agent.text("execute_code", code="x = 41")
        begun = Path(agent.rows("list_sessions", "sessions")[0]["workspace"], "begun")
        code = "open('begun', 'w').close(); import time; time.sleep(600)"
        call = agent.start("execute_code", code=code, timeout=700, wait=600)
        until(begun.exists)
        call.cancel()
        assert agent.text("execute_code", code="x + 1").splitlines()[0] == "42"


def collected(agent: Agent, execution_id: str, **more: Any) -> tuple[str, list[int]]:
    """Wait for an execution bit by bit: the last answer, and the numbers that all of them printed."""
    cursor, numbers, output = 0, list[int](), ""

    def has_ended() -> bool:
        nonlocal cursor, output
        answer = agent.call("wait_execution", execution_id=execution_id, wait=0.5, cursor=cursor, **more)
        output = text_of(answer)
        assert not answer.is_error, output
        numbers.extend(map(int, re.findall(r"^n=(\d+)$", output, re.MULTILINE)))
        record = record_of(answer)
        cursor = record.get("cursor", cursor)
        return bool(record["status"] != "running")

    until(has_ended)
    return output, numbers


@needs_engine
@pytest.mark.nightly  # in the gate the tests of adoption end the server, and others its client
@pytest.mark.parametrize("era", BOTH_ERAS)
def test_a_long_cell_outlives_its_client_and_its_server(era: str, tmp_path: Path) -> None:
    options = ("--isolation", "container", "--image", MINIMAL)
    code = (
        "import os, time\nopen('begun', 'w').close()\nfor n in range(60):\n    print(f'n={n}', flush=True)\n"
        "    time.sleep(0.1)\n    while n == 20 and not os.path.exists('go'): time.sleep(0.02)\nx += 1\nx"
    )
    with serving(tmp_path, *options) as server:
        with server.client(era) as agent:
            handle = agent.call("create_session").structured_content["session"]  # type: ignore[index]
            agent.text("execute_code", code="x = 41", session=handle)
            begun = agent.call("execute_code", code=code, session=handle, wait=0.5, timeout=700)
            execution_id = record_of(begun)["execution_id"]
            assert record_of(begun)["status"] == "running"
        with server.client(era) as agent:  # a second connection
            agent.until("n=0\nn=1\n", "wait_execution", execution_id=execution_id, session=handle, wait=0.1)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(BOUND)
    [marker] = (tmp_path / "workspaces").glob("*/begun")
    marker.with_name("go").touch()  # the cell has been waiting for it, and goes on while there is no server
    with serving(tmp_path, *options) as server, server.client(era) as agent:
        last, numbers = collected(agent, execution_id, session=handle)
        assert numbers == list(range(60))
        assert "42" in last.splitlines()
        assert agent.text("execute_code", code="x", session=handle).splitlines()[0] == "42"
        agent.text("close_session", session=handle)
