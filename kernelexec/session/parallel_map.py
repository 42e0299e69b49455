"""The same function or code over many inputs, in several sessions of an executor at the same time."""

from __future__ import annotations

import ast
import inspect
import secrets
import textwrap
import uuid
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import check_seconds
from kernelexec.errors import Closed, InvalidCode, InvalidRequest, KernelexecError
from kernelexec.results import Error, ExecutionResult
from kernelexec.session.features.variable_values import check_values
from kernelexec.session.lifecycle import find_first_exception
from kernelexec.session.session import AsyncSession

#: The variable that holds the input of a function.
_ARGUMENT = "kernelexec_input"
_SESSIONS_MAX = 1000
_END = object()
#: The names in a function's annotations are not defined in a session.
_LAZY_ANNOTATIONS = "from __future__ import annotations\n"


@dataclass(frozen=True, slots=True)
class MappedCode:
    """Code to run for each input: ``setup`` once a session, then ``code`` with the input's variables."""

    setup: str | None
    code: str

    @classmethod
    def read(cls, function: Callable[[Any], Any] | str) -> MappedCode:
        """Return code unchanged, or the source and a call of a function.

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
        unreadable = f"The source of {name} cannot be read"
        try:
            source = textwrap.dedent(inspect.getsource(function))
            [definition] = ast.parse(source).body
        except (OSError, ValueError, SyntaxError) as exc:
            raise InvalidRequest(f"{unreadable}: pass its code as text.") from exc
        # Python 3.13 keeps the text of `python -c` as the source of all that is compiled without a file.
        if not isinstance(definition, ast.FunctionDef) or definition.name != name:
            raise InvalidRequest(f"{unreadable}: pass its code as text.")
        return cls(f"{_LAZY_ANNOTATIONS}{source}", f"{name}({_ARGUMENT})")

    def make_inputs(self, item: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any value
        """Return the variables of an input: the argument of a function, or a mapping of names for code."""
        if self.setup is not None:
            return {_ARGUMENT: item}
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"Each input of code must be a mapping of names to values, not {type(item).__name__}.")
        return item

    def check_inputs(self, inputs: Iterable[Any], limit_bytes: int) -> None:
        """Raise ``InvalidRequest`` for the first unsendable input. For a thread, since inputs may be large."""
        for position, item in enumerate(inputs):
            anyio.from_thread.check_cancelled()
            try:
                if variables := self.make_inputs(item):
                    check_values(variables, limit_bytes)
            except InvalidRequest as exc:
                reason = str(exc).replace(repr(_ARGUMENT), "it")
                raise InvalidRequest(f"inputs[{position}]: {reason}") from exc


@dataclass(slots=True)
class MapSession:
    """A session of a map, opened for its first input."""

    mapped: MappedCode
    timeout: float | None
    session: AsyncSession
    _epoch: int | None = None
    """The number of the kernel with the function."""

    async def run(self, item: Any) -> ExecutionResult:  # noqa: ANN401 - any value
        """Run the code for an input. Obstacles to the run are errors in the result."""
        try:
            inputs = self.mapped.make_inputs(item)
            await self.define_function()
            return await self.session.execute(self.mapped.code, inputs=inputs, timeout=self.timeout)
        except (Closed, InvalidCode):
            raise
        except KernelexecError as exc:
            return self._make_failed_result(exc)

    async def define_function(self) -> None:
        """Run the setup in the first kernel, and in each replacement of a lost kernel."""
        session = self.session
        if self.mapped.setup is None or (session.kernel_epoch == self._epoch and session.connection_file is not None):
            return
        (await session.execute(self.mapped.setup, timeout=self.timeout)).raise_for_error()
        self._epoch = session.kernel_epoch

    def _make_failed_result(self, exc: KernelexecError) -> ExecutionResult:
        session = self.session
        return ExecutionResult(
            execution_id=uuid.uuid4().hex,
            session=session.name,
            status="aborted",
            outputs=(Error(type(exc).__name__, str(exc), ()),),
            exit_code=-1,
            kernel_epoch=session.kernel_epoch,
            isolation=session.isolation,
            notes=("The code did not run for this input.",),
        )


def _check_options(inputs: object, count: object, timeout: float | None) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _SESSIONS_MAX:
        raise InvalidRequest(f"sessions={count!r}: must be a number from 1 to {_SESSIONS_MAX}.")
    if not isinstance(inputs, Iterable | AsyncIterable):
        raise InvalidRequest(f"inputs must be iterable, not {type(inputs).__name__}.")
    if timeout is not None:
        check_seconds(timeout, "timeout")


async def map_inputs(
    function: Callable[[Any], Any] | str,
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    count: int,
    timeout: float | None,
    limit_bytes: int,
    open_session: Callable[[str], Awaitable[AsyncSession]],
    wait_for_end: Callable[[], Coroutine[Any, Any, None]],
) -> list[ExecutionResult]:
    """Run a function or code for each input in ``count`` new sessions; see ``AsyncExecutor.map``.

    ``limit_bytes`` is the size of an input. ``wait_for_end`` waits for the requested end of the executor, which ends the map.
    """
    _check_options(inputs, count, timeout)
    mapped = MappedCode.read(function)
    if isinstance(inputs, Collection) and not isinstance(inputs, Iterator):  # others may be read only once
        await anyio.to_thread.run_sync(mapped.check_inputs, inputs, limit_bytes)
    results: dict[int, ExecutionResult] = {}
    free, token = anyio.Semaphore(count), secrets.token_hex(4)
    sender, receiver = anyio.create_memory_object_stream[tuple[int, Any]](count)

    async def work(number: int, first: tuple[int, Any]) -> None:
        session = await open_session(f"map-{token}-{number}")
        try:
            target = MapSession(mapped, timeout, session)
            await target.define_function()
            results[first[0]] = await target.run(first[1])
            free.release()
            async for position, item in receiver:
                results[position] = await target.run(item)
                free.release()
        finally:
            await await_to_end(session.close())

    async def end_with_executor() -> None:
        await wait_for_end()
        raise Closed("The executor was closed during the map.")

    try:
        async with anyio.create_task_group() as watching, receiver:
            watching.start_soon(end_with_executor)
            async with anyio.create_task_group() as tasks, sender:
                async for position, item in _read(inputs, free):
                    if position < count:
                        tasks.start_soon(work, position + 1, (position, item))
                    else:  # never full: ``_read`` yields an input only for a free session, and the buffer has room for all
                        sender.send_nowait((position, item))
            watching.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise find_first_exception(group) from None
    return [results[position] for position in range(len(results))]


async def _read(inputs: Iterable[Any] | AsyncIterable[Any], free: anyio.Semaphore) -> AsyncIterator[tuple[int, Any]]:
    """Yield each input with its position, as soon as a session is free."""
    items = aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs)
    position = 0
    while True:
        await free.acquire()
        item = await anext(items, _END) if isinstance(items, AsyncIterator) else next(items, _END)
        if item is _END:
            return
        yield position, item
        position += 1
