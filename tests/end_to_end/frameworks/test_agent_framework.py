"""A session's tools under Microsoft's Agent Framework, with a scripted chat client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message

from kernelexec import Executor
from kernelexec.adapters.agent_framework import SessionProvider, session_tools
from tests.support.pace import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("default"),  # the framework's own
    pytest.mark.usefixtures("collect_garbage"),
]


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """A chat client that runs the given cells, one after the other."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)
        self.results: list[Content] = []
        self.options: dict[str, Any] = {}

    def _inner_get_response(self, *, messages: Sequence[Message], options: Any, **_: Any) -> Any:
        async def respond() -> ChatResponse:
            self.options = dict(options)
            self.results += [content for content in messages[-1].contents if content.type == "function_result"]
            if not self.codes:
                return ChatResponse(messages=[Message("assistant", [Content.from_text("done")])])
            code = self.codes.pop(0)
            arguments = json.dumps({"code": code, "timeout": 1 if "sleep" in code else None})
            call = Content.from_function_call(f"call-{len(self.codes)}", "execute_code", arguments=arguments)
            return ChatResponse(messages=[Message("assistant", [call])])

        return respond()


def ask(agent: Agent) -> str:
    async def run() -> str:
        return (await agent.run("compute")).text

    return asyncio.run(run())


def parts(result: Content) -> list[Content]:
    return list(result.items or [])


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path) as opened:
        yield opened


def test_an_agent_keeps_its_state_and_gets_pictures(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        tools = session_tools(executor.session())
        client = Scripted(
            "x = 41", "import matplotlib.pyplot as plt\nplt.plot([x, 1]);", "import time; time.sleep(60)", "x + 1"
        )
        assert ask(Agent(client, tools=tools)) == "done"
        first, pictured, slow, last = client.results
        assert str(first.result).startswith("[ok · ")
        assert [part.type for part in parts(pictured)] == ["text", "data"]
        assert parts(pictured)[1].media_type == "image/png"
        assert "Timeout: it was ended" in str(slow.result)
        assert str(last.result).splitlines()[1] == "42"


def test_a_provider_adds_tools_and_instructions_to_each_run(executor: Executor) -> None:
    session = executor.session()
    client = Scripted("x = 1", "import os; os._exit(1)")
    ask(Agent(client, context_providers=[SessionProvider(session)]))
    assert "state restored" in str(client.results[1].result)
    assert [tool.name for tool in client.options["tools"]] == ["execute_code", "execute_command", "read_output"]
    assert "persistent Python kernel" in client.options["instructions"]


def test_a_cancelled_run_interrupts_its_cell(executor: Executor) -> None:
    session = executor.session()
    session.execute("x = 1")

    async def cancel() -> None:
        tool = session_tools(session)[0]
        code = "import time; open('begun', 'w').close(); time.sleep(600)"
        running = asyncio.create_task(tool.invoke(arguments={"code": code, "timeout": 600}))
        await asyncio.to_thread(until, (session.workspace / "begun").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    assert session.execute("x").text == "1"
