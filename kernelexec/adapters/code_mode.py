"""A stateful code mode for fastmcp servers: its ``CodeMode`` runs code in a session, and the code calls the server's tools.

This module does not import fastmcp. Code requests function calls through displayed messages and reads their results from
files in its workspace, so that this works with every kind of kernel, also without a network.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from kernelexec.adapters.code_cells import CALL, VALUE, build_cell
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidWorkDir, KernelexecError
from kernelexec.results import DisplayData, ExecuteResult, ExecutionFailed, ExecutionResult, Output, model_notes
from kernelexec.session import AsyncSession
from kernelexec.text import NESTING_MAX, clean
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import replace_beneath

#: The directory of runs in a workspace. Lists of changed files exclude it.
_FOLDER = Path(".kernelexec")
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TRIES = 3
_REPORT_CHARS = 2000


class SandboxProvider:
    """fastmcp's ``SandboxProvider``, for ``CodeMode(sandbox_provider=...)``: variables last from one run to the next.

    Args:
        session: an open session, which the caller closes; runs take turns.
        timeout: seconds for one run, including its function calls; the session's timeout by default.
    """

    def __init__(self, session: AsyncSession, *, timeout: float | None = None) -> None:
        self._session = session
        self._timeout = timeout
        self._turn = asyncio.Lock()

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        external_functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Any:  # noqa: ANN401 - the code's value
        """Run code and return its value, or the value of its last expression, as JSON values.

        The code is a cell of plain Python that may also ``return``. These other types are converted to JSON: sets to lists;
        dates and times to ISO text; dataclasses and pydantic models to dictionaries of their fields; numpy's arrays and
        numbers; a pandas DataFrame to a list of one dictionary per row, with its index as a column unless it only counts the
        rows; a Series to the list of its values, or like a DataFrame if its index does more than count. Tuples become lists,
        keys text, NaN None. Any other value raises ``TypeError`` in the code: values are never converted partly. The same
        applies to the arguments of functions.

        Args:
            code: Python of the version that runs this program; it may ``await`` and ``return``.
            inputs: variables of the code, as JSON values.
            external_functions: plain or coroutine functions that the code can await until the run ends. Their exceptions
                become ``RuntimeError`` in the code. Return values that are not JSON are converted by pydantic, or to text.

        Raises:
            InvalidCode: the code is not valid Python for a cell; nothing ran.
            InvalidRequest: the name of a function or an input is not an identifier, or is a keyword; nothing ran.
            InvalidWorkDir: the workspace cannot be written; nothing ran.
            SecurityError: the rules refused the code, with the reason in the message; nothing ran.
            ExecutionFailed: the code failed, with the end of its traceback in the message; or its value cannot be read.
            TypeError, ValueError: an input is not a JSON value.
        """
        functions = dict(external_functions or {})
        code_run = _CodeRun(self._session, functions)
        source = build_cell(code, inputs=inputs or {}, functions=functions, token=code_run.token, folder=code_run.folder)
        async with self._turn:
            result = await code_run.execute(source, self._timeout)
        if not result.ok:
            if result.status == "aborted":
                result.raise_for_error()  # the cell was refused
            report = "\n".join([result.text[-_REPORT_CHARS:].strip(), *model_notes(result)]).strip()
            raise ExecutionFailed(f"{result.status}, state {result.state}: {report}", result)
        try:
            return _parse_value(code_run.value_json)
        except (ValueError, RecursionError) as exc:
            raise ExecutionFailed(f"The code's value cannot be read: {exc}. Return less.", result) from exc


class _CodeRun:
    """One run of code with its function calls, which end with the run. It leaves no files in the workspace."""

    def __init__(self, session: AsyncSession, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.token = secrets.token_hex(16)
        self._directory = _FOLDER / secrets.token_hex(16)
        self.folder = str(PurePosixPath(session.workspace_inside, *self._directory.parts))
        self._session = session
        self._functions = functions
        self.value_json: object = None
        """The code's value as JSON text, untrusted."""
        self._is_running = False
        """Whether function calls are answered."""
        self._requests: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._writing = anyio.CapacityLimiter(1)

    async def execute(self, source: str, timeout: float | None) -> ExecutionResult:
        """Run the cell and return its result. All function calls have ended when this returns or raises."""
        outcome: ExecutionResult | Exception
        try:
            if self._functions:
                self._open()
            async with anyio.create_task_group() as calls:
                calls.start_soon(self._serve, calls)
                try:
                    outcome = await self._run_cell(source, timeout)
                except Exception as exc:  # noqa: BLE001 - raised below: a task group would wrap it
                    outcome = exc
                finally:
                    self._is_running = False
                    calls.cancel_scope.cancel()
        finally:
            if self._functions:
                self._close()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _run_cell(self, source: str, timeout: float | None) -> ExecutionResult:
        """Run the cell to its end. Cancellation interrupts the cell first."""
        execution = self._session.execute(source, timeout=timeout, on_output=self._on_output, wait=SHORTEST_TIMEOUT)
        beginning = asyncio.ensure_future(execution)
        try:
            begun = await asyncio.shield(beginning)
            return (await self._session.wait_for(begun.execution_id)).result or begun
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), suppress(KernelexecError):
                await self._session.interrupt((await beginning).execution_id)
            raise

    def _on_output(self, output: Output) -> None:
        if (message := self._read_message(output, VALUE)) is not None:
            self.value_json = message.get("value")
        elif self._is_running and (message := self._read_message(output, CALL)) is not None:
            self._requests.put_nowait(message)

    def _read_message(self, output: Output, mime: str) -> Mapping[str, Any] | None:
        content = output.data.get(mime) if isinstance(output, DisplayData | ExecuteResult) else None
        return content if isinstance(content, dict) and content.get("token") == self.token else None

    async def _serve(self, calls: anyio.abc.TaskGroup) -> None:
        """Start the requested calls from this task, whose context variables functions must see."""
        while True:
            calls.start_soon(self._answer, await self._requests.get())

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Call a function for the waiting kernel and write its result, as long as the run lasts.

        The kernel's message is untrusted: only the run's own functions can be called.
        """
        call = message.get("id")
        if not isinstance(call, str) or not _ID.fullmatch(call):
            return
        try:
            content = json.dumps({"value": await self._call_function(message)}, default=_to_plain)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit: it must not end this program
            content = json.dumps({"error": _describe_exception(exc)})
        if not self._is_running:
            return
        with anyio.CancelScope(shield=True):  # an abandoned thread would write after the directory was removed
            await anyio.to_thread.run_sync(self._write, call, content.encode(), limiter=self._writing)

    async def _call_function(self, message: Mapping[str, Any]) -> object:
        name = message.get("name")
        function = self._functions.get(name) if isinstance(name, str) else None
        if function is None:
            raise TypeError(f"{name!r} is not a function of this run")
        args, kwargs = _parse_value(message.get("given"))
        value = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    def _open(self) -> None:
        """Create the run's directory, whose existence tells the kernel that the run lasts.

        Raises:
            InvalidWorkDir: the directory cannot be created.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                replace_beneath(self._session.workspace, self._directory / "lasts", b"")
            except OSError as exc:  # another run that ends may have removed the parent directory
                if not tries_left:
                    message = f"{self._session.workspace} must be writable to pass results of functions: {exc.strerror}."
                    raise InvalidWorkDir(message) from exc
            else:
                self._is_running = True
                return

    def _write(self, call: str, content: bytes) -> None:
        """Write a result. If that fails, remove the directory, which ends all waiting calls in the kernel."""
        try:
            if self._is_running:
                replace_beneath(self._session.workspace, self._directory / f"{call}.json", content)
        except OSError:
            self._close()

    def _close(self) -> None:
        """Remove the directory synchronously, because an await could be cancelled."""
        self._is_running = False
        remove_within(self._session.workspace, self._directory)
        with suppress(OSError):  # something else is in it
            (self._session.workspace / _FOLDER).rmdir()


def _parse_value(text: object) -> Any:  # noqa: ANN401 - what the code returned
    """Parse a value from the kernel's JSON.

    Raises:
        ValueError: the message was too large to arrive, or the text is not JSON, or nested too deep.
        RecursionError: the JSON is nested deeper than the parser can read.
    """
    if not isinstance(text, str):
        raise ValueError("it is too large")  # noqa: TRY004 - not the caller's error
    value = json.loads(text)
    if _depth(value) > NESTING_MAX:
        raise ValueError(f"must not be nested deeper than {NESTING_MAX} lists and dictionaries")
    return clean(value)


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _describe_exception(exc: BaseException) -> str:
    """Describe an exception, also if its ``__str__`` fails."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:  # noqa: BLE001 - ``__str__`` of any class
        return type(exc).__name__


def _to_plain(value: object) -> object:
    """Convert a value that is not JSON: by pydantic, or to text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
