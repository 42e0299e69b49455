"""A session as plain functions with JSON Schemas: what OpenAI's, LangChain's and Pydantic-AI's agents take as tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.adapters.blocks import without_notebooks
from kernelexec.blocking import Session
from kernelexec.errors import InvalidConfig, InvalidRequest, KernelexecError, nearest
from kernelexec.results import ExecutionResult, remarks
from kernelexec.text import cut_middle

#: How much of a cell's text a model gets by default, in bytes; the rest is read by ``read_output``.
TEXT_BYTES = 20_000
_TEXT_BYTES_MIN = 4
_SECONDS = {"type": ["number", "null"], "description": "Seconds that it may run; null for the session's default."}


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function for a model: ``call`` takes its arguments by name and gives text; what is wrong with them is text too."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    call: Callable[..., str]

    async def acall(self, **arguments: Any) -> str:  # noqa: ANN401 - what a model sends
        """Call the tool from an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(lambda: self.call(**arguments))

    def openai(self, *, strict: bool = True) -> dict[str, Any]:
        """Return the tools in the form of OpenAI's chat API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters), "strict": strict}
        return {"type": "function", "function": function}

    def anthropic(self) -> dict[str, Any]:
        """Return the tools in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.parameters)}


def function_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> tuple[FunctionTool, ...]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` of a session as tools. They may be called in any thread.

    Args:
        session: which stays the caller's.
        text_bytes: how much text one answer has at most, 4 at least: the size of a character.

    Raises:
        InvalidConfig: ``text_bytes`` is no such number.
    """
    if isinstance(text_bytes, bool) or not isinstance(text_bytes, int) or text_bytes < _TEXT_BYTES_MIN:
        raise InvalidConfig(f"text_bytes={text_bytes!r:.80}: it is a whole number of bytes, {_TEXT_BYTES_MIN} at least.")

    def told(result: ExecutionResult) -> str:
        head = f"[{result.status}, exit code {result.exit_code}, state {result.state}, id {result.execution_id}]"
        text = cut_middle(result.text.rstrip("\n"), text_bytes)
        return "\n".join(part for part in (head, text, *remarks(without_notebooks(result))) if part)

    def execute_code(code: str, timeout: float | None = None) -> str:
        return told(session.execute(code, timeout=timeout))

    def execute_command(command: str, timeout: float | None = None) -> str:
        return told(session.execute_command(command, timeout=timeout))

    def read_output(execution_id: str, offset: int = 0) -> str:
        page = session.read_output(execution_id, offset=offset, limit=text_bytes)
        more = "" if page.next_offset is None else f"\n[read on with offset={page.next_offset}]"
        return f"{page.text}{more}"

    text = {"type": "string"}
    return (
        _tool(
            execute_code,
            "Run Python code in a persistent kernel, as a notebook cell: variables last from call to call, and the value of "
            "the last expression is shown. A failure with state kept loses nothing: mend what failed and go on.",
            {"code": {**text, "description": "The code."}, "timeout": _SECONDS},
        ),
        _tool(
            execute_command,
            "Run a shell command in the kernel's workspace: cd and export last from call to call.",
            {"command": {**text, "description": "The command."}, "timeout": _SECONDS},
        ),
        _tool(
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


def _tool(function: Callable[..., str], description: str, properties: Mapping[str, Any]) -> FunctionTool:
    name = function.__name__
    schema = {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}
    needed = [key for key, parameter in inspect.signature(function).parameters.items() if parameter.default is parameter.empty]

    def call(**arguments: Any) -> str:  # noqa: ANN401 - what a model sends
        if unknown := sorted(set(arguments) - set(properties)):
            near = nearest(unknown[0], list(properties))
            return f"{name}: {unknown[0]!r:.80} is no argument{near}: there are {', '.join(properties)}."
        if missing := [key for key in needed if key not in arguments]:
            return f"{name}: the argument {missing[0]!r} is missing: there are {', '.join(properties)}."
        try:
            return function(**arguments)
        except TypeError as exc:
            return f"{name}: {exc}"
        except InvalidRequest as exc:
            return str(exc)
        except KernelexecError as exc:
            return f"{type(exc).__name__}: {exc}"

    call.__name__ = call.__qualname__ = name  # Python names it where it is called by position
    return FunctionTool(name, description, schema, call)
