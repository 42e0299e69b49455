"""A session as plain functions with JSON Schemas, as tools for agents of OpenAI, LangChain and Pydantic-AI."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelexec.adapters.shared.blocks import remove_notebooks, remove_start_notes
from kernelexec.adapters.shared.commands import await_result, call_in_thread
from kernelexec.errors import InvalidConfig, InvalidRequest, KernelexecError, did_you_mean
from kernelexec.executor.blocking import Session
from kernelexec.results import ExecutionResult, Image, OutputPage, make_model_answer
from kernelexec.results.model_answers import LIMIT_MIN
from kernelexec.session import AsyncSession
from kernelexec.text import format_note, quote_output, utf8_size

#: The default limit of text in an answer, in bytes; ``read_output`` reads the rest.
TEXT_BYTES = 20_000
_AnySession = Session | AsyncSession
_TIMEOUT_SCHEMA = {"type": ["number", "null"], "description": "Seconds that it may run; null for the session's default."}


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool for a model, with keyword arguments. The answer is text, also for invalid arguments and other errors."""

    function: Callable[..., Any]
    """A call of a session, blocking or asynchronous, with the arguments; it returns a cell's result, or a page of output."""
    session: Session
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    text_bytes: int

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.function.__name__

    @property
    def call(self) -> Callable[..., str]:
        """The tool as a function, which Python's error messages name."""

        def call(**arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
            return self.run(arguments).text

        call.__name__ = call.__qualname__ = self.name
        return call

    async def acall(self, **arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
        """Call the tool without blocking the event loop; a cancelled call interrupts the cell."""
        return (await self.run_async(arguments)).text

    def run(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Return the answer: text, pictures and the cell's result."""
        try:
            self._check(arguments)
            return self._format(self.function(self.session, **arguments))
        except (TypeError, KernelexecError) as exc:
            return self._describe(exc)

    async def run_async(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Return the answer without blocking the event loop; a cancelled call interrupts the cell."""
        try:
            self._check(arguments)
            value = await await_result(self.session, lambda session: self.function(session, **arguments))
        except (TypeError, KernelexecError) as exc:
            return self._describe(exc)
        # In a thread: pictures are decoded and made smaller there, which would block the event loop.
        return await call_in_thread(lambda: self._format(value))

    def openai(self, *, strict: bool = True) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters), "strict": strict}
        return {"type": "function", "function": function}

    def anthropic(self) -> dict[str, Any]:
        """Return the tool in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.parameters)}

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ``InvalidRequest`` for unknown or missing arguments."""
        _, *parameters = inspect.signature(self.function).parameters.values()
        names = [parameter.name for parameter in parameters]
        listed = ", ".join(names)
        if unknown := sorted(set(arguments) - set(names)):
            near = did_you_mean(unknown[0], names)
            raise InvalidRequest(f"{self.name}: {unknown[0]!r:.80} is not an argument{near}: must be one of {listed}.")
        missing = [each.name for each in parameters if each.default is each.empty and each.name not in arguments]
        if missing:
            raise InvalidRequest(f"{self.name}: the argument {missing[0]!r} is missing: must have {listed}.")

    def _format(self, value: ExecutionResult | OutputPage) -> ToolAnswer:
        if isinstance(value, ExecutionResult):
            return make_answer(remove_start_notes(value, self.session), self.text_bytes)
        more = "" if value.next_offset is None else "\n" + format_note(f"read on with offset={value.next_offset}")
        return ToolAnswer(f"{quote_output(value.text)}{more}")

    def _describe(self, exc: Exception) -> ToolAnswer:
        if isinstance(exc, InvalidRequest):
            return ToolAnswer(str(exc))
        return ToolAnswer(f"{type(exc).__name__ if isinstance(exc, KernelexecError) else self.name}: {exc}")


def function_tools(session: Session, *, text_bytes: int = TEXT_BYTES) -> tuple[FunctionTool, ...]:
    """Return ``execute_code``, ``execute_command`` and ``read_output`` of a session as tools, which any thread may call.

    Args:
        session: an open session, which the caller closes.
        text_bytes: the limit of text per call, in bytes; at least 4, the size of a character.

    Raises:
        InvalidConfig: ``text_bytes`` is not such a number.
    """
    if isinstance(text_bytes, bool) or not isinstance(text_bytes, int) or text_bytes < LIMIT_MIN:
        raise InvalidConfig(f"text_bytes={text_bytes!r:.80}: must be a whole number of bytes >= {LIMIT_MIN}.")

    def execute_code(session: _AnySession, code: str, timeout: float | None = None) -> Any:  # noqa: ANN401 - or awaitable
        return session.execute(code, timeout=timeout)

    def execute_command(session: _AnySession, command: str, timeout: float | None = None) -> Any:  # noqa: ANN401 - as above
        return session.execute_command(command, timeout=timeout)

    def read_output(session: _AnySession, execution_id: str, offset: int = 0) -> Any:  # noqa: ANN401 - as above
        return session.read_output(execution_id, offset=offset, limit=text_bytes)

    def make_tool(function: Callable[..., Any], description: str, **properties: Mapping[str, Any]) -> FunctionTool:
        schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
        return FunctionTool(function, session, description, schema, text_bytes)

    return (
        make_tool(
            execute_code,
            "Run Python code in a persistent kernel, as a notebook cell: variables last from call to call, and the value of "
            "the last expression is shown. A failure with state kept loses nothing: fix what failed and go on.",
            code={"type": "string", "description": "The code."},
            timeout=_TIMEOUT_SCHEMA,
        ),
        make_tool(
            execute_command,
            "Run a shell command in the kernel's workspace: cd and export last from call to call.",
            command={"type": "string", "description": "The command."},
            timeout=_TIMEOUT_SCHEMA,
        ),
        make_tool(
            read_output,
            "Read all that an execution printed, from a byte on, where its answer had only head and tail.",
            execution_id={"type": "string", "description": "The id of an earlier answer."},
            offset={"type": "integer", "minimum": 0, "description": "Where to begin, in bytes: 0, or where a page ended."},
        ),
    )


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool: text, at most four pictures, and the result of a cell or command, or None."""

    text: str
    pictures: tuple[Image, ...] = ()
    result: ExecutionResult | None = None


def make_answer(result: ExecutionResult, text_bytes: int = TEXT_BYTES) -> ToolAnswer:
    """Return the answer for a result, with the execution id for reading the rest of an output of over ``text_bytes``."""
    is_cut = result.truncated or utf8_size(result.text) > text_bytes
    notes = [f"read_output(execution_id={result.execution_id!r}) has all of its output"] if is_cut else []
    answer = make_model_answer(remove_notebooks(result), text_bytes, notes)
    return ToolAnswer(answer.text, answer.pictures, result)
