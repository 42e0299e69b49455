"""The server: its name, its tools, and how it refuses what makes no sense."""

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
from kernelexec.errors import nearest
from kernelexec.executor import AsyncExecutor
from kernelexec.mcp.callers import Callers
from kernelexec.mcp.calls.pending_inputs import Inputs
from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.calls.tasks import Tasks
from kernelexec.mcp.logs import log_call
from kernelexec.mcp.prompts import Prompts
from kernelexec.mcp.quotas import Allotment
from kernelexec.mcp.resources import Resources, templates
from kernelexec.mcp.tools import descriptions
from kernelexec.mcp.tools.background import Background
from kernelexec.mcp.tools.code import Tools
from kernelexec.mcp.tools.commands import Commands
from kernelexec.mcp.tools.files import FileTools
from kernelexec.mcp.tools.packages import Packages
from kernelexec.mcp.tools.run_tests import Testing
from kernelexec.mcp.toolsets import EVERYTHING, Offer
from kernelexec.prompts import OFF, Surroundings, guidance
from kernelexec.text import clean_text

_GIVEN_CHARS = 100
_ERRORS_MAX = 10
_MINUTE = 60.0
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def make_server(
    executor: AsyncExecutor, *, interval: float, auth: AuthProvider | None = None, offer: Offer = EVERYTHING
) -> FastMCP:
    """A server of the sessions of an open executor.

    Args:
        executor: whose sessions.
        interval: seconds between two tellings of progress of a call that blocks.
        auth: who says who is calling, where that is asked over HTTP.
        offer: which tools there are.
    """
    allotment = Allotment(offer.quotas)
    callers = Callers(allotment)
    server = FastMCP(
        "kernelexec",
        instructions=_instructions(executor.config, offer),
        version=importlib.metadata.version("kernelexec"),
        middleware=[Refusals(), callers, Logged()],
        auth=auth,
        strict_input_validation=True,
        mask_error_details=False,
    )
    inputs = Inputs() if offer.allow_input else None
    calls = Calls(executor, interval=interval, allotment=allotment, inputs=inputs)
    for function, description, hints in _tools(calls, offer, _idle(executor.config)):
        if function.__name__ in offer.tools:
            server.add_tool(FunctionTool.from_function(function, description=description, annotations=hints))
            if hints is _READS:
                callers.reading.add(function.__name__)
    server.add_extension(Tasks(calls))
    prompts = Prompts(calls)
    for prompt in (prompts.guidance, prompts.debug):
        server.add_prompt(Prompt.from_function(prompt))
    for address, function, kind in templates(Resources(calls), offer):
        server.add_template(ResourceTemplate.from_function(function, address, mime_type=kind))
    return server


def _tools(calls: Calls, offer: Offer, idle: str) -> tuple[tuple[Callable[..., Any], str, ToolAnnotations], ...]:
    """All tools, in the order of their list, with what is said of them."""
    tools, commands = Tools(calls), Commands(calls)
    background, files, testing = Background(calls), FileTools(calls), Testing(calls)
    return (
        (tools.execute_code, descriptions.EXECUTE_CODE + idle, _RUNS),
        (commands.execute_command, descriptions.EXECUTE_COMMAND + idle, _RUNS),
        (tools.wait_execution, descriptions.WAIT_EXECUTION, _READS),
        (tools.read_output, descriptions.READ_OUTPUT, _READS),
        (tools.interrupt_kernel, descriptions.INTERRUPT_KERNEL, _ENDS),
        (tools.restart_kernel, descriptions.RESTART_KERNEL, _ENDS),
        (tools.create_session, descriptions.CREATE_SESSION + idle, _RUNS),
        (tools.list_sessions, descriptions.LIST_SESSIONS, _READS),
        (tools.close_session, descriptions.CLOSE_SESSION, _ENDS),
        (tools.list_variables, descriptions.LIST_VARIABLES, _READS),
        (background.start_background, descriptions.START_BACKGROUND, _RUNS),
        (background.background_output, descriptions.BACKGROUND_OUTPUT, _READS),
        (background.kill_background, descriptions.KILL_BACKGROUND, _ENDS),
        (background.list_background, descriptions.LIST_BACKGROUND, _READS),
        (testing.run_tests, descriptions.RUN_TESTS, _RUNS),
        (Packages(calls, offer.packages_from).install_packages, descriptions.INSTALL_PACKAGES, _RUNS),
        (files.list_files, descriptions.LIST_FILES, _READS),
        (files.read_file, descriptions.READ_FILE, _READS),
        (files.write_file, descriptions.WRITE_FILE, _WRITES),
        (files.delete_files, descriptions.DELETE_FILES, _ENDS),
    )


def _instructions(config: Config, offer: Offer) -> str:
    """How the server works, and what is known of where code runs before any does."""
    if not config.enabled:
        return OFF
    told = descriptions.INSTRUCTIONS.format(timeout=config.budgets.timeout) + descriptions.FILES * ("files" in offer.groups)
    return f"{told}{_idle(config)}\n{guidance(Surroundings(config))}"


def _idle(config: Config) -> str:
    """What is said of kernels that nobody uses."""
    seconds = config.capacity.idle_seconds
    if seconds is None:
        return ""
    return descriptions.IDLE.format(idle=f"{seconds:g} s" if seconds < _MINUTE else f"{seconds / _MINUTE:g} min")


def quiet() -> None:
    """Have the libraries say nothing on stderr but what is wrong, and ask nothing of the network."""
    fastmcp.settings.check_for_updates = "off"
    fastmcp.settings.show_server_banner = False
    for name in ("fastmcp", "mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Logged(Middleware):
    """Has each call of a tool, a prompt or a resource logged, with how it ended."""

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


class Refusals(Middleware):
    """Says what is wrong with a call's arguments in plain words, one line each."""

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
            known = list(tool.parameters.get("properties", {})) if tool else []
            raise ToolError(_explained(cause.errors(), known)) from exc


def _explained(errors: Sequence[dict[str, Any]], known: list[str]) -> str:
    lines = []
    for error in errors[:_ERRORS_MAX]:
        path = ".".join(str(part) for part in error["loc"])
        if error["type"] == "unexpected_keyword_argument":
            lines.append(
                f"{path[:_GIVEN_CHARS]!r} is no argument{nearest(path, known)}: there are {', '.join(known) or 'none'}."
            )
        elif error["type"] == "missing_argument":
            lines.append(f"{path} is missing: it has no default.")
        else:
            lines.append(f"{path}: {error['msg']} (given: {error['input']!r:.{_GIVEN_CHARS}}).")
    return clean_text("\n".join(lines))
