"""The entry by which MCP clients start the server."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from kernelexec.mcp.clients import add_server, make_server_entry


@pytest.mark.parametrize(
    ("option", "value", "expected"),
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
    option: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for options, wanted in (((option, value), [option, expected]), ((f"{option}={value}",), [f"{option}={expected}"])):
        answer = ("--sudo", *options, "--timeout", "5")
        assert make_server_entry(answer, cwd="/base")["args"][4:] == ["--sudo", *wanted, "--timeout", "5"]
        assert make_server_entry(answer)["args"][4:] == list(answer)  # from where the client runs it


@pytest.mark.parametrize("servers", [{}, []], ids=["mapping", "list"])
def test_a_name_is_never_there_twice(servers: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert add_server(servers, make_server_entry(["--isolation", "local"]))
    before = json.dumps(servers)
    with caplog.at_level(logging.WARNING, "kernelexec"):
        assert not add_server(servers, make_server_entry())
    assert json.dumps(servers) == before
    assert [record.msg for record in caplog.records] == ["kernelexec.server_already_present"]
    assert add_server(servers, make_server_entry(), name="other")
    assert len(servers) == 2
