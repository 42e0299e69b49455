"""A stateful code mode for any fastmcp server: its ``CodeMode`` has code run in a session, which calls the server's tools.

fastmcp's protocol needs nothing of fastmcp here. Code reaches the functions that it is given by what it displays, and gets
their answers by files of its workspace: so it works wherever kernels run, also without a network.
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

from kernelexec.adapters.code_cells import CALL, VALUE, cell
from kernelexec.config import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidWorkDir, KernelexecError
from kernelexec.results import DisplayData, ExecuteResult, ExecutionFailed, ExecutionResult, Output, remarks
from kernelexec.session import AsyncSession
from kernelexec.text import NESTING_MAX, clean
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import replace_beneath

#: Where runs have their directories in a workspace. It is one of those that no list of changed files looks into.
_FOLDER = Path(".kernelexec")
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TRIES = 3
_TOLD_CHARS = 2000


class SandboxProvider:
    """fastmcp's ``SandboxProvider``, for ``CodeMode(sandbox_provider=...)``: variables last from one run to the next.

    Args:
        session: which stays the caller's; runs take turns.
        timeout: seconds that one run may take, calls of functions included; the session's by default.
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
    ) -> Any:  # noqa: ANN401 - what the code returns
        """Run code and give what it returns, or the value of its last expression, as JSON values.

        The code is a cell, so all may stand in it that a notebook's cell of plain Python may hold, and ``return`` besides.
        Of what is no JSON, these are understood: sets as lists, dates and times as ISO text, dataclasses and pydantic models
        as dictionaries of their fields, numpy's arrays and numbers; a DataFrame of pandas as a list of one dictionary for each
        row, its index being a column unless it only counts the rows; a Series as the list of its values, or as a DataFrame,
        if its index is more than that. Tuples come as lists, keys as text, NaN as None. Any other value is a ``TypeError`` of
        the code's: half of a value is never returned. The same holds for the arguments of functions.

        Args:
            code: may ``await``, and ``return``. It is Python as the version that runs this program has it.
            inputs: variables that it finds, as JSON values.
            external_functions: what it can await, plain or coroutine functions, until the run is over. What they raise,
                whatever it is, the code gets as ``RuntimeError``. What they return and JSON has not comes as pydantic makes
                it, or as text.

        Raises:
            InvalidCode: it is no Python, or could not stand there: nothing ran.
            InvalidRequest: a function or an input has a name that is no identifier, or a keyword: nothing ran.
            InvalidWorkDir: the workspace cannot be written: nothing ran.
            SecurityError: it was refused, as the message says: nothing ran.
            ExecutionFailed: it failed, and the message has its traceback's end; or what it returned cannot be read.
            TypeError, ValueError: an input is no JSON value.
        """
        functions = dict(external_functions or {})
        run = _Run(self._session, functions)
        source = cell(code, inputs=inputs or {}, functions=functions, token=run.token, folder=run.folder)
        async with self._turn:
            result = await run.executed(source, self._timeout)
        if not result.ok:
            if result.status == "aborted":
                result.raise_for_error()  # refused, as that says
            report = "\n".join([result.text[-_TOLD_CHARS:].strip(), *remarks(result)]).strip()
            raise ExecutionFailed(f"{result.status}, state {result.state}: {report}", result)
        try:
            return _value(run.said)
        except (ValueError, RecursionError) as exc:
            raise ExecutionFailed(f"What it returned cannot be read: {exc}. Have it return less.", result) from exc


