"""A task is its owner's: for every other client it does not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from tests.end_to_end.mcp.test_tasks import UNKNOWN, WAITS
from tests.support.mcp_clients import output_of, text_of
from tests.support.mcp_server import create_token, serving
from tests.support.mcp_task_clients import LONG, META, METHODS, Knowing, answer_of, begin, request, until

pytestmark = pytest.mark.nightly


def test_a_strangers_task_is_one_that_there_is_not(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        server.client("auto", x_kernelexec_agent="one", options={"extensions": [Knowing()]}) as item,
        server.client("auto", x_kernelexec_agent="other", options={"extensions": [Knowing()]}) as other,
    ):
        task = begin(item, "execute_code", code=WAITS.format(str(tmp_path / "go")) + "print('mine')")
        begin(other, "execute_code", code=LONG, timeout=700)
        for method, more in METHODS.items():
            output = []
            for number in (task.task_id, "f" * 32):
                with pytest.raises(MCPError) as caught:
                    request(other, method, number, **more)
                output.append((caught.value.error.code, caught.value.error.message.replace(number, "")))
            assert output[0] == output[1]
            assert output[0][0] == UNKNOWN
        (tmp_path / "go").touch()
        assert "mine" in text_of(answer_of(until(item, task.task_id, "completed")))
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": task.task_id, "_meta": META}}
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", "mcp-name": "other"}
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tasks/get", "x-kernelexec-agent": "one"}
        assert (
            b"must name the same task"
            in json.dumps(server.ask("POST", "/mcp", json.dumps(body).encode(), **headers)[1]).encode()
        )


def test_tokens_say_whose_task_it_is_and_what_may_be_done_to_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    alice, reader = create_token(tokens, "alice"), create_token(tokens, "alice", "read")
    bob, options = create_token(tokens, "bob"), {"extensions": [Knowing()]}
    with (
        serving(tmp_path, "--tokens", str(tokens)) as server,
        server.client("auto", authorization=f"Bearer {alice}", options=options) as agent,
        server.client("auto", authorization=f"Bearer {reader}", options=options) as looking,
        server.client("auto", authorization=f"Bearer {bob}", options=options) as stranger,
    ):
        task = begin(agent, "execute_code", code=LONG, timeout=700)
        assert request(looking, "tasks/get", task.task_id).status == "working"
        with pytest.raises(MCPError, match="scope execute"):
            request(looking, "tasks/cancel", task.task_id)
        with pytest.raises(MCPError, match="You have no task"):
            request(stranger, "tasks/cancel", task.task_id)
        request(agent, "tasks/cancel", task.task_id)
        assert until(agent, task.task_id, "cancelled", "completed").status == "cancelled"


def test_an_agent_that_only_a_request_names_gets_an_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.client("auto", options={"extensions": [Knowing()]}) as agent:
        call = {"code": "import time; time.sleep(1); 6 * 7"}
        answer = agent.do("call_tool", "execute_code", call, meta={"kernelexec/agent": "m1"})
        assert text_of(answer).splitlines()[-1] == "42"
        handle = agent.call("create_session").structured_content
        assert handle is not None
        code = WAITS.format(str(tmp_path / "go")) + "6 * 7"
        task = begin(agent, "execute_code", session=handle["session"], code=code)
        (tmp_path / "go").touch()
        assert output_of(answer_of(until(agent, task.task_id, "completed"))) == "42"
