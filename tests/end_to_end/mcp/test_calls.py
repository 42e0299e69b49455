"""Calls that block, in the process of the test: progress, cancellation, queues."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client

from kernelexec import AsyncExecutor
from kernelexec.mcp.elicitation import find_last_line, generate_report_times
from kernelexec.mcp.server import make_server
from kernelexec.mcp.sessions import SessionService
from kernelexec.results import DisplayData, Stream
from tests.support.command_line import BOUND
from tests.support.mcp_clients import BOTH_ERAS, ERAS, output_of, record_of, text_of

Served = Callable[[Callable[[Client[Any], AsyncExecutor], Awaitable[None]]], None]
#: A cell that says that it runs, and goes on for ten minutes.
ENDLESS = {"code": "open('begun', 'w').close()\nimport time\ntime.sleep(600)", "timeout": 700}


@pytest.fixture(params=ERAS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    """Runs a test against a server that tells of progress five times a second."""

    async def serve(test: Callable[[Client[Any], AsyncExecutor], Awaitable[None]]) -> None:
        with anyio.fail_after(BOUND):
            async with AsyncExitStack() as stack:
                executor = await stack.enter_async_context(AsyncExecutor("local", workspace=tmp_path))
                client = await stack.enter_async_context(
                    Client(make_server(SessionService(executor, interval=0.2)), mode=request.param)
                )
                await test(client, executor)

    return lambda test: anyio.run(serve, test)


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - what a cell in another process does sets no event here
        await anyio.sleep(0.01)


@pytest.mark.parametrize("served", BOTH_ERAS, indirect=True)
def test_progress_has_the_seconds_and_the_newest_line(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], _: AsyncExecutor) -> None:
        reported: list[tuple[float, str]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, message or ""))
            for word in ("first", "third"):
                if sum(word in heard for _, heard in reported) == 2:
                    (tmp_path / "default" / word).touch()

        code = (
            "import os, time\ndef wait(word):\n    while not os.path.exists(word): time.sleep(0.02)\n"
            "print('first', flush=True)\nwait('first')\n"
            "print('second\\r\\nthird ' + 'x' * 1000, flush=True)\nwait('third')"
        )
        await client.call_tool("execute_code", {"code": code}, progress_handler=hear)
        assert len(reported) >= 3
        assert [elapsed for elapsed, _ in reported] == sorted({elapsed for elapsed, _ in reported})
        messages = [message for _, message in reported]
        assert any(re.fullmatch(r"\d+ s: execution_id \w+: first", message) for message in messages)
        assert re.fullmatch(r"\d+ s: execution_id \w+: third x{194}", messages[-1])

    served(test)


def test_a_call_that_starts_a_kernel_tests_code_or_installs_reports_progress(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], _: AsyncExecutor) -> None:
        reported: list[str] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            reported.append(message or "")
            if reported[-1].endswith("the cases run"):
                (tmp_path / "heard").touch()

        case = f"while not os.path.exists({str(tmp_path / 'heard')!r}): time.sleep(0.02)"
        call = {"code": "import os, time", "cases": [case], "timeout": BOUND}
        await client.call_tool("run_tests", call, progress_handler=hear)
        assert any(message.endswith("s: the cases run") for message in reported)

    served(test)


def test_progress_comes_within_a_second_then_less_and_less_often() -> None:
    assert list(islice(generate_report_times(5.0), 6)) == [0.8, 2.0, 4.0, 9.0, 14.0, 19.0]
    assert list(islice(generate_report_times(0.5), 3)) == [0.5, 1.0, 1.5]


def test_a_collecting_call_reports_progress_too(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], _: AsyncExecutor) -> None:
        reported: list[str] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            reported.append(message or "")
            if "working" in reported[-1]:
                (tmp_path / "default" / "heard").touch()

        code = "import os, time\nprint('working')\nwhile not os.path.exists('heard'):\n    time.sleep(0.02)"
        running = await client.call_tool("execute_code", {"code": code, "wait": 0})
        arguments = {"execution_id": record_of(running)["execution_id"]}
        await client.call_tool("wait_execution", arguments, progress_handler=hear)
        assert any("working" in message for message in reported)

    served(test)


@pytest.mark.parametrize("served", BOTH_ERAS, indirect=True)
def test_a_cancelled_call_interrupts_its_cell_and_the_kernel_is_in_step(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], executor: AsyncExecutor) -> None:
        await client.call_tool("execute_code", {"code": "x = 5"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "execute_code", ENDLESS)
            await until((tmp_path / "default" / "begun").exists)
            tasks.cancel_scope.cancel()
        result = await client.call_tool("execute_code", {"code": "print(x)"})
        assert output_of(result).rstrip("\n") == "5"
        session = await executor.session()
        interrupted = (await session.wait_for(session.executions()[1])).result
        assert interrupted is not None
        assert (interrupted.interrupted, interrupted.state) == ("request", "kept")

    served(test)


def test_a_cell_that_waits_never_runs_once_its_call_is_cancelled(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], executor: AsyncExecutor) -> None:
        running = await client.call_tool("execute_code", ENDLESS | {"wait": 0})
        session = await executor.session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "execute_code", {"code": "open('never', 'w')"})
            await until(lambda: len(session.executions()) == 2)
            tasks.cancel_scope.cancel()
        waiting = session.executions()[-1]
        ended = (await session.wait_for(waiting, wait=BOUND)).result
        assert ended is not None
        assert ended.status == "aborted"
        first = await session.wait_for(record_of(running)["execution_id"], wait=0.001)
        assert first.status == "running"
        await client.call_tool("interrupt_kernel")
        assert not (tmp_path / "default" / "never").exists()

    served(test)


def test_a_cancelled_call_does_not_end_what_a_retry_of_it_waits_for(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], executor: AsyncExecutor) -> None:
        code = "open('begun', 'w').close()\nimport time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('ended')"
        arguments = {"code": code, "request_id": "one"}
        texts, reported = list[str](), list[float]()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            reported.append(progress)

        async def retry() -> None:
            texts.append(text_of(await client.call_tool("execute_code", arguments, progress_handler=hear)))

        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as first:
                first.start_soon(client.call_tool, "execute_code", arguments)
                await until((tmp_path / "default" / "begun").exists)
                tasks.start_soon(retry)
                await until(lambda: bool(reported))  # it has joined
                first.cancel_scope.cancel()
            heard = len(reported)
            await until(lambda: len(reported) > heard + 1)  # it goes on waiting
            (tmp_path / "default" / "go").touch()
        assert texts[0].startswith("[ok · ")
        assert texts[0].endswith("\nended\n")
        (tmp_path / "default" / "begun").unlink()
        async with anyio.create_task_group() as alone:
            alone.start_soon(client.call_tool, "execute_code", ENDLESS | {"request_id": "two"})
            await until((tmp_path / "default" / "begun").exists)
            alone.cancel_scope.cancel()
        assert "7" in text_of(await client.call_tool("execute_code", {"code": "7"}))

    served(test)


def test_cancelling_a_collecting_call_costs_the_cell_nothing(served: Served, tmp_path: Path) -> None:
    async def test(client: Client[Any], _: AsyncExecutor) -> None:
        code = "open('begun', 'w').close()\nimport time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('ended')"
        running = await client.call_tool("execute_code", {"code": code, "wait": 0})
        arguments = {"execution_id": record_of(running)["execution_id"]}
        collects = anyio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            collects.set()

        await until((tmp_path / "default" / "begun").exists)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.call_tool, "wait_execution", arguments, progress_handler=hear))
            await collects.wait()
            tasks.cancel_scope.cancel()
        await client.call_tool("list_sessions")  # what was sent before has been read
        (tmp_path / "default" / "go").touch()
        assert "ended" in text_of(await client.call_tool("wait_execution", arguments))

    served(test)


def test_first_calls_at_once_make_one_session(served: Served) -> None:
    async def test(client: Client[Any], executor: AsyncExecutor) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.call_tool, "execute_code", {"code": "n = globals().get('n', 0) + 1"})
        result = await client.call_tool("execute_code", {"code": "n"})
        assert output_of(result).rstrip("\n") == "5"
        assert executor.sessions() == ("default",)
        assert (await executor.session()).kernel_epoch == 1

    served(test)


def test_the_place_in_the_queue_is_reported(served: Served) -> None:
    async def test(client: Client[Any], _: AsyncExecutor) -> None:
        await client.call_tool("execute_code", ENDLESS | {"wait": 0})
        waiting = await client.call_tool("execute_code", {"code": "1", "wait": 0})
        assert record_of(waiting)["place"] == 1
        assert "it waits behind 1 other(s)" in text_of(waiting)
        await client.call_tool("interrupt_kernel")
        ended = await client.call_tool("wait_execution", {"execution_id": record_of(waiting)["execution_id"]})
        assert record_of(ended)["status"] == "ok"

    served(test)


def test_the_newest_line_says_something_and_is_bounded() -> None:
    assert find_last_line([]) == ""
    assert find_last_line([Stream("stdout", "a\nb\n\n  \n")]) == "b"
    assert find_last_line([Stream("stdout", "10 %\r20 %\r")]) == "20 %"
    assert find_last_line([Stream("stdout", "a\n"), DisplayData({"text/plain": "shown"})]) == "shown"
    assert find_last_line([Stream("stdout", "a\n"), Stream("stderr", "\n")]) == "a"
    assert len(find_last_line([Stream("stdout", "x" * 10**6)])) == 200
