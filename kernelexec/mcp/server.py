"""The FastMCP server: its tools, prompts and middleware, and the resources of a session."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import fastmcp
from fastmcp import FastMCP
from fastmcp.exceptions import FastMCPError, ToolError, ValidationError
from fastmcp.prompts import Prompt
from fastmcp.resources import ResourceContent, ResourceResult, ResourceTemplate
from fastmcp.server.auth import AuthProvider
from fastmcp.tools import FunctionTool
from mcp.types import ToolAnnotations

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest, KernelexecError
from kernelexec.mcp.answers import count_json_bytes
from kernelexec.mcp.callers import CallerMiddleware
from kernelexec.mcp.middleware import ArgumentReader, CallLogger, OpeningGate, VisibleText
from kernelexec.mcp.run import Opening
from kernelexec.mcp.server_options import GROUPS, ServerOptions
from kernelexec.mcp.sessions import SessionMethods, SessionService
from kernelexec.mcp.tools.code_tools import CodeTools, TestingTools
from kernelexec.mcp.tools.command_tools import COMMAND_SCHEMA, BackgroundTools, CommandTools, PackageTools
from kernelexec.mcp.tools.file_tools import FileTools, read_whole
from kernelexec.mcp.tools.state_tools import CheckpointTools, VariableTools
from kernelexec.session.model_prompts import EXECUTION_DISABLED, PromptContext, write_guidance
from kernelexec.text import clean_text, escape_line, format_note, quote_output

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession

T = TypeVar("T")
P = ParamSpec("P")
_SECTION = re.compile(r"^## (\w+)\n\n(.*?)\n*(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_WRAP = re.compile(r"(?<=\S)\n(?=[^\s-])")
_FILE = Path(__file__).parent / "tools" / "descriptions.md"
#: Texts for models by the names of their tools, or of groups, which are for the server's instructions as others are.
TEXTS = {name: f"{_WRAP.sub(' ', text)}\n" for name, text in _SECTION.findall(_FILE.read_text(encoding="utf-8"))}
_MINUTE = 60.0
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
#: Hints of the tools that do not run any code.
_HINTS = {
    **dict.fromkeys(("wait_execution", "read_output", "list_sessions", "list_variables", "list_files", "read_file"), _READS),
    **dict.fromkeys(("background_output", "list_background", "get_variable"), _READS),
    **dict.fromkeys(("interrupt_kernel", "restart_kernel", "close_session", "kill_background", "delete_files"), _ENDS),
    **dict.fromkeys(("write_file", "edit_file", "set_variables", "restore", "undo", "promote"), _WRITES),
    **dict.fromkeys(("checkpoint", "branch"), _ADDS),
}
#: Schemas of tools that build the structure of their answers themselves.
_SCHEMAS = {"execute_command": COMMAND_SCHEMA}
#: The tools are methods of these classes.
_TOOLS: tuple[type[SessionMethods], ...] = (CodeTools, CommandTools, BackgroundTools, VariableTools, CheckpointTools)
_TOOLS += (TestingTools, PackageTools, FileTools)
#: Texts that name the limits of the server.
_WITH_LIMITS = ("instructions", "execute_code")
#: Tools that create sessions; their descriptions have the note about idle kernels.
_CREATES = ("execute_code", "execute_command", "create_session", "set_variables")
_DEFINITIONS = "#/$defs/"
#: The addresses. A session is named by its name or handle, as in tools.
NOTEBOOK = "kernelexec://sessions/{session}/notebook"
FILE = "kernelexec://sessions/{session}/files/{path*}"
OUTPUT = "kernelexec://sessions/{session}/output/{execution_id}"
#: The largest answer that clients accept: text as JSON; less for bytes, which are sent as base64.
TEXT_BYTES, BLOB_BYTES = 880_000, 650_000
_TOO_LARGE = f"the limit of a resource is {TEXT_BYTES}. Read it in pieces with read_file."
_NOTEBOOK_TYPE, _PLAIN, _UNKNOWN = "application/x-ipynb+json", "text/plain", "application/octet-stream"


def make_server(sessions: SessionService, *, auth: AuthProvider | None = None, opening: Opening | None = None) -> FastMCP:
    """Return a server for the sessions of an executor.

    Args:
        sessions: the service behind the tools.
        auth: provider for the authentication of callers over HTTP; None for no authentication.
        opening: the opening of the executor, awaited by tools, prompts and resources; None if the executor is already open.
    """
    config, options = sessions.config, sessions.options
    callers = CallerMiddleware(sessions.quotas, read_only_tools={name for name, hints in _HINTS.items() if hints is _READS})
    gate = [OpeningGate(opening)] if opening else []
    # The first is outermost: errors of all others are masked, the log knows the caller, and a refused call opens no executor.
    server = FastMCP(
        "kernelexec",
        instructions=_write_instructions(config, options),
        version=importlib.metadata.version("kernelexec"),
        middleware=[VisibleText(sessions.mask), ArgumentReader(), callers, CallLogger(), *gate],
        auth=auth,
        strict_input_validation=True,
        mask_error_details=False,  # models need our reasons; VisibleText masks secrets in them
    )
    idle_note = _describe_idle_limit(config)
    providers = [kind(sessions) for kind in _TOOLS]
    for name in options.tools:  # each tool is a method of that name
        function = next(getattr(provider, name) for provider in providers if hasattr(provider, name))
        description = _fill(name, config, options) + (idle_note if name in _CREATES else "")
        texts: dict[str, Any] = {"title": name.replace("_", " ").capitalize(), "description": description}
        schema: dict[str, Any] = {"output_schema": _SCHEMAS[name]} if name in _SCHEMAS else {}
        tool = FunctionTool.from_function(wrap(function), annotations=_HINTS.get(name, _RUNS), **texts, **schema)
        tool.parameters = slim_arguments(tool.parameters)
        if tool.output_schema is not None:
            tool.output_schema = inline_references(tool.output_schema)
        server.add_tool(tool)
    prompts = ServerPrompts(sessions)
    for prompt in (prompts.guidance, prompts.debug):
        server.add_prompt(Prompt.from_function(wrap(prompt), description=inspect.getdoc(prompt)))
    for address, function, kind in Resources(sessions).list_templates(options):
        read = wrap(function, ValidationError)  # an error of the parameters, not of the server
        server.add_template(ResourceTemplate.from_function(read, address, mime_type=kind, description=inspect.getdoc(function)))
    return server


def _write_instructions(config: Config, options: ServerOptions) -> str:
    """Return the instructions: how the server works, and where code runs."""
    if not config.enabled:
        return EXECUTION_DISABLED
    missing = ", ".join(sorted(frozenset(GROUPS) - options.groups))
    text = _fill("instructions", config, options)
    text += "".join(TEXTS[group] for group in ("files", "checkpoints") if group in options.groups)
    text += TEXTS["groups"].format(missing=missing) if missing else ""
    return f"{text}{_describe_idle_limit(config)}\n{write_guidance(PromptContext(config))}"


def _fill(name: str, config: Config, options: ServerOptions) -> str:
    """Return a text with the limits of this server."""
    text = TEXTS[name]
    return text.format(timeout=config.budgets.timeout, wait=options.wait) if name in _WITH_LIMITS else text


def _describe_idle_limit(config: Config) -> str:
    """Return the note about the end of idle kernels; empty if there is no idle limit."""
    seconds = config.capacity.idle_seconds
    if seconds is None:
        return ""
    return "\n" + TEXTS["idle"].format(idle=f"{seconds:g} s" if seconds < _MINUTE else f"{seconds / _MINUTE:g} min")


def silence_libraries() -> None:
    """Silence the libraries' banners and logs on stderr, and their search for updates."""
    fastmcp.settings.check_for_updates = "off"
    fastmcp.settings.show_server_banner = False
    for name in ("fastmcp", "mcp", "uvicorn"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class ServerPrompts(SessionMethods):
    """Prompts of the server, with a method for each. Clients show the docstrings."""

    async def guidance(self, session: str = "default") -> str:
        """Explain where a session's code runs, what is available there, and how to answer."""
        return await (await self._sessions.get_session(session)).guidance()

    async def debug(self, session: str = "default", execution_id: str = "") -> str:
        """Debug a failed cell in five steps, with all facts about it; by default the session's newest failed cell."""
        return await (await self._sessions.find_session(session)).debugging(execution_id or None)


def wrap(function: Callable[P, Awaitable[T]], error: type[FastMCPError] = ToolError) -> Callable[P, Awaitable[T]]:
    """Return the function without its docstring; our errors reach the model or client with their exact text."""

    @wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return await function(*args, **options)
        except KernelexecError as exc:
            raise error(clean_text(str(exc))) from exc

    call.__doc__ = ""  # None would stand for the docstring of the class's method
    return call


def slim_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments without null, since optional arguments can be omitted: models read every word."""
    return schema | {"properties": {name: _slim(argument) for name, argument in schema["properties"].items()}}


def _slim(argument: dict[str, Any]) -> dict[str, Any]:
    types = argument.get("anyOf", [])
    if argument.get("default", ...) is not None or types[1:] != [{"type": "null"}]:
        return argument
    return {**types[0], **{name: value for name, value in argument.items() if name not in {"anyOf", "default"}}}


def inline_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with definitions in the place of references, for clients without references. No type may contain itself.

    fastmcp's own resolver would import an HTTP library and a parser for docstrings: 0.04 s of the server's start.
    """
    definitions = schema.get("$defs", {})

    def inline(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, list):
            return [inline(item) for item in value]
        if not isinstance(value, dict):
            return value
        own = {key: inline(item) for key, item in value.items() if key not in {"$ref", "$defs"}}
        return inline(definitions[value["$ref"].removeprefix(_DEFINITIONS)]) | own if "$ref" in value else own

    inlined: dict[str, Any] = inline(schema)
    return inlined


class Resources(SessionMethods):
    """Resources of an executor's sessions, with a method for each; no resource creates a session.

    Files and notebooks are exact, with invisible characters and marks of notes: programs read them too.
    """

    def list_templates(self, options: ServerOptions) -> list[tuple[str, Callable[..., Any], str]]:
        """Return the resources of the served toolsets: address, function and media type."""
        files = [(FILE, self.file, _UNKNOWN)] if "files" in options.groups else []
        return [(NOTEBOOK, self.notebook, _NOTEBOOK_TYPE), (OUTPUT, self.output, _PLAIN), *files]

    async def notebook(self, session: str) -> ResourceResult:
        """Read a session's notebook: its cells and their outputs so far, in Jupyter's format."""
        opened = await self._sessions.find_session(session)
        if opened.notebook is None:
            raise InvalidRequest(f"Session {session} has no notebook.")
        await opened.save_notebook()
        return await self._read_file(opened, opened.notebook, _NOTEBOOK_TYPE)

    async def file(self, session: str, path: str) -> ResourceResult:
        """Read a file of a session's workspace, as text if possible, else as bytes."""
        return await self._read_file(await self._sessions.find_session(session), path, mimetypes.guess_type(path)[0])

    async def output(self, session: str, execution_id: str) -> ResourceResult:
        """Read the text output of a cell so far, from its beginning."""
        opened = await self._sessions.find_session_of(execution_id, session)
        limit, text = TEXT_BYTES, None
        # Escapes make a page larger as JSON, up to six bytes for a byte, so the page is halved until the answer fits.
        while text is None or _count_text_bytes(text) > TEXT_BYTES:
            page = await opened.read_output(execution_id, offset=0, limit=limit)
            limit, text = limit // 2, quote_output(page.text)
        more = "" if page.next_offset is None else "\n" + format_note(f"read_output with offset={page.next_offset} continues")
        return _make_result(f"{text}{more}", _PLAIN)

    async def _read_file(self, opened: AsyncSession, path: str | Path, kind: str | None) -> ResourceResult:
        read = await read_whole(opened.files, path, TEXT_BYTES)
        name, raw, size = escape_line(opened.mask(read.path)), read.content, max(read.total_bytes, len(read.content))
        if size > TEXT_BYTES:
            raise InvalidRequest(f"{name} has {size} bytes; {_TOO_LARGE}")
        try:
            text = opened.mask(raw.decode())
        except UnicodeDecodeError:
            readable = raw.decode("utf-8", "replace")  # for the search of secrets below: bytes cannot be masked
        else:
            if (json_size := _count_text_bytes(text)) > TEXT_BYTES:
                raise InvalidRequest(f"{name} has {json_size} bytes as JSON; {_TOO_LARGE}")
            return _make_result(text, kind or _PLAIN)
        if len(raw) > BLOB_BYTES:
            raise InvalidRequest(f"{name} is binary and has {size} bytes; the limit of a binary resource is {BLOB_BYTES}.")
        if opened.mask(readable) != readable:
            raise InvalidRequest(f"{name} is binary and contains a secret, so it cannot be shown.")
        return _make_result(raw, kind or _UNKNOWN)


def _count_text_bytes(text: str) -> int:
    """Return the size of a text in an answer, without its quotes."""
    return count_json_bytes(text) - 2


def _make_result(content: str | bytes, kind: str) -> ResourceResult:
    return ResourceResult(contents=[ResourceContent(content, mime_type=kind)])
