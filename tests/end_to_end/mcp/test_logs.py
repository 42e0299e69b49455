"""The log of a server: one line of JSON for each thing that happens, with the caller and the outcome, and without code."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.support.command_line import LOCAL
from tests.support.mcp_clients import ERAS, connected, transport
from tests.support.mcp_server import create_token, serving


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("era", ERAS)
def test_events_are_logged_without_code(tmp_path: Path, era: str) -> None:
    log = tmp_path / "log.jsonl"
    with connected(transport(tmp_path, "--log-file", str(log)), era) as agent:
        agent.call("execute_code", code="hunter2 = 1; print('x' * 10)")
        agent.call("execute_command", command="exit 7")
        agent.call("execute_code", code="import os; os._exit(3)")
        agent.call("execute_code", code="1", language="klingon")
        agent.call("write_file", path="f", content="hunter2")
        agent.call("close_session", session="default")
        agent.call("no_tool")
    actual = lines(log)
    text = log.read_text()
    assert "hunter2" not in text
    assert log.stat().st_mode & 0o777 == 0o600
    assert all(datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0) for line in actual)
    events = [
        line["event"] for line in actual if line["event"] != "orphaned_root_removed"
    ]  # what other servers left on this machine
    expected = ["session_opened", "kernel_started", "cell_started", "cell_ended", "call", "cell_started", "cell_ended", "call"]
    assert events[: len(expected)] == expected
    assert events[-3:] == ["session_closed", "call", "call"]
    ended = [line for line in actual if line["event"] == "cell_ended"]
    assert [(line["status"], line["state"], line["exit_code"]) for line in ended] == [
        ("ok", "kept", 0),
        ("error", "kept", 7),
        ("error", "restored", 3),
    ]
    assert ended[0]["output_bytes"] == 11
    assert {line["event"]: line for line in actual}["cell_refused"]["error"] == "InvalidRequest"
    died = next(line for line in actual if line["event"] == "kernel_died")
    assert (died["cause"], died["session"], died["level"]) == ("exited", "default", "info")
    calls = [(line["method"], line["target"], line["outcome"]) for line in actual if line["event"] == "call"]
    assert ("tools/call", "execute_code", "ok") in calls
    assert ("tools/call", "no_tool", "error") in calls
    assert "client" not in actual[0]


def test_over_http_each_line_says_whose_it_is_and_a_moved_log_goes_on(tmp_path: Path) -> None:
    tokens, log = tmp_path / "tokens", tmp_path / "log.jsonl"
    alice, bob = (create_token(tokens, name) for name in ("alice", "bob"))
    with serving(tmp_path, "--tokens", str(tokens), "--log-file", str(log)) as server:
        with server.client(authorization=f"Bearer {alice}") as agent:
            agent.call("execute_code", code="1")
        log.rename(tmp_path / "old.jsonl")
        with server.client(authorization=f"Bearer {bob}") as agent:
            agent.call("execute_code", code="1")
    for file, mine, other in ((tmp_path / "old.jsonl", "alice", "bob"), (log, "bob", "alice")):
        cells = [line for line in lines(file) if line["event"] in ("cell_started", "cell_ended", "call")]
        assert len(cells) == 3
        assert all(mine in line["client"] for line in cells)
        assert other not in file.read_text()
        assert not any(token in file.read_text() for token in (alice, bob))


def test_a_handle_is_in_no_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with connected(transport(tmp_path, "--log-file", str(log)), "auto") as agent:
        made_session = agent.call("create_session").structured_content
        assert made_session is not None
        handle = made_session["session"]
        agent.call("execute_code", code="1", session=handle)
        agent.do("read_resource", f"kernelexec://sessions/{handle}/notebook")
    assert "kernelexec://sessions/ks-.../notebook" in [line.get("target") for line in lines(log)]
    assert handle not in log.read_text()


def test_a_log_that_cannot_be_written_is_reported_before_anything_is_served(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "mcp", *LOCAL, "--log-file", str(tmp_path / "missing" / "log"))
    assert done.returncode == 125
    assert "cannot be written: No such file or directory." in done.stderr
