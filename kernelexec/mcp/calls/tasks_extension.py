"""MCP's tasks extension: a client that supports it gets a task for a long cell and polls the task until it ends.

A task is an execution with the same id: no other job runs for it, and its owner, output and end are those of the execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
from kernelexec.mcp.callers import AGENT_META, CALLER, EXECUTE, READ, Caller
from kernelexec.mcp.calls.elicitation import make_input_form
from kernelexec.mcp.calls.progress import find_last_line
from kernelexec.mcp.calls.sessions import CallOptions, SessionService
from kernelexec.mcp.calls.task import TASK, Task

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession

#: Tools whose calls are executions, and the argument by which a model sets its own wait.
_TOOLS, _WAIT = ("execute_code", "execute_command"), "wait"
#: Bounds of the poll interval in seconds; it is a quarter of the task's age.
_POLL_MIN, _POLL_MAX = 0.1, 5.0
_INTERRUPT_SECONDS = 1.0
#: Number of tasks from which on forgotten ones are removed.
_CLEAN_UP_AT = 64


class TaskParams(RequestParams):
    """Parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str = Field(alias="taskId")


class TaskUpdateParams(TaskParams):
    """Parameters of ``tasks/update``: answers to a task's questions."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TasksExtension(ServerExtension):
    """The tasks extension for one executor's sessions."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions
        self._tasks: dict[tuple[Caller, str], Task] = {}
        self._clean_up_at = _CLEAN_UP_AT

    def methods(self) -> Sequence[MethodBinding]:
        """See fastmcp's ``ServerExtension``."""
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", TaskUpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> Any:  # noqa: ANN401 - a result of the protocol, one of them with a null
        """See fastmcp's ``ServerExtension``."""
        if params.name not in _TOOLS or _WAIT in (params.arguments or {}) or not self._supports_tasks(context):
            return await call_next()
        task = Task(_get_owner(), params.name)
        token = TASK.set(task)
        try:
            outcome = await call_next()
        finally:
            TASK.reset(token)
        if not task.is_started or isinstance(outcome, InputRequiredToolResult):
            return outcome
        return _make_working_status(self._store(task), "task")

    def _supports_tasks(self, context: Context) -> bool:
        """Return whether the client can poll a task; an agent named in this request only may be unknown in the next one."""
        inner = context.request_context
        if inner is None or inner.protocol_version not in MODERN_PROTOCOL_VERSIONS or (inner.meta or {}).get(AGENT_META):
            return False
        return context.client_extension_settings(self.identifier) is not None

    def _store(self, task: Task) -> Task:
        """Return the task of an execution: the first one if several calls have one request id."""
        if len(self._tasks) >= self._clean_up_at:
            has_execution = self._sessions.has_execution
            self._tasks = {
                key: task for key, task in self._tasks.items() if has_execution(task.owner, task.session, task.execution_id)
            }
            self._clean_up_at = max(_CLEAN_UP_AT, 2 * len(self._tasks))
        return self._tasks.setdefault((task.owner, task.execution_id), task)

    async def _get(self, request: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        task, session = await self._find(request, params.task_id, read_only=True)
        progress = await session.wait_for(task.execution_id, cursor=task.cursor, wait=SHORTEST_TIMEOUT)
        if progress.cursor != task.cursor:
            task.cursor, task.updated = progress.cursor, datetime.now(UTC)
            task.last_line = find_last_line(progress.outputs) or task.last_line
        if progress.result is None:
            if questions := self._list_questions(task):
                return _make_status(task, "complete", "input_required", inputRequests=questions)
            return _make_working_status(task, "complete")
        if task.is_cancelled and (progress.result.interrupted == "request" or progress.result.status == "aborted"):
            message = f"Interrupted: wait_execution(execution_id='{task.execution_id}') has its output."
            return _make_status(task, "complete", "cancelled", statusMessage=message)
        return _make_status(task, "complete", "completed", result=await self._render_result(task, session))

    async def _update(self, request: ServerRequestContext[Any, Any], params: TaskUpdateParams) -> dict[str, Any]:
        task, _ = await self._find(request, params.task_id, read_only=False)
        answered = {key: params.input_responses[key] for key in self._list_questions(task) if key in params.input_responses}
        try:
            answers = {key: ElicitResult.model_validate(answer) for key, answer in answered.items()}
        except ValidationError as exc:
            message = f"inputResponses: {next(iter(answered))} must have an action, and content if the action is accept."
            raise MCPError(INVALID_PARAMS, message) from exc
        if (pending := self._sessions.inputs.find(task.execution_id)) is not None and pending.name in answers:
            pending.accept(answers.pop(pending.name))
        task.answer(answers)
        return {"resultType": "complete"}

    def _list_questions(self, task: Task) -> dict[str, dict[str, Any]]:
        """Return a task's open questions, with the input request of its cell."""
        forms = task.list_questions()
        if (pending := self._sessions.inputs.find(task.execution_id)) is not None:
            forms[pending.name] = make_input_form(pending, task.session)
        return {key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()}

    async def _cancel(self, request: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        task, session = await self._find(request, params.task_id, read_only=False)
        progress = await session.wait_for(task.execution_id, cursor=task.cursor, wait=SHORTEST_TIMEOUT)
        if progress.result is None:
            task.is_cancelled, task.updated = True, datetime.now(UTC)
            with anyio.move_on_after(_INTERRUPT_SECONDS):  # the cell is interrupted even if this wait ends
                await session.interrupt(task.execution_id)
        return {"resultType": "complete"}

    async def _render_result(self, task: Task, session: AsyncSession) -> dict[str, Any]:
        """Return the result that a blocking call would have returned."""
        partial_result = await self._sessions.follow(session, task.execution_id, CallOptions(0), cursor=0)
        tool = await self.server.get_tool(task.tool)
        assert tool is not None
        assert task.render is not None
        result = tool.convert_result(await task.render(partial_result)).to_mcp_result()
        if not isinstance(result, CallToolResult):
            content, structured = result if isinstance(result, tuple) else (result, None)
            result = CallToolResult(content=content, structured_content=structured)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def _find(
        self, request: ServerRequestContext[Any, Any], task_id: str, *, read_only: bool
    ) -> tuple[Task, AsyncSession]:
        """Return the caller's task of that id, and its session; raise ``MCPError`` if there is none or it is not allowed."""
        if self.client_settings(request) is None:
            data: dict[str, Any] = {"requiredCapabilities": {"extensions": {self.identifier: {}}}}
            message = f"{self.identifier} must be among the capabilities of this request."
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, data)
        with suppress(RuntimeError):  # not over HTTP
            header = get_http_request().headers.get(MCP_NAME_HEADER)
            if header is not None and decode_header_value(header) != task_id:
                raise MCPError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} must name the same task as the request.")
        if not CALLER.get().may_call(read_only=read_only):
            raise MCPError(INVALID_REQUEST, f"This request needs a token with the scope {READ if read_only else EXECUTE}.")
        key = _get_owner(), task_id
        task = self._tasks.get(key)
        if task is not None:
            try:
                return task, await self._sessions.find_session_of(task_id, task.session)
            except (UnknownSession, UnknownExecution):
                self._tasks.pop(key, None)  # another request may have noticed it first
        shown = self._sessions.mask(task_id)
        message = (
            f"You have no task {shown!r:.100}. Use the taskId of an answer with resultType task. The server keeps only the "
            "newest tasks that have ended, and none of a closed session."
        )
        raise MCPError(INVALID_PARAMS, message)


def _get_owner() -> Caller:
    """Return the current caller without its scopes."""
    return replace(CALLER.get(), scopes=None)


def _make_working_status(task: Task, kind: str) -> dict[str, Any]:
    message = f"{_compute_age(task):.0f} s" + (f": {task.last_line}" if task.last_line else "")
    return _make_status(task, kind, "working", statusMessage=message)


def _make_status(task: Task, kind: str, status: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the status
    return {
        "resultType": kind,
        "taskId": task.execution_id,
        "status": status,
        "createdAt": task.created.isoformat(),
        "lastUpdatedAt": task.updated.isoformat(),
        "ttlMs": None,
        "pollIntervalMs": round(1000 * min(max(_compute_age(task) / 4, _POLL_MIN), _POLL_MAX)),
        **more,
    }


def _compute_age(task: Task) -> float:
    return (datetime.now(UTC) - task.created).total_seconds()
