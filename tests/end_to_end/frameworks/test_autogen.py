"""AutoGen's own agent with our executor: its component, cancellation, a conversation with a scripted model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, with_requirements
from autogen_core.code_executor import CodeExecutor as BaseExecutor

from kernelexec.adapters.autogen import AutogenCodeExecutor, AutogenCodeResult
from kernelexec.errors import KernelStartFailed
from tests.end_to_end.frameworks.test_ag2 import LOCAL, SECURE
from tests.support.engine import IMAGE, needs_engine
from tests.support.pace import slow
from tests.support.scripted_model import CONVERSATION

if TYPE_CHECKING:
    from autogen_agentchat.agents._code_executor_agent import ApprovalRequest, ApprovalResponse


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@asynccontextmanager
async def opened(tmp_path: Path, **settings: Any) -> AsyncIterator[AutogenCodeExecutor]:
    async with AutogenCodeExecutor(isolation="local", workspace=tmp_path, **settings) as executor:
        yield executor


def approve(request: ApprovalRequest) -> ApprovalResponse:
    from autogen_agentchat.agents._code_executor_agent import ApprovalResponse

    return ApprovalResponse(approved=bool(request.code), reason="")


async def done(executor: AutogenCodeExecutor, code: str, language: str = "python") -> AutogenCodeResult:
    return await executor.execute_code_blocks([CodeBlock(code=code, language=language)], CancellationToken())


@pytest.mark.parametrize(
    "value",
    [pytest.param(SECURE, marks=[needs_engine, pytest.mark.nightly], id="container"), pytest.param(LOCAL, id="local")],
)
def test_an_agent_writes_code_that_fails_mends_it_and_saves_a_plot(
    value: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autogen_agentchat.agents import CodeExecutorAgent
    from autogen_agentchat.messages import TextMessage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    monkeypatch.chdir(tmp_path)
    text: list[str] = []

    async def work() -> None:
        model = ReplayChatCompletionClient(list(CONVERSATION))
        isolation = "container" if value["use_docker"] else None  # also where this runs in a container itself
        async with AutogenCodeExecutor(isolation, code_execution_config=value) as executor:
            coder = CodeExecutorAgent("coder", code_executor=executor, approval_func=approve)
            for _ in range(2):
                answer = (await model.create([])).content
                message = TextMessage(content=str(answer), source="assistant")
                reply = (await coder.on_messages([message], CancellationToken())).chat_message
                text.append(reply.to_text())

    run(work)
    assert "TypeError: list indices must be integers" in text[0]
    assert "median 5" in text[1]
    assert (tmp_path / str(value["work_dir"]) / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly  # in the gate it gets its code from another one
def test_the_agent_writes_its_own_code_with_a_model(tmp_path: Path) -> None:
    from autogen_agentchat.agents import CodeExecutorAgent
    from autogen_ext.models.replay import ReplayChatCompletionClient

    async def work() -> None:
        retry = '{"reason": "the index is no whole number", "retry": true}'
        model = ReplayChatCompletionClient(
            [CONVERSATION[0], retry, CONVERSATION[1], "The median is 5."],
            model_info={
                "vision": False,
                "function_calling": False,
                "json_output": True,
                "structured_output": True,
                "family": "unknown",
            },
        )
        async with opened(tmp_path) as executor:
            coder = CodeExecutorAgent(
                "coder", code_executor=executor, model_client=model, max_retries_on_error=2, approval_func=approve
            )
            text = [str(event) async for event in coder.run_stream(task="What is the median of the data?")]
        assert "The median is 5." in text[-1]
        assert any("CodeExecutionEvent" in each and "median 5" in each for each in text)

    run(work)


def test_the_executor_is_a_serializable_component(tmp_path: Path) -> None:
    created = AutogenCodeExecutor(
        isolation="local", workspace=tmp_path, config={"budgets": {"timeout": 7}}, execution_policies={"js": False}
    )
    assert isinstance(created, BaseExecutor)
    written = created.dump_component()
    assert written.provider == "kernelexec.adapters.autogen.AutogenCodeExecutor"
    again = BaseExecutor.load_component(written)
    assert isinstance(again, AutogenCodeExecutor)
    assert again.dump_component() == written
    assert written.config["config"] == {"budgets": {"timeout": 7}}


def test_blocks_keep_their_state_and_end_at_the_first_failure(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as executor:
            blocks = [CodeBlock(code=code, language="python") for code in ("n = 2", "print(n)\n1 / 0", "print('no')")]
            result = await executor.execute_code_blocks(blocks, CancellationToken())
            assert result.exit_code == 1
            assert result.output.startswith("2\n")
            assert "no" not in result.output.splitlines()
            assert (await done(executor, "echo hi", "bash")).output == "hi\n"
            await executor.restart()
            assert "NameError" in (await done(executor, "n")).output

    run(work)


def test_a_cancelled_cell_is_interrupted_and_the_state_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as executor:
            token = CancellationToken()
            sleeps = CodeBlock(code="x = 7\nopen('began', 'w').close()\nimport time\ntime.sleep(60)", language="python")
            call = asyncio.ensure_future(executor.execute_code_blocks([sleeps], token))
            while not (executor.session.workspace / "began").exists():  # noqa: ASYNC110 - a file says nothing
                await asyncio.sleep(0.01)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await done(executor, "print(x)")).output == "7\n"

    run(work)


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_cancelled_call_that_waits_is_never_run_and_stops_no_other(tmp_path: Path, language: str) -> None:
    async def work() -> None:
        async with opened(tmp_path) as executor:
            directory, token = executor.session.workspace, CancellationToken()
            waits = "import os, time\nopen('began', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
            running = asyncio.ensure_future(done(executor, waits + "print('through')"))
            while not (directory / "began").exists():  # noqa: ASYNC110 - a file says nothing
                await asyncio.sleep(0.01)
            code = "open('ran', 'w')" if language == "python" else "touch ran"
            call = executor.execute_code_blocks([CodeBlock(code=code, language=language)], token)
            waiting, last = asyncio.ensure_future(call), asyncio.ensure_future(done(executor, "print('last')"))
            while len(executor.session.executions()) < 3:  # noqa: ASYNC110 - nor do these
                await asyncio.sleep(0.01)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len(executor.session.executions()) == 3
            (directory / "go").touch()
            assert [(each.exit_code, each.output.splitlines()[0]) for each in (await running, await last)] == [
                (0, "through"),
                (0, "last"),
            ]
            assert not (directory / "ran").exists()

    run(work)


def test_a_cancelled_call_that_has_not_sent_anything_stops_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as executor:
            running = asyncio.ensure_future(done(executor, "import time\ntime.sleep(1)\nprint('through')"))
            saving = asyncio.ensure_future(done(executor, "# filename: a.py\n1"))
            await asyncio.sleep(0)
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            assert (await running).output == "through\n"

    run(work)


def test_no_kernel_is_an_error_not_an_answer(tmp_path: Path) -> None:
    async def work() -> None:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        async with opened(tmp_path / "w", config={"python": str(python), "fork_server": False}) as executor:
            python.unlink()
            with pytest.raises(KernelStartFailed):
                await executor.restart()
            with pytest.raises(KernelStartFailed):
                await done(executor, "1")

    run(work)


@pytest.mark.nightly  # in the gate AG2's test shows it, and a cancelled cell here
def test_a_timeout_keeps_the_state(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, config={"budgets": {"timeout": slow(2)}}) as executor:
            assert (await done(executor, "x = 7\nimport time\ntime.sleep(600)")).exit_code == 124
            assert (await done(executor, "print(x)")).output == "7\n"

    run(work)


def test_pictures_become_files_and_functions_can_be_imported(tmp_path: Path) -> None:
    @with_requirements(global_imports=["math"])
    def area(radius: float) -> float:
        """The area of a circle."""
        return math.pi * radius**2  # type: ignore[name-defined,no-any-return] # noqa: F821 - imported where it runs

    async def work() -> None:
        async with opened(tmp_path, functions=[area]) as executor:
            result = await done(
                executor, "from functions import area\nimport matplotlib.pyplot as plt\nplt.plot([1, area(1)])\nplt.show()"
            )
            assert result.exit_code == 0
            assert result.output_files[0].read_bytes().startswith(b"\x89PNG")
            assert "The area of a circle." in executor.format_functions_for_prompt()

    run(work)


def test_the_code_tool_uses_it(tmp_path: Path) -> None:
    from autogen_ext.tools.code_execution import PythonCodeExecutionTool

    async def work() -> None:
        async with opened(tmp_path) as executor:
            tool = PythonCodeExecutionTool(executor)
            for code, success, output in (("print(6 * 7)", True, "42\n"), ("1 / 0", False, "ZeroDivisionError")):
                result = await tool.run_json({"code": code}, CancellationToken())
                assert result.success is success
                assert output in result.output

    run(work)


def test_the_executor_must_be_started_and_can_stop_twice(tmp_path: Path) -> None:
    async def work() -> None:
        executor = AutogenCodeExecutor(isolation="local", workspace=tmp_path)
        with pytest.raises(RuntimeError, match="not started"):
            await done(executor, "1")
        await asyncio.gather(executor.start(), executor.start())
        await executor.start()
        assert (await done(executor, "1")).exit_code == 0
        await asyncio.gather(executor.stop(), executor.stop())
        await executor.stop()

    run(work)


@needs_engine
def test_a_container_is_chosen_by_the_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where its journal is: a session of the same name may have been closed elsewhere

    async def work() -> None:
        value = {"use_docker": IMAGE, "work_dir": str(tmp_path / "w")}
        async with AutogenCodeExecutor("container", code_execution_config=value) as executor:
            assert (await done(executor, "print(open('/etc/hostname').read() != '')")).output == "True\n"
            assert (await executor.session.execute("1")).isolation == "container"

    run(work)
