"""Commands whose code runs in containers, ended by signals: each says what it removes, and nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernelexec.docker.client import Engine
from kernelexec.docker.labels import OWNER
from tests.end_to_end.cli.test_doctor import CONTAINER
from tests.support.command_line import (
    BOUND,
    COMMAND,
    END_STATUS,
    IMPATIENT,
    NO_PRELOAD,
    SWALLOW,
    appears,
    environment,
    next_line,
    script,
    started,
)
from tests.support.engine import needs_engine
from tests.support.night import at_night
from tests.support.pace import until
from tests.support.terminal import Terminal

pytestmark = needs_engine

READY = f"import time\nopen('ready', 'w').close()\n{SWALLOW}"
#: How long that cell may run, in seconds: longer than a test waits for the end of its command.
MINUTES = 600


def containers_of(process: int) -> list[str]:
    """Return the containers that a process owns."""
    with Engine.acquire() as engine:
        labelled = engine.list_containers(OWNER)
    return [actual.id for actual in labelled if json.loads(actual.labels[OWNER]).get("pid") == process]


@pytest.mark.parametrize("signum", [signal.SIGTERM, *at_night(signal.SIGINT, signal.SIGHUP)])
@pytest.mark.parametrize("command", ["run", *at_night("exec")])
def test_a_signal_removes_the_container_of_a_cell_that_obeys_nothing(
    command: str, signum: signal.Signals, tmp_path: Path
) -> None:
    code = script(tmp_path, READY) if command == "run" else READY
    with started(tmp_path, command, code, *CONTAINER, *IMPATIENT, "--timeout", str(MINUTES)) as process:
        appears(process, tmp_path / "ready")
        assert len(containers_of(process.pid)) == 1
        process.send_signal(signum)
        stderr = ""
        if signum == signal.SIGINT:  # the first asks the cell, which obeys nothing; the second ends the command
            while "interrupting the cell" not in stderr:
                line = next_line(process, "stderr")
                assert line, stderr
                stderr += line
            process.send_signal(signum)
        assert process.stderr is not None
        stderr += process.stderr.read()
        assert process.wait(BOUND) == 128 + signum
    assert containers_of(process.pid) == []
    assert stderr.count("kernelexec: code runs in containers of") == 1
    assert "removing" not in stderr


def test_a_signal_while_the_kernel_starts_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with started(tmp_path, "exec", "1", *CONTAINER, "--work-dir", "ws", "--log-dir", "logs") as process:
        appears(process, tmp_path / "logs" / "exec" / "docker_container.log")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=BOUND)
        assert process.returncode == 128 + signal.SIGTERM
    assert containers_of(process.pid) == []


@pytest.mark.parametrize("end", [signal.SIGTERM, *at_night(signal.SIGINT, None)])
def test_the_server_removes_its_containers_at_a_signal_and_when_its_client_leaves(
    end: signal.Signals | None, tmp_path: Path
) -> None:
    def call(number: int, method: str, **params: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"

    words = [COMMAND, "mcp", *CONTAINER, *IMPATIENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = {"name": "test", "version": "1"}
        process.stdin.write(call(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client))
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        process.stdin.write(call(2, "tools/call", name="execute_code", arguments={"code": READY, "timeout": MINUTES}))
        process.stdin.flush()
        until(lambda: process.poll() is not None or list(tmp_path.glob("workspaces/*/ready")))
        assert process.poll() is None
        assert len(containers_of(process.pid)) == 1
        if end is not None:
            process.send_signal(end)
        _, stderr = process.communicate(timeout=BOUND)
        assert process.returncode == END_STATUS[end]
    assert containers_of(process.pid) == []
    assert stderr.decode().count("kernelexec: code runs in containers of") == 1


@pytest.mark.nightly  # in the gate a prompt on this machine leaves nothing, and the end of a server no container
def test_leaving_the_prompt_removes_its_container(tmp_path: Path) -> None:
    with Terminal([COMMAND, "repl", *CONTAINER, *NO_PRELOAD], cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "state")) as terminal:
        terminal.expect(r"In \[1\]: ")
        terminal.send("40 + 2\r")
        terminal.expect("42")
        terminal.expect(r"In \[2\]: ")
        terminal.until_hidden()  # the prompt is drawn before it reads
        assert len(containers_of(terminal.process.pid)) == 1
        terminal.send("\x04")
        assert terminal.end() == 0
    assert containers_of(terminal.process.pid) == []
