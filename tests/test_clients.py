"""The entry by which MCP clients start the server."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport

from kernelexec.config.clients import add_server, server_entry
from tests.mcp_clients import connected
from tests.test_cli import LOCAL, kernelexec


def test_the_entry_starts_the_server_with_its_options(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "mcp-config", "--name", "mine", *LOCAL, "--workspace", "work", DOCKER_HOST="unix:///nope")
    assert done.returncode == 0, done.stderr
    entry = json.loads(done.stdout)["mcpServers"]["mine"]
    assert Path(entry["command"]).samefile(sys.executable)
    assert entry == {
        "type": "stdio",
        "command": entry["command"],
        "args": ["-m", "kernelexec", "mcp", *LOCAL, "--workspace", str(tmp_path / "work")],
        "env": {"DOCKER_HOST": "unix:///nope"},
        "cwd": str(tmp_path),
    }
    with connected(
        StdioTransport(entry["command"], entry["args"], cwd=entry["cwd"], log_file=tmp_path / "log"), "auto"
    ) as agent:
        assert "42" in agent.text("execute_code", code="6 * 7")
    assert (tmp_path / "work" / "default").is_dir()


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        ("--workspace", "work", "/base/work"),
        ("--workspace", "/else/work", "/else/work"),
        ("--workspace", "~/work", "/home/me/work"),
        ("--allowed-paths", "../a", "/base/../a"),
        ("--log-dir", "logs", "/base/logs"),
        ("--work-dir", ".", "/base"),
        ("--socket", "s", "/base/s"),
        ("--tokens", "t", "/base/t"),
        ("--context", "data", "/base/data"),
        ("--context", "data:rw", "/base/data:rw"),
        ("--context", "a:b:ro", "/base/a:b:ro"),
        ("--context", "a:b", "/base/a:b"),
        ("--config", "c.yaml", "/base/c.yaml"),
        ("--config", "c#d.yaml#me", "/base/c#d.yaml#me"),
        ("--config", "~/c.yaml", "/base/~/c.yaml"),
        ("--python", "bin/python", "/base/bin/python"),
        ("--python", "python3", "python3"),
        ("--secret", "KEY=file:key", "KEY=file:/base/key"),
        ("--secret", "KEY=env:key", "KEY=env:key"),
        ("--image", "work", "work"),
    ],
)
def test_paths_are_absolute_since_clients_may_start_it_elsewhere(
    option: str, given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for options, wanted in (((option, given), [option, expected]), ((f"{option}={given}",), [f"{option}={expected}"])):
        said = ("--sudo", *options, "--timeout", "5")
        assert server_entry(said, cwd="/base")["args"][3:] == ["--sudo", *wanted, "--timeout", "5"]
        assert server_entry(said)["args"][3:] == list(said)  # from where the client runs it


def test_what_the_server_would_refuse_is_refused(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "mcp-config", "--isolatoin", "local")
    assert (done.returncode, done.stdout) == (125, "")
    assert "--isolatoin" in done.stderr


@pytest.mark.parametrize("servers", [{}, []], ids=["mapping", "list"])
def test_a_name_is_never_there_twice(servers: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert add_server(servers, server_entry(["--isolation", "local"]))
    before = json.dumps(servers)
    with caplog.at_level(logging.WARNING, "kernelexec"):
        assert not add_server(servers, server_entry())
    assert json.dumps(servers) == before
    assert [record.msg for record in caplog.records] == ["kernelexec.server_known"]
    assert add_server(servers, server_entry(), name="other")
    assert len(servers) == 2
