"""The entry by which MCP clients start the server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fastmcp.client.transports import StdioTransport

from tests.conftest import Command
from tests.support.command_line import LOCAL, NO_PRELOAD
from tests.support.mcp_clients import connected


def test_the_entry_starts_the_server_with_its_options(tmp_path: Path, in_process: Command) -> None:
    words = ("mcp-config", "--name", "mine", *LOCAL, *NO_PRELOAD, "--workspace", "work")
    done = in_process(tmp_path, *words, DOCKER_HOST="unix:///nope")
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["mcpServers"]["mine"]
    assert Path(entry["command"]).samefile(sys.executable)
    assert entry == {
        "type": "stdio",
        "command": entry["command"],
        "args": ["-P", "-m", "kernelexec", "mcp", *LOCAL, *NO_PRELOAD, "--workspace", str(tmp_path / "work")],
        "env": {"DOCKER_HOST": "unix:///nope"},
        "cwd": str(tmp_path),
    }
    env = {"KERNELEXEC_RUNTIME_DIR": os.environ["KERNELEXEC_RUNTIME_DIR"]}  # a client passes few variables
    transport = StdioTransport(entry["command"], entry["args"], env=env, cwd=entry["cwd"], log_file=tmp_path / "log")
    with connected(transport, "auto") as agent:
        assert "42" in agent.text("execute_code", code="6 * 7")
    assert (tmp_path / "work" / "default").is_dir()


def test_unknown_options_of_the_server_are_refused(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "mcp-config", "--isolatoin", "local")
    assert (done.returncode, done.stdout) == (125, "")
    assert "--isolatoin" in done.stderr
