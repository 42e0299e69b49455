"""A session as plain functions with JSON Schemas, as tools for agents of OpenAI, LangChain and Pydantic-AI."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernelexec.adapters.shared.blocks import remove_notebooks, remove_start_notes
from kernelexec.adapters.shared.commands import await_result, call_in_thread
from kernelexec.errors import InvalidConfig, InvalidRequest, KernelexecError, did_you_mean
from kernelexec.executor.blocking import Session
from kernelexec.results import ExecutionResult, Image, make_model_answer
from kernelexec.results.model_answers import LIMIT_MIN
from kernelexec.text import format_note, quote_output, utf8_size

#: The default limit of text in an answer, in bytes; ``read_output`` reads the rest.
TEXT_BYTES = 20_000
_TIMEOUT_SCHEMA = {"type": ["number", "null"], "description": "Seconds that it may run; null for the session's default."}


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool for a model: ``call`` takes keyword arguments and returns text, also for invalid arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    call: Callable[..., str]
    operation: Operation

    async def acall(self, **arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
        """Call the tool without blocking the event loop; if the caller is cancelled, the cell is interrupted."""
        return (await self.operation.run_async(arguments)).text

    def openai(self, *, strict: bool = True) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat API."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters), "strict": strict}
        return {"type": "function", "function": function}

    def anthropic(self) -> dict[str, Any]:
        """Return the tool in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation behind a tool: a function of a session that returns a cell's result or text; its errors are text."""

    session: Session
    function: Callable[..., ExecutionResult | str]
    properties: tuple[str, ...]
    text_bytes: int
    runs_code: bool
    """Whether the function sends a cell or command, and so takes ``wait``."""

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.function.__name__

    def run(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Return the answer: text, pictures and the cell's result."""
        try:
            self._check(arguments)
            return self._format(self.function(**arguments))
        except (TypeError, KernelexecError) as exc:
            return self._describe(exc)

    async def run_async(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Return the answer without blocking the event loop; if the caller is cancelled, the cell is interrupted."""
        if not self.runs_code:
            return await call_in_thread(lambda: self.run(arguments))
        try:
            self._check(arguments)
            result = await await_result(self.session, partial(self._send, arguments))
        except (TypeError, KernelexecError) as exc:
            return self._describe(exc)
        return await call_in_thread(lambda: self._format(result))

    def _send(self, arguments: Mapping[str, Any], wait: float) -> ExecutionResult:
        result = self.function(**arguments, wait=wait)
        assert isinstance(result, ExecutionResult)
        return result

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ``InvalidRequest`` for unknown or missing arguments."""
        if unknown := sorted(set(arguments) - set(self.properties)):
            near = did_you_mean(unknown[0], list(self.properties))
            names = ", ".join(self.properties)
            raise InvalidRequest(f"{self.name}: {unknown[0]!r:.80} is not an argument{near}: must be one of {names}.")
        parameters = inspect.signature(self.function).parameters.values()
        needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
        if missing := [name for name in needed if name not in arguments]:
            names = ", ".join(self.properties)
            raise InvalidRequest(f"{self.name}: the argument {missing[0]!r} is missing: must have {names}.")

    def _format(self, value: ExecutionResult | str) -> ToolAnswer:
        if isinstance(value, str):
            return ToolAnswer(value)
        return make_answer(remove_start_notes(value, self.session), self.text_bytes)

    def _describe(self, exc: Exception) -> ToolAnswer:
        match exc:
            case InvalidRequest():
                return ToolAnswer(str(exc))
            case KernelexecError():
                return ToolAnswer(f"{type(exc).__name__}: {exc}")
            case _:
                return ToolAnswer(f"{self.name}: {exc}")


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

    def execute_code(code: str, timeout: float | None = None, wait: float | None = None) -> ExecutionResult:
        return session.execute(code, timeout=timeout, wait=wait)

    def execute_command(command: str, timeout: float | None = None, wait: float | None = None) -> ExecutionResult:
        return session.execute_command(command, timeout=timeout, wait=wait)

    def read_output(execution_id: str, offset: int = 0) -> str:
        page = session.read_output(execution_id, offset=offset, limit=text_bytes)
        more = "" if page.next_offset is None else "\n" + format_note(f"read on with offset={page.next_offset}")
        return f"{quote_output(page.text)}{more}"

    text = {"type": "string"}
    return (
        _make_tool(
            Operation(session, execute_code, ("code", "timeout"), text_bytes, runs_code=True),
            "Run Python code in a persistent kernel, as a notebook cell: variables last from call to call, and the value of "
            "the last expression is shown. A failure with state kept loses nothing: fix what failed and go on.",
            {"code": {**text, "description": "The code."}, "timeout": _TIMEOUT_SCHEMA},
        ),
        _make_tool(
            Operation(session, execute_command, ("command", "timeout"), text_bytes, runs_code=True),
            "Run a shell command in the kernel's workspace: cd and export last from call to call.",
            {"command": {**text, "description": "The command."}, "timeout": _TIMEOUT_SCHEMA},
        ),
        _make_tool(
            Operation(session, read_output, ("execution_id", "offset"), text_bytes, runs_code=False),
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


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool: text, at most four pictures, and the result of the cell or command, if the tool ran one."""

    text: str
    pictures: tuple[Image, ...] = ()
    result: ExecutionResult | None = None


def make_answer(result: ExecutionResult, text_bytes: int = TEXT_BYTES) -> ToolAnswer:
    """Return the answer for a result, with the id by which a model reads output that is longer than ``text_bytes``."""
    is_cut = result.truncated or utf8_size(result.text) > text_bytes
    notes = [f"read_output(execution_id={result.execution_id!r}) has all of its output"] if is_cut else []
    answer = make_model_answer(remove_notebooks(result), text_bytes, notes)
    return ToolAnswer(answer.text, answer.pictures, result)


def _make_tool(operation: Operation, description: str, properties: Mapping[str, Any]) -> FunctionTool:
    def call(**arguments: Any) -> str:  # noqa: ANN401 - a model's arguments
        return operation.run(arguments).text

    call.__name__ = call.__qualname__ = operation.name  # Python's error messages use this name
    schema = {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}
    return FunctionTool(operation.name, description, schema, call, operation)
