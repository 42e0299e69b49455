"""What a cell asks by input(), over MCP: the client of a call is asked, in its era's way, where the operator lets cells ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp.client.elicitation import ElicitResult

from tests.support.command_line import BOUND
from tests.support.mcp_clients import (
    BOTH_ERAS,
    ENVELOPE,
    ERAS,
    Agent,
    connected,
    record_of,
    text_of,
    transport,
    without_head,
)
from tests.support.mcp_in_memory import InMemory
from tests.support.mcp_server import Server, serving
from tests.support.night import named_cases
from tests.support.takeovers import wait_until

ASKS = "name = input('Name? ')\nprint('Hello', name)"
#: The beginning of a cell that waits until the test makes a file, also after the call that sent it has let go of it.
WAITS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("asking"), "--allow-input") as server:
        yield server


class Person:
    """The user of a client: gives one answer after the other, None for a refusal, and keeps the questions."""

    def __init__(self, *answers: str | None) -> None:
        self.questions: list[str] = []
        self._answers = list(answers)

    async def __call__(self, message: str, _response_type: Any, params: Any, _context: Any) -> Any:
        self.questions.append(message)
        answer = self._answers.pop(0)
        if answer is None:
            return ElicitResult(action="decline")
        name = next(iter(params.requested_schema["properties"]))
        return ElicitResult(action="accept", content={name: answer})


@pytest.mark.parametrize(
    ("era", "in_memory"),
    named_cases(
        {
            "legacy": ("legacy", False),  # the server asks during the call, over its stream
            "auto": ("auto", True),
            "auto over a stream": ("auto", False),
        },
        gate=("legacy", "auto"),
    ),
)
def test_a_cell_is_answered_within_its_call(era: str, in_memory: bool, tmp_path: Path) -> None:  # noqa: FBT001
    person = Person("Ada", "Grace", "Joan")
    served = (InMemory if in_memory else transport)(tmp_path, "--allow-input")
    with connected(served, era, elicitation_handler=person) as agent:
        assert agent.text("execute_code", code=ASKS).splitlines() == ["Name? Ada", "Hello Ada"]
        expected = agent.call("execute_code", code="a, b = input('1? '), input('2? ')\nopen('ran', 'a').write('x')")
        assert record_of(expected)["status"] == "ok"
        assert "Grace Joan" in agent.text("execute_code", code="print(a, b)")
        assert (tmp_path / "workspaces/default/ran").read_text() == "x"
    assert person.questions == [f"The running cell in session default asks: {prompt}" for prompt in ("Name? ", "1? ", "2? ")]


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_an_answer_that_is_refused_is_an_end_of_the_file(era: str, tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--allow-input"), era, elicitation_handler=Person(None)) as agent:
        expected = agent.call("execute_code", code=ASKS)
    assert (record_of(expected)["status"], record_of(expected)["state"]) == ("error", "kept")
    assert "EOFError: the client's answer was decline" in text_of(expected)


def test_a_call_returns_when_the_cell_ends_before_the_answer(tmp_path: Path) -> None:
    async def never_answer(*_: Any) -> Any:
        await anyio.sleep_forever()

    (tmp_path / "impatient.json").write_text(json.dumps({"budgets": {"approval": 0.5}}))
    served = InMemory(tmp_path, "--allow-input", "--config", str(tmp_path / "impatient.json"))
    with connected(served, "legacy", elicitation_handler=never_answer) as agent:
        assert "EOFError" in agent.text("execute_code", code=ASKS)
        assert agent.text("execute_code", code="1 + 1").endswith("2")


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_a_call_that_waits_takes_the_question_to_its_client(era: str, tmp_path: Path) -> None:
    person = Person("Ada")
    with connected(InMemory(tmp_path, "--allow-input"), era, elicitation_handler=person) as agent:
        running = record_of(agent.call("execute_code", code=WAITS.format("go") + ASKS, wait=0.1))
        assert running["status"] == "running"
        (tmp_path / "workspaces/default/go").touch()
        expected = agent.call("wait_execution", execution_id=running["execution_id"], wait=BOUND)
    assert record_of(expected)["status"] == "ok"
    assert "Hello Ada" in text_of(expected)
    assert len(person.questions) == 1


@pytest.mark.parametrize("era", ERAS)
def test_cells_without_an_answering_client_fail_at_once(era: str, tmp_path: Path) -> None:
    def refused(agent: Agent, state: str) -> None:
        expected = agent.call("execute_code", code=ASKS)
        assert (record_of(expected)["status"], record_of(expected)["state"]) == ("error", state)
        assert "StdinNotImplementedError" in text_of(expected)

    person = Person()
    with connected(InMemory(tmp_path), era, elicitation_handler=person) as agent:  # the operator does not let them
        refused(agent, "kept")
    with connected(InMemory(tmp_path, "--allow-input"), era) as agent:  # the client has no elicitation
        refused(agent, "new")
    assert person.questions == []


@pytest.mark.parametrize("era", ERAS)
def test_a_password_is_not_asked_for(era: str, tmp_path: Path) -> None:
    person = Person()
    with connected(InMemory(tmp_path, "--allow-input"), era, elicitation_handler=person) as agent:
        expected = agent.text("execute_code", code="import getpass; getpass.getpass()")
    assert "EOFError: the server does not ask for passwords over MCP" in expected
    assert person.questions == []


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_an_approved_cell_asks_too(era: str, tmp_path: Path) -> None:
    class Approving(Person):
        async def __call__(self, message: str, _response_type: Any, params: Any, _context: Any) -> Any:
            if "approve" in params.requested_schema["properties"] or message.startswith("Run this"):
                name = next(iter(params.requested_schema["properties"]))
                return ElicitResult(action="accept", content={name: True})
            return await super().__call__(message, _response_type, params, _context)

    with connected(InMemory(tmp_path, "--allow-input", "--ask", "always"), era, elicitation_handler=Approving("Ada")) as agent:
        assert "Hello Ada" in agent.text("execute_code", code=ASKS)


def test_only_the_agent_whose_cell_asks_can_answer(server: Server) -> None:
    asked = sent(server, "a", code=ASKS)
    assert asked["resultType"] == "input_required"
    eve, ada = (answer(asked["requestState"], name) for name in ("Eve", "Ada"))
    sent(server, "b", code="1 + 1")
    foreign = sent(server, "b", eve, code=ASKS)
    assert foreign["isError"]
    assert "None of your open sessions has an execution" in foreign["content"][0]["text"]
    reported = sent(server, "a", ada, code=ASKS)
    assert without_head(reported["content"][0]["text"]).splitlines() == ["Name? Ada", "Hello Ada"]
    again = sent(server, "a", eve, code=ASKS)  # an answer that comes twice runs nothing: the result is shown again
    assert again["content"] == reported["content"]


def test_an_approval_is_for_a_session_of_its_own_agent(tmp_path: Path) -> None:
    with serving(tmp_path, "--ask", "always") as server:
        asked = sent(server, "a", code="1 + 1")
        approved = {"action": "accept", "content": {"approve": True}}
        approval = {"requestState": asked["requestState"], "inputResponses": {"approval": approved}}
        assert sent(server, "b", approval, code="1 + 1")["resultType"] == "input_required"
        ran = sent(server, "a", approval, code="1 + 1")
        assert ran["content"][0]["text"].endswith("\n2")


def test_cancelling_a_call_that_has_answered_interrupts_its_cell(tmp_path: Path) -> None:
    code = "input('Name? ')\nopen('answered', 'w').close()\nimport time\ntime.sleep(600)"
    with connected(InMemory(tmp_path, "--allow-input"), "auto", elicitation_handler=Person("Ada")) as agent:
        call = agent.start("execute_code", code=code, timeout=700, wait=600)
        wait_until((tmp_path / "workspaces/default/answered").exists)
        call.cancel()
        assert "no output" in agent.text("execute_code", code="pass")
        assert agent.rows("list_sessions", "sessions")[0]["executions"] == []


def answer(state: str, name: str) -> dict[str, Any]:
    """What a client of the newest protocol sends with a call that it repeats."""
    return {"requestState": state, "inputResponses": {"input": {"action": "accept", "content": {"text": name}}}}


def sent(server: Server, agent: str, more: dict[str, Any] | None = None, /, **arguments: Any) -> dict[str, Any]:
    """The result of a call of execute_code, as it goes over the wire."""
    capable: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    params = {"name": "execute_code", "arguments": arguments, "_meta": ENVELOPE | capable} | (more or {})
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "execute_code",
        "X-Kernelexec-Agent": agent,
    }
    _, expected = server.ask("POST", "/mcp", json.dumps(request).encode(), **headers)
    lines = expected.decode().splitlines() if isinstance(expected, bytes) else [f"data: {json.dumps(expected)}"]
    messages = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    actual: dict[str, Any] = next(item["result"] for item in messages if "result" in item)
    return actual
