"""A session's tools and shell under the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernelexec import Executor, Session
from tests.support.pace import until

if TYPE_CHECKING:
    from agents import Model, RunResult
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("default"),  # the framework's own
    pytest.mark.usefixtures("collect_garbage"),
]

NUMBERS = itertools.count()


class Script:
    """The items with which a model answers, one after the other, and the inputs that it got."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)
        self.inputs: list[Any] = []

    def model(self) -> Model:
        from agents import Model, ModelResponse, Usage

        script = self

        class Scripted(Model):
            async def get_response(self, *_: Any, **arguments: Any) -> ModelResponse:
                script.inputs.append(arguments["input"])
                return ModelResponse(output=[script.items.pop(0)], usage=Usage(), response_id=None)

            def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
                raise NotImplementedError

        return Scripted()

    async def run(self, tools: Iterable[Any], text: str) -> RunResult:
        from agents import Agent, Runner

        return await Runner.run(Agent("a", model=self.model(), tools=list(tools)), text)


def cell(code: str, timeout: float | None = None) -> ResponseFunctionToolCall:
    return function("execute_code", json.dumps({"code": code, "timeout": timeout}))


def function(name: str, arguments: str) -> ResponseFunctionToolCall:
    from openai.types.responses import ResponseFunctionToolCall

    return ResponseFunctionToolCall(type="function_call", name=name, call_id=f"call-{next(NUMBERS)}", arguments=arguments)


def shell(*commands: str, timeout_ms: int | None = None) -> dict[str, Any]:
    action = {"commands": list(commands), "timeout_ms": timeout_ms, "max_output_length": 1000}
    return {"type": "shell_call", "id": "s1", "call_id": f"shell-{next(NUMBERS)}", "status": "completed", "action": action}


def text(answer: str) -> ResponseOutputMessage:
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    content = [ResponseOutputText(type="output_text", text=answer, annotations=[])]
    return ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=list(content))


def tools_of(session: Session) -> tuple[Any, ...]:
    from kernelexec.adapters.openai_agents import session_tools

    return tuple(session_tools(session))


def outputs(model: Script) -> list[Any]:
    """Return the outputs of tools in the model's last input."""
    return [item["output"] for item in model.inputs[-1] if str(item.get("type", "")).endswith("_output")]


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    from agents import set_tracing_disabled

    set_tracing_disabled(disabled=True)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path) as opened:
        yield opened


def test_an_agent_keeps_its_state_and_gets_pictures(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        tools = tools_of(executor.session())
        figure = "import matplotlib.pyplot as plt\nplt.plot([x, 1]);"
        model = Script(cell("x = 41"), cell(figure), cell("import time; time.sleep(60)", 1), cell("x + 1"), text("done"))
        result = asyncio.run(model.run(tools, "compute"))
        assert result.final_output == "done"
        first, pictured, slow, last = outputs(model)
        assert first.startswith("[ok · ")
        assert [part["type"] for part in pictured] == ["input_text", "input_image"]
        assert pictured[1]["image_url"].startswith("data:image/png;base64,iVBOR")
        assert "Timeout: it was ended" in slow
        assert last.splitlines()[1] == "42"
        model = Script(cell("import os; os._exit(1)"), cell("x + 2"), text("done"))
        asyncio.run(model.run(tools, "go on"))
        died, following = outputs(model)
        assert "state restored" in died
        assert following.splitlines()[1] == "43"


def test_arguments_that_a_model_invents_are_answered(executor: Executor) -> None:
    calls = (function("execute_code", "{"), function("execute_code", "[1]"), function("execute_code", '{"cod": "1"}'))
    model = Script(*calls, text("done"))
    asyncio.run(model.run(tools_of(executor.session()), "compute"))
    answers = outputs(model)
    assert "must be JSON" in answers[0]
    assert "must be a JSON object" in answers[1]
    assert "did you mean 'code'" in answers[2]


def test_shell_calls_are_commands_of_the_session(executor: Executor) -> None:
    from agents import ShellTool

    from kernelexec.adapters.openai_agents import SessionShell

    calls = (
        shell("mkdir deeper", "cd deeper", "basename $PWD; echo problem >&2; false"),
        shell("basename $PWD", timeout_ms=100_000),
        shell("sleep 60", "echo never", timeout_ms=1000),
        shell("rm -rf /"),
    )
    model = Script(*calls, text("done"))
    asyncio.run(model.run([ShellTool(executor=SessionShell(executor.session()))], "look"))
    several, kept, slow, refused = outputs(model)
    assert [output["outcome"]["exit_code"] for output in several] == [0, 0, 1]
    assert (several[2]["stdout"], several[2]["stderr"].splitlines()[0]) == ("deeper\n", "problem")
    assert kept[0]["stdout"] == "deeper\n"
    assert [output["outcome"]["type"] for output in slow] == ["timeout"]
    assert "Timeout: it was ended" in slow[0]["stderr"]
    assert "rm -rf" in refused[0]["stderr"]
    assert refused[0]["outcome"]["exit_code"] != 0


def test_a_cancelled_run_interrupts_its_cell(executor: Executor) -> None:
    session = executor.session()

    async def cancel() -> None:
        sleeps = "import time; open('begun', 'w').close(); time.sleep(600)"
        model = Script(cell("x = 1"), cell(sleeps, 600), text("done"))
        running = asyncio.create_task(model.run(tools_of(session), "compute"))
        await asyncio.to_thread(until, (session.workspace / "begun").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    assert session.execute("x").text == "1"
