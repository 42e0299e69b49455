"""A client that knows the tasks extension, by the SDK's own seam for that: it asks until a task has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, cast

import anyio
from fastmcp.client.client import CallToolResult
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult as Answer
from mcp.types import Request, RequestParams, Result
from pydantic import Field

from tests.support.command_line import BOUND
from tests.support.mcp_clients import Agent

TASKS = "io.modelcontextprotocol/tasks"
#: The extension's requests, with what they take besides a task's id.
METHODS: dict[str, dict[str, Any]] = {"tasks/get": {}, "tasks/update": {"input_responses": {}}, "tasks/cancel": {}}
#: What a request says of a client that knows it.
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
}
#: A cell that is still running whatever is done meanwhile.
LONG = "x = 41\nprint('begun', flush=True)\nimport time\ntime.sleep(600)"


class Created(Result):
    """What comes in the place of an answer."""

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int = Field(alias="pollIntervalMs")


class Looked(Result):
    """A task as it is now, with what its status has besides."""

    task_id: str = Field(alias="taskId")
    status: str
    status_message: str = Field("", alias="statusMessage")
    poll_interval_ms: int = Field(alias="pollIntervalMs")
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = Field(None, alias="inputRequests")


class Params(RequestParams):
    task_id: str = Field(serialization_alias="taskId")
    input_responses: dict[str, Any] | None = Field(None, serialization_alias="inputResponses")


class TaskRequest(Request[Params, str]):
    """Any of the extension's."""

    name_param: ClassVar[str | None] = "taskId"
    method: str
    params: Params


async def ask(session: Any, method: str, task_id: str, **more: Any) -> Looked:
    kind: type[Result] = Looked if method == "tasks/get" else Result
    return cast("Looked", await session.send_request(TaskRequest(method=method, params=Params(task_id=task_id, **more)), kind))


class Knowing(ClientExtension):
    identifier = TASKS

    def __init__(self, on_look: Callable[[Looked], object] = lambda _: None) -> None:
        self.looks: list[Looked] = []
        """What was heard of tasks, the oldest first."""
        self._on_look = on_look

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, context: ClaimContext) -> Answer:
        while (seen := await ask(context.session, "tasks/get", created.task_id)).status == "working":
            self.looks.append(seen)
            self._on_look(seen)
            await anyio.sleep(seen.poll_interval_ms / 1000)
        self.looks.append(seen)
        assert seen.status == "completed"
        return Answer.model_validate(seen.result)


def begin(agent: Agent, tool: str, /, **arguments: Any) -> Created:
    """Call a tool whose answer is a task, and do not wait for that."""
    answer: object = agent.portal.call(partial(agent.client.session.call_tool, tool, arguments, allow_claimed=True))
    assert isinstance(answer, Created), answer
    return answer


def request(agent: Agent, method: str, task_id: str, /, **more: Any) -> Looked:
    return agent.portal.call(partial(ask, agent.client.session, method, task_id, **more))


def until(agent: Agent, task_id: str, *statuses: str) -> Looked:
    """Look at a task until it has one of these statuses."""
    return _looked(agent, task_id, lambda seen: seen.status in statuses)


def until_written(agent: Agent, task_id: str, words: str) -> Looked:
    """Look at a task that is working until its cell has written these words."""
    return _looked(agent, task_id, lambda seen: words in seen.status_message or seen.status != "working")


def _looked(agent: Agent, task_id: str, is_enough: Callable[[Looked], bool]) -> Looked:
    async def wait() -> Looked:
        with anyio.fail_after(BOUND):
            while not is_enough(seen := await ask(agent.client.session, "tasks/get", task_id)):  # noqa: ASYNC110 - polled
                await anyio.sleep(seen.poll_interval_ms / 1000)
        return seen

    return agent.portal.call(wait)


def answer_of(seen: Looked) -> CallToolResult:
    """A task's result, as a call that blocks has it."""
    actual = Answer.model_validate(seen.result)
    return CallToolResult(content=actual.content, structured_content=actual.structured_content, meta=actual.meta)
