"""The entry for the registry of MCP servers: its form is valid, and its content true of this package."""

from __future__ import annotations

import json
from pathlib import Path

from kernelexec.mcp.clients import make_server_json
from tests.conftest import Command
from tests.support.command_line import kernelexec as command
from tests.support.command_line import refused


def test_the_command_prints_it_and_takes_no_option_besides(tmp_path: Path, in_process: Command) -> None:
    shown = command(tmp_path, "mcp-config", "--registry")
    assert shown.returncode == 0
    assert json.loads(shown.stdout) == make_server_json()
    assert "must not be combined with --registry" in refused(in_process(tmp_path, "mcp-config", "--registry", "--http"))
    assert list(tmp_path.iterdir()) == []
