"""A session's tools under LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from kernelexec import Executor, InvalidConfig
from kernelexec.adapters.langchain import session_tools
from kernelexec.results import ExecutionResult
from tests.support.pace import until

pytestmark = pytest.mark.nightly


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path) as opened:
        yield opened


def invoke(tool: BaseTool, **arguments: object) -> ToolMessage:
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments})
    assert isinstance(message, ToolMessage)
    return message


def test_state_lasts_and_pictures_are_content_blocks(executor: Executor) -> None:
    code, command, output = session_tools(executor.session())
    assert [tool.name for tool in (code, command, output)] == ["execute_code", "execute_command", "read_output"]
    invoke(code, code="x = 41", timeout=None)
    message = invoke(code, code="import matplotlib.pyplot as plt\nplt.plot([x, 1]);", timeout=None)
    assert [block["type"] for block in message.content_blocks] == ["text", "image"]
    assert isinstance(message.artifact, ExecutionResult)
    assert message.artifact.images[0].mime == "image/png"
    assert invoke(code, code="x + 1", timeout=None).text.splitlines()[1] == "42"
    assert "Timeout: it was ended" in invoke(code, code="import time; time.sleep(60)", timeout=1).text
    assert "state restored" in invoke(code, code="import os; os._exit(1)", timeout=None).text
    assert (
        "2" in invoke(output, execution_id=invoke(command, command="seq 3", timeout=None).artifact.execution_id, offset=0).text
    )
    with pytest.raises(InvalidConfig):
        session_tools(executor.session(), text_bytes=1)


def test_tools_run_in_an_event_loop_and_are_cancelled_there(executor: Executor) -> None:
    session = executor.session()
    code = session_tools(session)[0]

    async def use() -> str:
        await code.ainvoke({"code": "x = 1", "timeout": None})
        sleeps = "import time; open('begun', 'w').close(); time.sleep(600)"
        running = asyncio.create_task(code.ainvoke({"code": sleeps, "timeout": 600}))
        await asyncio.to_thread(until, (session.workspace / "begun").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return str(await code.ainvoke({"code": "x", "timeout": None}))

    assert asyncio.run(use()).splitlines()[1] == "1"
