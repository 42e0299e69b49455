"""The FastMCP server: its tools, prompts, resources and middleware."""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastmcp
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.prompts import Prompt
from fastmcp.resources import ResourceTemplate
from fastmcp.server.auth import AuthProvider
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import FunctionTool, ToolResult
from mcp.types import CallToolRequestParams, ToolAnnotations

from kernelexec.config import Config
from kernelexec.errors import did_you_mean
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.callers import CallerMiddleware
from kernelexec.mcp.calls.pending_inputs import PendingInputs
from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.calls.tasks_extension import TasksExtension
from kernelexec.mcp.logs import log_call
from kernelexec.mcp.quotas import QuotaTracker
from kernelexec.mcp.resources import Resources, list_templates
from kernelexec.mcp.server_prompts import ServerPrompts
from kernelexec.mcp.tools import descriptions
from kernelexec.mcp.tools.background_tools import BackgroundTools
from kernelexec.mcp.tools.code_tools import CodeTools
from kernelexec.mcp.tools.command_tools import CommandTools
from kernelexec.mcp.tools.file_tools import FileTools
from kernelexec.mcp.tools.package_tools import PackageTools
from kernelexec.mcp.tools.testing_tools import TestingTools
from kernelexec.mcp.toolsets import ALL_TOOLS, ServerOptions
from kernelexec.model_prompts import EXECUTION_DISABLED, PromptContext, write_guidance
from kernelexec.text import clean_text

_VALUE_CHARS = 100
_ERRORS_MAX = 10
_MINUTE = 60.0
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def make_server(
    executor: AsyncExecutor, *, interval: float, auth: AuthProvider | None = None, options: ServerOptions = ALL_TOOLS
) -> FastMCP:
    """Return a server for the sessions of an open executor.

    Args:
        executor: the executor.
        interval: seconds between two progress reports of a blocking call.
        auth: provider that authenticates callers over HTTP; None for no authentication.
        options: toolsets and limits.
    """
    quotas = QuotaTracker(options.quotas)
    callers = CallerMiddleware(quotas)
    server = FastMCP(
        "kernelexec",
        instructions=_write_instructions(executor.config, options),
        version=importlib.metadata.version("kernelexec"),
        middleware=[ArgumentErrors(), callers, CallLogger()],
        auth=auth,
        strict_input_validation=True,
        mask_error_details=False,
    )
    inputs = PendingInputs() if options.allow_input else None
    sessions = SessionService(executor, interval=interval, quotas=quotas, inputs=inputs)
    for function, description, hints in _list_tools(sessions, options, _describe_idle_limit(executor.config)):
        if function.__name__ in options.tools:
            server.add_tool(FunctionTool.from_function(function, description=description, annotations=hints))
            if hints is _READS:
                callers.read_only_tools.add(function.__name__)
    server.add_extension(TasksExtension(sessions))
    prompts = ServerPrompts(sessions)
    for prompt in (prompts.guidance, prompts.debug):
        server.add_prompt(Prompt.from_function(prompt))
    for address, function, kind in list_templates(Resources(sessions), options):
        server.add_template(ResourceTemplate.from_function(function, address, mime_type=kind))
    return server


