"""A session as functions that models call, by the frameworks' own means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # type: ignore[import-untyped] # it comes without types
import pytest

from kernelexec import Executor
from kernelexec.adapters.tools import FunctionTool, function_tools
from kernelexec.errors import InvalidConfig

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models.function import AgentInfo


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FunctionTool]]:
    with Executor("local", workspace=tmp_path_factory.mktemp("tools")) as executor:
        yield {tool.name: tool for tool in function_tools(executor.session(), text_bytes=1000)}


def test_variables_last_and_failures_are_text(tools: dict[str, FunctionTool]) -> None:
    run = tools["execute_code"].call
    assert re.fullmatch(r"\[ok · \d+\.\d\d s · state kept · no output\]", run(code="x = 41"))
    assert run(code="x + 1", timeout=None).splitlines()[1] == "42"
    failed = run(code="x / 0")
    assert re.match(r"\[error · exit code 1 · \d+\.\d\d s · state kept\]\n", failed)
    assert "ZeroDivisionError" in failed
    missing = run(code="open('made.txt', 'w').close()\nimport nump").splitlines()[1:3]
    assert [line.removeprefix("[kernelexec: ").removesuffix("]").partition(": ")[::2] for line in missing] == [
        ("hint", "nump is not installed in the kernel's environment: install it, or do without."),
        ("files made or changed", "made.txt"),
    ]
    assert "[error · exit code 124 · ended by timeout" in run(code="import time; time.sleep(60)", timeout=0.5)
    assert asyncio.run(tools["execute_code"].acall(code="x")).splitlines()[1] == "41"


def test_commands_keep_their_directory(tools: dict[str, FunctionTool]) -> None:
    tools["execute_command"].call(command="mkdir -p deeper && cd deeper")
    assert tools["execute_command"].call(command="pwd").endswith("/deeper")
    assert tools["execute_command"].call(command="sudo ls").startswith("[aborted]\n")


def test_long_output_is_read_on(tools: dict[str, FunctionTool]) -> None:
    answer = tools["execute_code"].call(code="print('y' * 5000)")
    assert len(answer) < 1500
    execution_id = answer.partition("execution_id='")[2].partition("'")[0]
    page, offset = "", 0
    while True:
        read = tools["read_output"].call(execution_id=execution_id, offset=offset)
        text, _, more = read.partition("\n[kernelexec: read on with offset=")
        page += text
        if not more:
            break
        offset = int(more.rstrip("]"))
    assert page == "y" * 5000 + "\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"cod": "1"}, "execute_code: 'cod' is not an argument (did you mean 'code'?): must be one of code, timeout."),
        ({}, "execute_code: the argument 'code' is missing: must have code, timeout."),
        ({"timeout": 1}, "execute_code: the argument 'code' is missing"),
        ({"code": ""}, "code"),
        ({"code": "1", "timeout": -1}, "timeout"),
    ],
)
def test_unfit_arguments_are_answered_with_text(
    tools: dict[str, FunctionTool], arguments: dict[str, object], expected: str
) -> None:
    assert expected in tools["execute_code"].call(**arguments)


def test_a_call_by_position_names_the_tool(tools: dict[str, FunctionTool]) -> None:
    for name, tool in tools.items():
        assert tool.call().startswith(f"{name}: the argument ")
        with pytest.raises(TypeError, match=rf"^{name}\(\) takes 0 positional arguments"):
            tool.call("1")


@pytest.mark.parametrize("text_bytes", [0, 3, -1, True, 1.5, None, "1000", float("nan")])
def test_a_bound_that_is_none_is_refused_at_once(tmp_path: Path, text_bytes: Any) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        with pytest.raises(InvalidConfig, match=r"^text_bytes=.*: must be a whole number of bytes >= 4"):
            function_tools(session, text_bytes=text_bytes)


def test_the_smallest_bound_still_reads_on(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        tools = {tool.name: tool for tool in function_tools(executor.session(), text_bytes=4)}
        cut = tools["execute_code"].call(code="print('\U0001f600' * 2)")
        execution_id = cut.partition("execution_id='")[2].partition("'")[0]
        first = tools["read_output"].call(execution_id=execution_id)
        assert first == "\U0001f600\n[kernelexec: read on with offset=4]"
        assert tools["read_output"].call(execution_id=execution_id, offset=8) == "\n"


def test_schemas_take_what_functions_take(tools: dict[str, FunctionTool]) -> None:
    for tool in tools.values():
        shape = tool.openai()
        assert (shape["type"], shape["function"]["name"], shape["function"]["strict"]) == ("function", tool.name, True)
        schema = shape["function"]["parameters"]
        jsonschema.Draft202012Validator.check_schema(schema)
        assert set(schema["required"]) == set(schema["properties"])  # as the strict form wants it
        assert tool.anthropic()["input_schema"] == schema
    jsonschema.validate({"code": "1", "timeout": None}, tools["execute_code"].openai()["function"]["parameters"])


@pytest.mark.nightly  # in the gate an agent of another framework does
def test_langchain_calls_them(tools: dict[str, FunctionTool]) -> None:
    from langchain_core.tools import StructuredTool

    tool = tools["execute_code"]
    created = StructuredTool.from_function(
        tool.call, name=tool.name, description=tool.description, args_schema=dict(tool.parameters)
    )
    assert "42" in created.invoke({"code": "6 * 7", "timeout": None})


def test_an_agent_of_pydantic_ai_calls_them(tools: dict[str, FunctionTool]) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.tools import Tool

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        if returned:
            return ModelResponse(parts=[TextPart(str(returned[-1].content))])
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"code": "6 * 7", "timeout": None})])

    tool = tools["execute_code"]
    created = Tool.from_schema(tool.call, tool.name, tool.description, dict(tool.parameters))
    assert "42" in asyncio.run(Agent(FunctionModel(model), tools=[created]).run("compute")).output
