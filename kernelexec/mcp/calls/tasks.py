"""The protocol's tasks extension: a client that knows it gets a task for a long cell, and asks until that has ended.

A task is an execution, by its id: nothing else runs for it, and its owner, output and end are the execution's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
from fastmcp import Context
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.extensions import MethodBinding, ServerExtension, ToolCallContinuation
from fastmcp.tools import InputRequiredToolResult
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ElicitResult,
    RequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field, ValidationError

from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import UnknownExecution, UnknownSession
from kernelexec.mcp.callers import AGENT_META, CALLER, Caller
from kernelexec.mcp.calls.elicitation import asked_of, take
from kernelexec.mcp.calls.progress import newest_line
from kernelexec.mcp.calls.sessions import Calls, Waiter
from kernelexec.mcp.calls.task import TASK, Task
from kernelexec.mcp.scopes import EXECUTE, READ, allows
from kernelexec.results import ExecutionResult
from kernelexec.session import AsyncSession

#: The tools whose calls are executions; and the argument by which a model itself says how long it waits.
_TOOLS, _WAIT = ("execute_code", "execute_command"), "wait"
#: A task is looked at again after a quarter of its age, within these seconds.
_SOONEST, _LATEST = 0.1, 5.0
_ENDING = 1.0
#: From how many tasks on those are looked for that are over and forgotten.
_MANY = 64


class TaskParams(RequestParams):
    """What ``tasks/get`` and ``tasks/cancel`` are about."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """The answers to what a task asks."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class Tasks(ServerExtension):
    """The extension, for one executor's sessions."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tasks: dict[tuple[Caller, str], Task] = {}
        self._many = _MANY

    def methods(self) -> Sequence[MethodBinding]:
        """See fastmcp's ``ServerExtension``."""
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", UpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> Any:  # noqa: ANN401 - of the protocol's own results, one with a null in it
        """See fastmcp's ``ServerExtension``."""
        if params.name not in _TOOLS or _WAIT in (params.arguments or {}) or not self._knows(context):
            return await call_next()
        task = Task(_owner(), params.name)
        token = TASK.set(task)
        try:
            outcome = await call_next()
        finally:
            TASK.reset(token)
        if not task.begun or isinstance(outcome, InputRequiredToolResult):
            return outcome
        return _working(self._kept(task), "task")

    def _knows(self, context: Context) -> bool:
        """Whether the client can ask for a task, as the agent that it is now: what only one request says, the next may not."""
        inner = context.request_context
        if inner is None or inner.protocol_version not in MODERN_PROTOCOL_VERSIONS or (inner.meta or {}).get(AGENT_META):
            return False
        return context.client_extension_settings(self.identifier) is not None

    def _kept(self, task: Task) -> Task:
        """The task by which an execution is known: the first of several calls of one request."""
        if len(self._tasks) >= self._many:
            known = self._calls.knows
            self._tasks = {key: one for key, one in self._tasks.items() if known(one.owner, one.session, one.execution_id)}
            self._many = max(_MANY, 2 * len(self._tasks))
        return self._tasks.setdefault((task.owner, task.execution_id), task)

    async def _get(self, request: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        task, session = self._found(request, params.task_id, reading=True)
        progress = await session.wait_for(task.execution_id, cursor=task.cursor, wait=SHORTEST_TIMEOUT)
        if progress.cursor != task.cursor:
            task.cursor, task.updated = progress.cursor, datetime.now(UTC)
            task.newest = newest_line(progress.outputs) or task.newest
        if progress.result is None:
            asked = self._questions(task)
            return _said(task, "complete", "input_required", inputRequests=asked) if asked else _working(task, "complete")
        if task.cancelled and _is_cut_off(progress.result):
            why = f"It was interrupted: wait_execution(execution_id='{task.execution_id}') has what it had put out."
            return _said(task, "complete", "cancelled", statusMessage=why)
        return _said(task, "complete", "completed", result=await self._result(task, session))

    async def _update(self, request: ServerRequestContext[Any, Any], params: UpdateParams) -> dict[str, Any]:
        task, _ = self._found(request, params.task_id, reading=False)
        given = {key: params.input_responses[key] for key in self._questions(task) if key in params.input_responses}
        try:
            answers = {key: ElicitResult.model_validate(answer) for key, answer in given.items()}
        except ValidationError as exc:
            message = f"inputResponses: {next(iter(given))} is answered by an action, and content if that is accept."
            raise MCPError(INVALID_PARAMS, message) from exc
        if (pending := self._calls.asked(task.execution_id)) is not None and pending.name in answers:
            take(pending, answers.pop(pending.name))
        task.answer(answers)
        return {"resultType": "complete"}

    def _questions(self, task: Task) -> dict[str, dict[str, Any]]:
        """What a task's cell asks now, also by a call of its request that is over."""
        if (pending := self._calls.asked(task.execution_id)) is None:
            return task.questions()
        asked = asked_of(pending, task.session).model_dump(by_alias=True, mode="json", exclude_none=True)
        return {**task.questions(), pending.name: asked}

    async def _cancel(self, request: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        task, session = self._found(request, params.task_id, reading=False)
        progress = await session.wait_for(task.execution_id, cursor=task.cursor, wait=SHORTEST_TIMEOUT)
        if progress.result is None:
            task.cancelled, task.updated = True, datetime.now(UTC)
            with anyio.move_on_after(_ENDING):  # it is ended also if nobody waits for that
                await session.interrupt(task.execution_id)
        return {"resultType": "complete"}

    async def _result(self, task: Task, session: AsyncSession) -> dict[str, Any]:
        """What a call that blocks until the end would have given."""
        seen = await self._calls.follow(session, task.execution_id, Waiter(0), cursor=0)
        tool = await self.server.get_tool(task.tool)
        assert tool is not None
        assert task.show is not None
        made = tool.convert_result(await task.show(seen)).to_mcp_result()
        if not isinstance(made, CallToolResult):
            content, structured = made if isinstance(made, tuple) else (made, None)
            made = CallToolResult(content=content, structured_content=structured)
        return made.model_dump(by_alias=True, mode="json", exclude_none=True)

    def _found(self, request: ServerRequestContext[Any, Any], task_id: str, *, reading: bool) -> tuple[Task, AsyncSession]:
        """The caller's task of that id, and its session.

        Raises:
            MCPError: there is none, or the request may not be made.
        """
        if self.client_settings(request) is None:
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {self.identifier: {}}}}
            message = f"{self.identifier} is not among the capabilities of this request."
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)
        _check_route(task_id)
        if not allows(CALLER.get().scopes, reading=reading):
            raise MCPError(INVALID_REQUEST, f"This needs a token with the scope {READ if reading else EXECUTE}.")
        key = _owner(), task_id
        task = self._tasks.get(key)
        if task is not None:
            try:
                return task, self._calls.session_of(task_id, task.session)
            except (UnknownSession, UnknownExecution):
                del self._tasks[key]
        message = (
            f"You have no task {task_id!r:.100}: take the taskId of an answer with resultType task. Of tasks that have ended "
            "only the newest are remembered, and none whose session has ended."
        )
        raise MCPError(INVALID_PARAMS, message)


