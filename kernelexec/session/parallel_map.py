"""The same function or code over many inputs, in several sessions of an executor at the same time."""

from __future__ import annotations

import ast
import inspect
import secrets
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import anyio

from kernelexec.errors import InvalidRequest
from kernelexec.results import ExecutionResult
from kernelexec.session.lifecycle import find_first_exception
from kernelexec.session.session import AsyncSession

#: The variable that holds the input of a function.
_ARGUMENT = "kernelexec_input"
_SESSIONS_MAX = 1000
#: The names in a function's annotations are not defined in a session.
_LAZY_ANNOTATIONS = "from __future__ import annotations\n"


@dataclass(frozen=True, slots=True)
class MappedCode:
    """Code that is run once for each input: ``setup`` once a session, then ``code`` with the input's variables."""

    setup: str | None
    code: str

    @classmethod
    def read(cls, function: Callable[[Any], Any] | str) -> MappedCode:
        """Return code as it is, and of a function its source and a call.

        Raises:
            InvalidRequest: the source is not available, or needs variables around the function.
        """
        if isinstance(function, str):
            return cls(None, function)
        name = getattr(function, "__name__", type(function).__name__)
        if not inspect.isfunction(function) or not name.isidentifier():
            raise InvalidRequest(f"map needs code, or a function that is defined by def; {name} is none.")
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise InvalidRequest(f"{name} must be a plain function: its value is sent back.")
        if function.__closure__:
            needed = ", ".join(function.__code__.co_freevars)
            raise InvalidRequest(
                f"The function {name} needs {needed} from around it, which sessions do not have: pass it as input."
            )
        try:
            source = textwrap.dedent(inspect.getsource(function))
            ast.parse(source)
        except (OSError, SyntaxError) as exc:
            raise InvalidRequest(f"The source of {name} cannot be read: pass its code as text.") from exc
        return cls(f"{_LAZY_ANNOTATIONS}{source}", f"{name}({_ARGUMENT})")

    def make_inputs(self, item: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any value
        """Return the variables of one input: of a function its argument; of code a mapping of names."""
        if self.setup is not None:
            return {_ARGUMENT: item}
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"Each input of code must be a mapping of names to values, not {type(item).__name__}.")
        return item


async def map_inputs(
    function: Callable[[Any], Any] | str,
    inputs: Iterable[Any],
    *,
    count: int,
    timeout: float | None,
    open_session: Callable[[str], Awaitable[AsyncSession]],
) -> list[ExecutionResult]:
    """Run a function or code for each input in ``count`` sessions of its own; see ``AsyncExecutor.map``."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _SESSIONS_MAX:
        raise InvalidRequest(f"sessions={count!r}: must be a number from 1 to {_SESSIONS_MAX}.")
    mapped, items = MappedCode.read(function), enumerate(inputs)
    results: dict[int, ExecutionResult] = {}
    token = secrets.token_hex(4)

    async def work(number: int, first: tuple[int, Any]) -> None:
        session = await open_session(f"map-{token}-{number}")
        try:
            if mapped.setup is not None:
                (await session.execute(mapped.setup, timeout=timeout)).raise_for_error()
            for position, item in chain([first], items):
                inputs = mapped.make_inputs(item)
                results[position] = await session.execute(mapped.code, inputs=inputs, timeout=timeout)
        finally:
            with anyio.CancelScope(shield=True):
                await session.close()

    try:
        async with anyio.create_task_group() as tasks:
            for number in range(1, count + 1):
                if (first := next(items, None)) is None:
                    break
                tasks.start_soon(work, number, first)
    except BaseExceptionGroup as group:
        raise find_first_exception(group) from None
    return [results[position] for position in range(len(results))]