def _list_tools(
    sessions: SessionService, options: ServerOptions, idle_note: str
) -> tuple[tuple[Callable[..., Any], str, ToolAnnotations], ...]:
    """Return all tools in order, with their descriptions and hints."""
    tools, commands = CodeTools(sessions), CommandTools(sessions)
    background, files, testing = BackgroundTools(sessions), FileTools(sessions), TestingTools(sessions)
    return (
        (tools.execute_code, descriptions.EXECUTE_CODE + idle_note, _RUNS),
        (commands.execute_command, descriptions.EXECUTE_COMMAND + idle_note, _RUNS),
        (tools.wait_execution, descriptions.WAIT_EXECUTION, _READS),
        (tools.read_output, descriptions.READ_OUTPUT, _READS),
        (tools.interrupt_kernel, descriptions.INTERRUPT_KERNEL, _ENDS),
        (tools.restart_kernel, descriptions.RESTART_KERNEL, _ENDS),
        (tools.create_session, descriptions.CREATE_SESSION + idle_note, _RUNS),
        (tools.list_sessions, descriptions.LIST_SESSIONS, _READS),
        (tools.close_session, descriptions.CLOSE_SESSION, _ENDS),
        (tools.list_variables, descriptions.LIST_VARIABLES, _READS),
        (background.start_background, descriptions.START_BACKGROUND, _RUNS),
        (background.background_output, descriptions.BACKGROUND_OUTPUT, _READS),
        (background.kill_background, descriptions.KILL_BACKGROUND, _ENDS),
        (background.list_background, descriptions.LIST_BACKGROUND, _READS),
        (testing.run_tests, descriptions.RUN_TESTS, _RUNS),
        (PackageTools(sessions, options.packages_from).install_packages, descriptions.INSTALL_PACKAGES, _RUNS),
        (files.list_files, descriptions.LIST_FILES, _READS),
        (files.read_file, descriptions.READ_FILE, _READS),
        (files.write_file, descriptions.WRITE_FILE, _WRITES),
        (files.delete_files, descriptions.DELETE_FILES, _ENDS),
    )


def _write_instructions(config: Config, options: ServerOptions) -> str:
    """Return the instructions: how the server works, and where code runs."""
    if not config.enabled:
        return EXECUTION_DISABLED
    text = descriptions.INSTRUCTIONS.format(timeout=config.budgets.timeout) + descriptions.FILES * ("files" in options.groups)
    return f"{text}{_describe_idle_limit(config)}\n{write_guidance(PromptContext(config))}"


def _describe_idle_limit(config: Config) -> str:
    """Return the note about the end of idle kernels; empty if there is no idle limit."""
    seconds = config.capacity.idle_seconds
    if seconds is None:
        return ""
    return descriptions.IDLE.format(idle=f"{seconds:g} s" if seconds < _MINUTE else f"{seconds / _MINUTE:g} min")


def silence_libraries() -> None:
    """Silence the libraries' banners and logs on stderr, and their search for updates."""
    fastmcp.settings.check_for_updates = "off"
    fastmcp.settings.show_server_banner = False
    for name in ("fastmcp", "mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class CallLogger(Middleware):
    """Middleware that logs each call of a tool, prompt or resource with its outcome."""

    async def on_request(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:  # noqa: ANN401 - fastmcp's
        """See fastmcp's ``Middleware``."""
        target = getattr(context.message, "name", None) or getattr(context.message, "uri", None)
        if target is None:
            return await call_next(context)
        began, outcome = time.monotonic(), "cancelled"
        try:
            answer = await call_next(context)
            outcome = "error" if getattr(answer, "is_error", False) else "ok"
        except Exception:
            outcome = "error"
            raise
        finally:
            log_call(context.method or "", str(target), outcome, time.monotonic() - began)
        return answer


class ArgumentErrors(Middleware):
    """Middleware that explains invalid arguments, one line each."""

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, ToolResult]
    ) -> ToolResult:
        """See fastmcp's ``Middleware``."""
        try:
            return await call_next(context)
        except ValidationError as exc:
            cause: Any = exc.__cause__
            if not hasattr(cause, "errors"):
                raise
            tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name) if context.fastmcp_context else None
            argument_names = list(tool.parameters.get("properties", {})) if tool else []
            raise ToolError(_explain_errors(cause.errors(), argument_names)) from exc


def _explain_errors(errors: Sequence[dict[str, Any]], argument_names: list[str]) -> str:
    lines = []
    for error in errors[:_ERRORS_MAX]:
        path = ".".join(str(key) for key in error["loc"])
        if error["type"] == "unexpected_keyword_argument":
            listed = ", ".join(argument_names) or "none"
            lines.append(
                f"{path[:_VALUE_CHARS]!r} is no argument{did_you_mean(path, argument_names)}. The arguments are: {listed}."
            )
        elif error["type"] == "missing_argument":
            lines.append(f"{path} is required.")
        else:
            lines.append(f"{path}: {error['msg']} (given: {error['input']!r:.{_VALUE_CHARS}}).")
    return clean_text("\n".join(lines))