def _owner() -> Caller:
    """Whoever asks now, whatever their token lets them do."""
    return replace(CALLER.get(), scopes=None)


def _check_route(task_id: str) -> None:
    """Refuse a request that was sent here as if it were about another task.

    Raises:
        MCPError: it was.
    """
    try:
        header = get_http_request().headers.get(MCP_NAME_HEADER)
    except RuntimeError:  # not over HTTP
        return
    if header is not None and decode_header_value(header) != task_id:
        raise MCPError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} names another task than the request.")


def _is_cut_off(result: ExecutionResult) -> bool:
    """Whether a cell ended because that was asked for, and not before."""
    return result.interrupted == "request" or result.status == "aborted"


def _working(task: Task, kind: str) -> dict[str, Any]:
    told = f"{_age(task):.0f} s" + (f": {task.newest}" if task.newest else "")
    return _said(task, kind, "working", statusMessage=told)


def _said(task: Task, kind: str, status: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - what a status has besides
    return {
        "resultType": kind,
        "taskId": task.execution_id,
        "status": status,
        "createdAt": task.created.isoformat(),
        "lastUpdatedAt": task.updated.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": round(1000 * min(max(_age(task) / 4, _SOONEST), _LATEST)),
        **more,
    }


def _age(task: Task) -> float:
    return (datetime.now(UTC) - task.created).total_seconds()
