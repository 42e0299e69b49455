"""A session as plain functions with JSON Schemas, as tools for agents of OpenAI, LangChain and Pydantic-AI."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.adapters.shared.blocks import remove_notebooks
from kernelexec.blocking import Session
from kernelexec.errors import InvalidConfig, InvalidRequest, KernelexecError, did_you_mean
from kernelexec.results import ExecutionResult, model_notes
from kernelexec.text import cut_middle
from kernelexec.untrusted_text import format_note, format_notes, quote_output

#: The default limit of text per call, in bytes; ``read_output`` reads the rest.
TEXT_BYTES = 20_000
_TEXT_BYTES_MIN = 4
_TIMEOUT_SCHEMA = {"type": ["number", "null"], "description": "Seconds that it may run; null for the session's default."}


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool for a model: ``call`` takes keyword arguments and returns text, also for invalid arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    call: Callable[..., str]

    async def acall(self, **arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
        """Call the tool in a thread, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.call(**arguments))

    def openai(self, *, strict: bool = True) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters), "strict": strict}
        return {"type": "function", "function": function}

    def anthropic(self) -> dict[str, Any]:
        """Return the tool in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.parameters)}


def function_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> tuple[FunctionTool, ...]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` of a session as tools, which any thread may call.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes; at least 4, the size of a character.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """
    if isinstance(text_bytes, bool) or not isinstance(text_bytes, int) or text_bytes < _TEXT_BYTES_MIN:
        raise InvalidConfig(f"text_bytes={text_bytes!r:.80}: must be a whole number of bytes >= {_TEXT_BYTES_MIN}.")

    def format_result(result: ExecutionResult) -> str:
        head = f"{result.status}, exit code {result.exit_code}, state {result.state}, id {result.execution_id}"
        notes = format_notes(model_notes(remove_notebooks(result)))
        text = cut_middle(quote_output(result.text.rstrip("\n")), text_bytes)
        return "\n".join(part for part in (format_note(head), text, notes) if part)

    def execute_code(code: str, timeout: float | None = None) -> str:
        return format_result(session.execute(code, timeout=timeout))

    def execute_command(command: str, timeout: float | None = None) -> str:
        return format_result(session.execute_command(command, timeout=timeout))

    def read_output(execution_id: str, offset: int = 0) -> str:
        page = session.read_output(execution_id, offset=offset, limit=text_bytes)
        more = "" if page.next_offset is None else "\n" + format_note(f"read on with offset={page.next_offset}")
        return f"{quote_output(page.text)}{more}"

    text = {"type": "string"}
    return (
        _make_tool(
            execute_code,
            "Run Python code in a persistent kernel, as a notebook cell: variables last from call to call, and the value of "
            "the last expression is shown. A failure with state kept loses nothing: fix what failed and go on.",
            {"code": {**text, "description": "The code."}, "timeout": _TIMEOUT_SCHEMA},
        ),
        _make_tool(
            execute_command,
            "Run a shell command in the kernel's workspace: cd and export last from call to call.",
            {"command": {**text, "description": "The command."}, "timeout": _TIMEOUT_SCHEMA},
        ),
        _make_tool(
            read_output,
            "Read all that an execution printed, from a byte on, where its answer had only head and tail.",
            {
                "execution_id": {**text, "description": "The id of an earlier answer."},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Where to begin, in bytes: 0, or where a page ended.",
                },
            },
        ),
    )


def _make_tool(function: Callable[..., str], description: str, properties: Mapping[str, Any]) -> FunctionTool:
    name = function.__name__
    schema = {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}
    needed = [key for key, parameter in inspect.signature(function).parameters.items() if parameter.default is parameter.empty]

    def call(**arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
        if unknown := sorted(set(arguments) - set(properties)):
            near = did_you_mean(unknown[0], list(properties))
            return f"{name}: {unknown[0]!r:.80} is not an argument{near}: must be one of {', '.join(properties)}."
        if missing := [key for key in needed if key not in arguments]:
            return f"{name}: the argument {missing[0]!r} is missing: must have {', '.join(properties)}."
        try:
            return function(**arguments)
        except TypeError as exc:
            return f"{name}: {exc}"
        except InvalidRequest as exc:
            return str(exc)
        except KernelexecError as exc:
            return f"{type(exc).__name__}: {exc}"

    call.__name__ = call.__qualname__ = name  # Python's error messages use this name
    return FunctionTool(name, description, schema, call)