class _Run:
    """One run of code, and the calls that come of it, which end with it. Nothing of it is left in the workspace."""

    def __init__(self, session: AsyncSession, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.token = secrets.token_hex(16)
        self._place = _FOLDER / secrets.token_hex(16)
        self.folder = str(PurePosixPath(session.workspace_inside, *self._place.parts))
        self._session = session
        self._functions = functions
        self.said: object = None
        """What the code says that it returned."""
        self._lasts = False
        """Whether calls are answered."""
        self._asked: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._writing = anyio.CapacityLimiter(1)

    async def executed(self, source: str, timeout: float | None) -> ExecutionResult:
        """Return the result of the run's cell. However it ends, its calls have ended too."""
        outcome: ExecutionResult | Exception
        try:
            if self._functions:
                self._open()
            async with anyio.create_task_group() as calls:
                calls.start_soon(self._serve, calls)
                try:
                    outcome = await self._sent(source, timeout)
                except Exception as exc:  # noqa: BLE001 - raised below: a task group would wrap it
                    outcome = exc
                finally:
                    self._lasts = False
                    calls.cancel_scope.cancel()
        finally:
            if self._functions:
                self._close()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _sent(self, source: str, timeout: float | None) -> ExecutionResult:
        """Have the cell run to its end; who is cancelled waits until it was interrupted."""
        sent = self._session.execute(source, timeout=timeout, on_output=self._heard, wait=SHORTEST_TIMEOUT)
        beginning = asyncio.ensure_future(sent)
        try:
            begun = await asyncio.shield(beginning)
            return (await self._session.wait_for(begun.execution_id)).result or begun
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), suppress(KernelexecError):
                await self._session.interrupt((await beginning).execution_id)
            raise

    def _heard(self, output: Output) -> None:
        if (message := self._said(output, VALUE)) is not None:
            self.said = message.get("value")
        elif self._lasts and (message := self._said(output, CALL)) is not None:
            self._asked.put_nowait(message)

    def _said(self, output: Output, mime: str) -> Mapping[str, Any] | None:
        message = output.data.get(mime) if isinstance(output, DisplayData | ExecuteResult) else None
        return message if isinstance(message, dict) and message.get("token") == self.token else None

    async def _serve(self, calls: anyio.abc.TaskGroup) -> None:
        """Start the requested calls in this task, whose context functions must see."""
        while True:
            calls.start_soon(self._answer, await self._asked.get())

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Call a function for the waiting kernel, and send the outcome, as long as the run lasts.

        What it said of the call is believed in nothing but that it is one of those given.
        """
        call = message.get("id")
        if not isinstance(call, str) or not _ID.fullmatch(call):
            return
        try:
            content = json.dumps({"value": await self._called(message)}, default=_plain)
        except BaseException as exc:  # noqa: BLE001 - also what ends a program: here it would only end the answer
            content = json.dumps({"error": _told(exc)})
        if not self._lasts:
            return
        with anyio.CancelScope(shield=True):  # a thread that goes on alone would write it after all was removed
            await anyio.to_thread.run_sync(self._write, call, content.encode(), limiter=self._writing)

    async def _called(self, message: Mapping[str, Any]) -> object:
        name = message.get("name")
        function = self._functions.get(name) if isinstance(name, str) else None
        if function is None:
            raise TypeError(f"{name!r} is no function")
        args, kwargs = _value(message.get("given"))
        value = function(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    def _open(self) -> None:
        """Make the run's directory, by which the kernel knows that it lasts.

        Raises:
            InvalidWorkDir: it cannot be made.
        """
        for left in reversed(range(_TRIES)):
            try:
                replace_beneath(self._session.workspace, self._place / "lasts", b"")
            except OSError as exc:  # another run that ends may have removed what is above it
                if not left:
                    message = f"{self._session.workspace} cannot be written, and there functions are answered: {exc.strerror}."
                    raise InvalidWorkDir(message) from exc
            else:
                self._lasts = True
                return

    def _write(self, call: str, content: bytes) -> None:
        """Write an answer. Where that cannot be, all that waits in the kernel is told so: by the end of the directory."""
        try:
            if self._lasts:
                replace_beneath(self._session.workspace, self._place / f"{call}.json", content)
        except OSError:
            self._close()

    def _close(self) -> None:
        """Remove the directory, at once: what is awaited can be cancelled."""
        self._lasts = False
        remove_within(self._session.workspace, self._place)
        with suppress(OSError):  # something else is in it
            (self._session.workspace / _FOLDER).rmdir()


def _value(text: object) -> Any:  # noqa: ANN401 - what the code returned
    """Return a value from the kernel's JSON, fit to be sent on.

    Raises:
        ValueError: its message was too large to come, it is no JSON, or nested too deep.
        RecursionError: nested deeper than can be read.
    """
    if not isinstance(text, str):
        raise ValueError("it is too large")  # noqa: TRY004 - not of the caller's making
    value = json.loads(text)
    if _depth(value) > NESTING_MAX:
        raise ValueError(f"it is nested deeper than {NESTING_MAX} lists and dictionaries")
    return clean(value)


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _told(exc: BaseException) -> str:
    """Return an exception in words, whatever its ``__str__`` does."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:  # noqa: BLE001 - it is somebody's
        return type(exc).__name__


def _plain(value: object) -> object:
    """Return a substitute for a value that JSON lacks: pydantic's, or its text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
