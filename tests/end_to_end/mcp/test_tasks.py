"""A client that knows the tasks extension gets a task for a long cell; for all others nothing is different."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError

from kernelexec import AsyncExecutor
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.mcp.calls import sessions, tasks_extension
from kernelexec.mcp.server import make_server
from tests.support.command_line import BOUND, END_STATUS, ENDS, STUBBORN, appears, names
from tests.support.mcp_clients import ERAS, Agent, connected, raw, record_of, text_of, transport
from tests.support.mcp_server import serving
from tests.support.mcp_task_clients import (
    LONG,
    META,
    METHODS,
    TASKS,
    Created,
    Knowing,
    Looked,
    answer_of,
    begin,
    request,
    until,
    until_written,
)
from tests.support.pace import until as until_true

pytestmark = pytest.mark.nightly

Connect = Callable[..., AbstractContextManager[Agent]]
PICTURE = """
import base64, time
from IPython.display import Image, display
display(Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")))
print('drawn', flush=True)
"""
#: The end of a cell that waits until the test makes a file.
WAITS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.02)\n"
UNKNOWN, UNDECLARED, NO_METHOD = -32602, -32021, -32601


@pytest.fixture(params=["stdio", "HTTP"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Connects a client that knows tasks, or one of an era, or with other options, to one server."""

    @contextmanager
    def by_pipes(era: str = "auto", /, *args: str, **options: Any) -> Iterator[Agent]:
        with connected(transport(tmp_path, *args), era, **options) as agent:
            yield agent

    @contextmanager
    def by_http(era: str = "auto", /, *args: str, **options: Any) -> Iterator[Agent]:
        with serving(tmp_path, *args) as server, server.client(era, x_kernelexec_agent="one", options=options) as agent:
            yield agent

    return by_pipes if request.param == "stdio" else by_http


def test_a_long_cell_is_a_task_with_the_result_of_a_call_that_blocks(connect: Connect, tmp_path: Path) -> None:
    def let_go(seen: Looked) -> None:
        if "drawn" in seen.status_message:
            (tmp_path / "go").touch()

    knowing = Knowing(let_go)
    with connect(extensions=[knowing]) as agent:
        answer = agent.call("execute_code", code=PICTURE + WAITS.format(str(tmp_path / "go")))
        assert [seen.status for seen in knowing.looks][-1] == "completed"
        assert any("drawn" in seen.status_message for seen in knowing.looks[:-1])
        assert [block.type for block in answer.content] == ["text", "image"]
        assert answer.structured_content is None
        record = record_of(answer)
        assert (record["status"], record["state"], record["execution_id"]) == ("ok", "kept", knowing.looks[-1].task_id)
        again = agent.call("wait_execution", execution_id=record["execution_id"])
        assert again.content == answer.content
        assert record_of(again) == record
        command = agent.call("execute_command", command="echo out; sleep 1; exit 7").structured_content
        assert command is not None
        assert (command["exit_code"], command["stdout"], command["status"]) == (7, "out\n", "error")


def test_what_is_done_at_once_is_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_TASK_AFTER", BOUND)
    knowing = Knowing()

    async def test() -> None:
        async with (
            AsyncExecutor("local", workspace=tmp_path) as executor,
            Client(make_server(executor, interval=5), extensions=[knowing]) as client,
        ):
            answer = await client.call_tool("execute_code", {"code": "1 + 1"})
            assert text_of(answer).splitlines()[-1] == "2"

    anyio.run(test)
    assert knowing.looks == []


def test_what_says_how_long_it_waits_is_no_task(connect: Connect, tmp_path: Path) -> None:
    knowing = Knowing()
    with connect(extensions=[knowing]) as agent:
        begun = agent.call("execute_code", code=WAITS.format(str(tmp_path / "go")) + "6 * 7", wait=0.1)
        assert record_of(begun)["status"] == "running"
        (tmp_path / "go").touch()
        assert "42" in agent.text("wait_execution", execution_id=record_of(begun)["execution_id"])
        assert "No session" in agent.text("interrupt_kernel", session="other")
    assert knowing.looks == []


def test_a_cancelled_task_has_interrupted_its_cell_and_the_state_is_kept(connect: Connect) -> None:
    with connect(extensions=[Knowing()]) as agent:
        task = begin(agent, "execute_code", code=LONG, timeout=700)
        assert (task.status, task.ttl_ms) == ("working", None)
        until_written(agent, task.task_id, "begun")
        request(agent, "tasks/cancel", task.task_id)
        ended = until(agent, task.task_id, "cancelled", "completed", "failed")
        assert ended.status == "cancelled"
        assert ended.result is None
        assert "wait_execution" in ended.status_message
        assert agent.text("execute_code", code="x + 1").splitlines()[0] == "42"
        left = agent.call("wait_execution", execution_id=task.task_id)
        assert "begun" in text_of(left)
        assert (record_of(left)["interrupted"], record_of(left)["state"]) == ("request", "kept")
        request(agent, "tasks/cancel", task.task_id)  # once more is nothing


def test_a_task_whose_cell_another_client_interrupts_has_a_result(connect: Connect) -> None:
    with connect(extensions=[Knowing()]) as agent:
        task = begin(agent, "execute_code", code=LONG, timeout=700)
        until_written(agent, task.task_id, "begun")
        agent.call("interrupt_kernel")
        ended = until(agent, task.task_id, "cancelled", "completed")
        assert record_of(answer_of(ended))["interrupted"] == "request"
        request(agent, "tasks/cancel", task.task_id)
        assert request(agent, "tasks/get", task.task_id).status == "completed"  # what has ended stays as it is


def test_a_request_that_is_sent_again_is_the_same_task(connect: Connect, tmp_path: Path) -> None:
    with connect(extensions=[Knowing()]) as agent:
        code = WAITS.format(str(tmp_path / "go")) + "print('once')"
        first, second = (begin(agent, "execute_code", code=code, request_id="one") for _ in range(2))
        (tmp_path / "go").touch()
        assert first.task_id == second.task_id
        assert "once" in text_of(answer_of(until(agent, first.task_id, "completed")))


def test_a_task_of_a_session_that_has_ended_is_unknown(connect: Connect) -> None:
    with connect(extensions=[Knowing()]) as agent:
        task = begin(agent, "execute_code", code=LONG, timeout=700)
        agent.call("close_session", session="default")
        with pytest.raises(MCPError, match="none of a closed session") as caught:
            request(agent, "tasks/get", task.task_id)
        assert caught.value.error.code == UNKNOWN


def test_a_client_that_asks_for_no_task_sees_what_it_always_saw(connect: Connect) -> None:
    with connect() as agent:
        answer = agent.call("execute_code", code="import time; time.sleep(1); 6 * 7")
        assert (text_of(answer).splitlines()[-1], record_of(answer)["status"]) == ("42", "ok")
        tools = agent.do("list_tools")
        for method, more in METHODS.items():
            with pytest.raises(MCPError, match=TASKS) as caught:
                request(agent, method, record_of(answer)["execution_id"], **more)
            assert caught.value.error.code == UNDECLARED
    with connect(extensions=[Knowing()]) as agent:
        assert agent.do("list_tools") == tools


def test_before_the_extension_there_are_no_tasks(connect: Connect) -> None:
    with connect("legacy", extensions=[Knowing()]) as agent:
        answer = agent.call("execute_code", code="import time; time.sleep(1); 6 * 7")
        assert text_of(answer).splitlines()[-1] == "42"
        for method, more in METHODS.items():
            with pytest.raises(MCPError) as caught:
                request(agent, method, record_of(answer)["execution_id"], **more)
            assert caught.value.error.code == NO_METHOD


@pytest.mark.parametrize("answer", [True, False])
def test_a_task_asks_its_client_when_the_turn_comes(connect: Connect, answer: bool) -> None:  # noqa: FBT001
    with connect("auto", "--ask", "refused", extensions=[Knowing()], elicitation_handler=never_asked) as agent:
        before = begin(agent, "execute_code", code="import time; time.sleep(600)", timeout=700)
        task = begin(agent, "execute_code", code="!sudo --version; echo ran")
        assert request(agent, "tasks/get", task.task_id).status == "working"
        request(agent, "tasks/cancel", before.task_id)
        asking = until(agent, task.task_id, "input_required", "completed")
        assert asking.input_requests is not None
        [(key, question)] = asking.input_requests.items()
        assert question["method"] == "elicitation/create"
        assert "rule 'sudo'" in question["params"]["message"]
        output = {"action": "accept", "content": {"approve": answer}}
        request(agent, "tasks/update", task.task_id, input_responses={"other": {"roots": []}})
        with pytest.raises(MCPError, match="must have an action"):
            request(agent, "tasks/update", task.task_id, input_responses={key: {"action": "perhaps"}})
        assert request(agent, "tasks/get", task.task_id).status == "input_required"
        request(agent, "tasks/update", task.task_id, input_responses={key: output})
        ended = answer_of(until(agent, task.task_id, "completed"))
        assert ("ran" in text_of(ended).splitlines()) == answer
        assert record_of(ended)["status"] == ("ok" if answer else "aborted")


async def never_asked(*_: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize("end", ENDS, ids=["SIGTERM", "SIGINT", "EOF"])
def test_a_server_with_a_task_ends_and_leaves_nothing(end: signal.Signals | None, tmp_path: Path, short_path: Path) -> None:
    private = short_path / "private"
    private.mkdir(mode=0o700)
    with raw(tmp_path, "auto", TMPDIR=str(private), KERNELEXEC_RUNTIME_DIR=str(private)) as client:
        client.send(call_of(STUBBORN))
        assert client.answer(100)["result"].items() >= {"resultType": "task", "status": "working", "ttlMs": None}.items()
        appears(client.process, tmp_path / "workspaces" / "default" / "begun")  # type: ignore[arg-type]
        family = psutil.Process(client.process.pid).children(recursive=True)
        if end is None:
            assert client.process.stdin is not None
            client.process.stdin.close()
            client.process.stdin = None
        else:
            client.process.send_signal(end)
        status = client.process.wait(BOUND)
        assert psutil.wait_procs(family, timeout=BOUND)[1] == []
        _, stderr = client.end()
    assert status == END_STATUS[end]
    assert "Traceback" not in stderr
    until_true(lambda: names(private) == [])


def call_of(code: str) -> dict[str, Any]:
    params = {"name": "execute_code", "arguments": {"code": code}, "_meta": META}
    return {"jsonrpc": "2.0", "id": 100, "method": "tools/call", "params": params}


def test_a_server_over_http_with_a_task_ends_and_leaves_nothing(tmp_path: Path, short_path: Path) -> None:
    private = short_path / "private"
    private.mkdir(mode=0o700)
    places = {"TMPDIR": str(private), "KERNELEXEC_RUNTIME_DIR": str(private)}
    with serving(tmp_path, **places) as server:
        with server.client("auto", x_kernelexec_agent="one", options={"extensions": [Knowing()]}) as agent:
            begin(agent, "execute_code", code=STUBBORN)
            until_true(lambda: list((tmp_path / "workspaces").glob("*/begun")))
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert len(family) >= 2  # the client has gone, its task has not
        server.process.terminate()
        assert server.process.wait(BOUND) == 0
        assert psutil.wait_procs(family, timeout=BOUND)[1] == []
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()
    until_true(lambda: names(private) == [])


def test_tasks_of_departed_clients_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_TASK_AFTER", SHORTEST_TIMEOUT)
    monkeypatch.setattr(tasks_extension, "_CLEAN_UP_AT", 4)
    kept: list[int] = []

    async def test() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            server = make_server(executor, interval=5)
            extension: Any = server._extensions[TASKS]
            async with Client(server, extensions=[Knowing()]) as client:
                for number in range(9):
                    code = {"code": "import time; time.sleep(600)", "timeout": 700}
                    assert isinstance(await client.session.call_tool("execute_code", code, allow_claimed=True), Created)
                    kept.append(len(extension._tasks))
                    if number == 5:
                        await client.call_tool("close_session", {"session": "default"})

    anyio.run(test)
    assert kept == [1, 2, 3, 4, 5, 6, 7, 8, 3]


def test_a_cancelled_call_does_not_end_what_is_a_task(tmp_path: Path) -> None:
    async def test() -> None:
        waits = anyio.Event()

        async def hear(*_: Any) -> None:
            waits.set()

        go = tmp_path / "default" / "go"
        call = {
            "code": "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('ended')",
            "request_id": "one",
        }
        async with (
            AsyncExecutor("local", workspace=tmp_path) as executor,
            Client(make_server(executor, interval=0.1), extensions=[Knowing()]) as client,
        ):
            task = await client.session.call_tool("execute_code", call, allow_claimed=True)
            assert isinstance(task, Created)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(client.call_tool, "execute_code", call | {"wait": 60}, progress_handler=hear))
                await waits.wait()
                group.cancel_scope.cancel()
            await client.list_tools()  # what was sent before has been read
            go.touch()
            ended = await client.call_tool("wait_execution", {"execution_id": task.task_id})
            assert "interrupted" not in record_of(ended)
            assert "ended" in text_of(ended)

    anyio.run(test)


@pytest.mark.parametrize("era", ERAS)
def test_the_server_says_that_it_knows_tasks_where_that_can_be_reported(era: str, tmp_path: Path) -> None:
    with raw(tmp_path, era) as client:
        actual = client.answer(client.ask("server/discover")) if era == "auto" else json.loads(client.lines[0])
    assert (TASKS in (actual["result"]["capabilities"].get("extensions") or {})) == (era == "auto")
