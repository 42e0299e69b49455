"""What a request's name promises to MCP's clients: one run, also when the client and its server are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import BOUND, appears
from tests.support.mcp_clients import ERAS, Agent, connected, raw, record_of, text_of
from tests.support.mcp_in_memory import InMemory

COUNT = "with open('count', 'a') as file: _ = file.write('x')"
BEGUN = f"{COUNT}\nopen('begun', 'w').close()\nimport time; time.sleep(600)"


def count(cwd: Path) -> int:
    return len((cwd / "workspaces" / "default" / "count").read_text())


def twenty(agent: Agent, **arguments: Any) -> list[Any]:
    started = [agent.start("execute_code", **arguments) for _ in range(20)]
    return [call.result(BOUND) for call in started]


def test_twenty_retries_at_once_run_it_once_also_after_the_client_was_killed(tmp_path: Path) -> None:
    code = f"{COUNT}\nprint('counted')"
    with connected(InMemory(tmp_path), "auto") as agent:
        first = twenty(agent, code=code, request_id="add")
        assert {record_of(answer)["execution_id"] for answer in first} == {record_of(first[0])["execution_id"]}
    assert count(tmp_path) == 1
    with raw(tmp_path, "legacy") as client:
        number = client.call("execute_code", code=code, request_id="add")
        assert "counted" in client.answer(number)["result"]["content"][0]["text"]
        client.process.kill()
    with connected(InMemory(tmp_path), "auto") as agent:
        again = twenty(agent, code=code, request_id="add")
        assert {record_of(answer)["execution_id"] for answer in again} == {record_of(first[0])["execution_id"]}
        assert all("counted" in text_of(answer) and "state lost" in text_of(answer) for answer in again)
    assert count(tmp_path) == 1


@pytest.mark.parametrize("era", ERAS)
def test_a_request_whose_server_was_killed_is_unknown_and_not_run_again(era: str, tmp_path: Path) -> None:
    with raw(tmp_path, era) as client:
        client.call("execute_code", code=BEGUN, request_id="add", timeout=700)
        appears(client.process, tmp_path / "workspaces" / "default" / "begun")  # type: ignore[arg-type]
        client.process.kill()
    with connected(InMemory(tmp_path), era) as agent:
        answers = twenty(agent, code=BEGUN, request_id="add", timeout=700)
        assert {record_of(answer)["status"] for answer in answers} == {"unknown"}
        assert text_of(answers[0]).startswith("[unknown · its output is unknown]\n[kernelexec: ")
        assert "It did not run again." in text_of(answers[0])
        assert "With a new request_id it would run again." in text_of(answers[0])
    assert count(tmp_path) == 1
