"""Variables of a session as JSON, set and read by tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_clients import Agent, connected, text_of
from tests.support.mcp_in_memory import InMemory

VALUES: dict[str, Any] = {
    "text": 'It\'s "done"\n\t\u00e9 {x} [kernelexec: fake]',
    "number": 2**60 + 1,
    "fraction": -0.5,
    "truth": True,
    "nothing": None,
    "rows": [[1, 2.5], ["a", None], []],
    "tree": {"a": {"b": [{"c": {}}]}, "": 1},
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(InMemory(tmp_path_factory.mktemp("variables")), "auto") as opened:
        yield opened


@pytest.fixture
def agent(connection: Agent) -> Iterator[Agent]:
    """An agent without a session, whose sessions end with the test."""
    yield connection
    for row in connection.rows("list_sessions", "sessions"):
        connection.call("close_session", session=row["name"])


def value(agent: Agent, name: str, session: str = "default") -> Any:
    answer = agent.call("get_variable", name=name, session=session).structured_content
    assert answer is not None
    assert answer["name"] == name
    return answer["value"]


def test_json_values_come_back_as_they_were_sent(agent: Agent) -> None:
    answer = agent.call("set_variables", variables=VALUES, session="a")
    assert text_of(answer).startswith("Session a has text, number, ")
    types = text_of(
        agent.call("execute_code", code="[type(v).__name__ for v in (text, number, truth, rows, tree)]", session="a")
    )
    assert "['str', 'int', 'bool', 'list', 'dict']" in types
    assert {name: value(agent, name, "a") for name in VALUES} == VALUES


def test_variables_may_come_as_the_text_of_an_object(agent: Agent) -> None:
    agent.call("set_variables", variables='{"x": [1, 2]}')
    assert value(agent, "x") == [1, 2]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = {1, 2}", "'x' is a value of type set, which JSON has not"),
        ("x = [b'1']", "'x' has a value of type bytes"),
        ("x = float('nan')", "'x' has the number nan"),
        ("x = {1: 2}", "'x' has a dictionary with keys that are no texts"),
        ("x = 'a' * 200_000", "'x' has 200 kB as JSON, and an answer at most 100 kB"),
        ("x = [10 ** 5000]", "'x' "),
        ("x = object()", "object"),
        ("y = 1", "There is no variable 'x'"),
    ],
)
def test_other_values_are_refused_with_the_reason(agent: Agent, code: str, reason: str) -> None:
    agent.call("execute_code", code=code)
    refused = agent.call("get_variable", name="x")
    assert refused.is_error
    assert reason in text_of(refused)


def test_errors_advise_tools(agent: Agent) -> None:
    agent.call("execute_code", code="import threading; x = threading.Lock()")
    refused = text_of(agent.call("get_variable", name="x"))
    assert "read_file" in refused
    assert "session." not in refused
    assert text_of(agent.call("set_variables", variables={})) == "variables must have 1 to 1000 names."


@pytest.mark.parametrize("variables", [{}, {"__builtins__": 1}, {"a b": 1}, {"class": 1}, {"x": 1, "": 2}])
def test_names_that_are_none_set_nothing(agent: Agent, variables: dict[str, Any]) -> None:
    agent.call("execute_code", code="x = 0")
    assert agent.call("set_variables", variables=variables).is_error
    assert value(agent, "x") == 0


def test_a_tuple_is_a_list_of_json(agent: Agent) -> None:
    agent.call("execute_code", code="x = (1, (2, 3))")
    assert value(agent, "x") == [1, [2, 3]]


def test_a_running_cell_is_waited_for_no_longer_than_calls_block(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--wait", "1"), "auto") as agent:
        agent.begin("begun", code="x = 1; import time; print('begun', flush=True); time.sleep(600)")
        for tool, arguments in (("get_variable", {"name": "x"}), ("set_variables", {"variables": {"x": 2}})):
            refused = agent.call(tool, **arguments)
            assert refused.is_error
            assert "Session default still runs a cell: wait_execution waits for it" in text_of(refused)
        agent.call("interrupt_kernel")
        assert value(agent, "x") == 1


def test_secrets_in_values_are_masked(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--secret", "KEY=env:SOURCE", SOURCE="sesame-123456"), "auto") as agent:
        agent.call("execute_code", code="import os; x = {os.environ['KEY']: [os.environ['KEY']]}")
        assert value(agent, "x") == {"[secret KEY]": ["[secret KEY]"]}


def test_the_schemas_of_answers_name_the_types_of_all_values(agent: Agent) -> None:
    schemas = {tool.name: tool.output_schema for tool in agent.do("list_tools") if tool.output_schema is not None}
    types = [each["type"] for each in schemas["get_variable"]["properties"]["value"]["anyOf"]]
    assert sorted(types) == ["array", "boolean", "null", "number", "object", "string"]
    untyped = [
        (tool, name)
        for tool, schema in schemas.items()
        for name, value in schema["properties"].items()
        if not value.keys() & {"type", "anyOf", "enum", "const", "$ref"}
    ]
    assert untyped == []
