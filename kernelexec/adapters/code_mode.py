"""A stateful code mode for fastmcp servers: ``CodeMode`` of fastmcp runs code in a session, and the code calls server tools.

This module does not import fastmcp. Code requests function calls through displayed messages and reads the results from files
in the workspace. Both work with every kind of kernel, also without a network. A cell of code mode has a prelude with the
functions, the code at the top level, and an epilogue, which sends the value. Unlike other cells, the code may ``return``. A
final return becomes a call. With other returns, the code becomes the body of a loop, and returns become breaks. The body of a
function would not do: its variables are local, and statements of the top level are not allowed there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import json
import keyword
import re
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread

from kernelexec.adapters.shared.blocks import remove_start_notes
from kernelexec.cancellation import await_to_end
from kernelexec.errors import InvalidCode, InvalidRequest, InvalidWorkDir
from kernelexec.results import DisplayData, ExecuteResult, ExecutionFailed, ExecutionResult, Output, model_notes
from kernelexec.session import AsyncSession
from kernelexec.session.cells.queue import interrupting_cells
from kernelexec.text import NESTING_MAX, clean, format_notes, parse_untrusted_json, quote_output
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within
from kernelexec.workspace.safe_files import replace_beneath

#: The directory of runs in a workspace. Lists of changed files exclude it.
_FOLDER = Path(".kernelexec")
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TRIES = 3
#: The function calls of a run that are served at the same time; further ones wait.
_CALLS_MAX = 100
#: Limits of the calls without an answer: the memory of their arguments, with a cost for each call, in bytes; and the number of
#: refused ones whose errors are not written yet. Calls beyond that get no answer.
_CALLS_BYTES, _CALL_BYTES, _REFUSED_MAX = 16 * 1024 * 1024, 1024, 1000
_REFUSAL = "too many function calls wait, or their arguments are too large: await some before the next ones"
_REPORT_CHARS = 2000


class SandboxProvider:
    """fastmcp's ``SandboxProvider``, for ``CodeMode(sandbox_provider=...)``: variables last from run to run.

    Args:
        session: an open session, which the caller closes; runs take turns.
        timeout: seconds for a run with all function calls; the session's timeout by default.
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
        """Run code and return the returned value, or the value of the last expression, as JSON values.

        The code is a cell of plain Python with ``return``. These other types are converted to JSON: sets to lists; dates and
        times to ISO text; dataclasses and pydantic models to dictionaries of their fields; numpy's arrays and numbers; a pandas
        DataFrame to a list with a dictionary per row, with the index as a column unless the index only counts the rows; a
        Series to a list of values, or like a DataFrame if the index does more than count. Tuples become lists, keys text, NaN
        None. Any other value raises ``TypeError`` in the code: values are never converted partly. The same applies to the
        arguments of functions.

        Args:
            code: Python of this program's version, also with ``await`` and ``return``.
            inputs: variables of the code, as JSON values.
            external_functions: plain or coroutine functions for the code to await until the run ends. Their exceptions become
                ``RuntimeError`` in the code. Further calls raise ``RuntimeError`` too while the arguments of unanswered calls
                take 16 MiB. Return values outside of JSON are converted by pydantic, or to text.

        Raises:
            InvalidCode: the code is not valid Python for a cell; nothing ran.
            InvalidRequest: the name of a function or an input is not an identifier, or is a keyword; nothing ran.
            InvalidWorkDir: the workspace cannot be written; nothing ran.
            SecurityError: the rules refused the code, with the reason in the message; nothing ran.
            ExecutionFailed: the code failed, with the end of the traceback in the message; or the value cannot be read.
            TypeError, ValueError: an input is not a JSON value.
        """
        functions = dict(external_functions or {})
        code_run = _CodeRun(self._session, functions)
        source = build_cell(code, inputs=inputs or {}, functions=functions, token=code_run.token, folder=code_run.folder)
        async with self._turn:
            result = remove_start_notes(await code_run.execute(source, self._timeout), self._session)
        if not result.ok:
            # An aborted cell never ran, so it has no traceback: the result's own error says why.
            if result.status == "aborted":
                result.raise_for_error()  # the cell was refused
            report = "\n".join([quote_output(result.text[-_REPORT_CHARS:].strip()), format_notes(model_notes(result))]).strip()
            raise ExecutionFailed(f"{result.status}, state {result.state}: {report}", result)
        try:
            return _parse_value(code_run.value_json)
        except (ValueError, RecursionError) as exc:
            raise ExecutionFailed(f"The code's value cannot be read: {exc}. Return less.", result) from exc


@dataclass(frozen=True, slots=True)
class _Call:
    """A function call of a kernel. Without a function or arguments, the answer is an error."""

    id: str
    function: Callable[..., Any] | None
    arguments: str | None

    @property
    def held_bytes(self) -> int:
        """The memory of the call."""
        return _CALL_BYTES + sys.getsizeof(self.arguments)


class _CodeRun:
    """A run of code. All function calls end with the run, and no files stay in the workspace."""

    # The way of a call: the kernel displays {token, id, name, arguments}; `_on_output` accepts it, `_serve` starts it, and
    # `_answer` writes <directory>/<id>.json, which the kernel polls for and deletes. The directory is the sign of life: a
    # waiting kernel gives up as soon as it is gone, so every end of a run only has to remove it.

    def __init__(self, session: AsyncSession, functions: Mapping[str, Callable[..., Any]]) -> None:
        # Messages of earlier runs, whose tasks may go on in the kernel, have another token. It protects no secret: the code
        # itself can read it, and call nothing but the functions of this run.
        self.token = secrets.token_hex(16)
        self._directory = _FOLDER / secrets.token_hex(16)
        self.folder = str(PurePosixPath(session.workspace_inside, *self._directory.parts))
        self._session = session
        self._functions = functions
        self.value_json: object = None
        """The code's value as JSON text, untrusted."""
        self._is_running = False
        """Whether function calls are answered."""
        self._free = anyio.Semaphore(_CALLS_MAX)
        self._requests: asyncio.Queue[_Call] = asyncio.Queue()
        self._refused: asyncio.Queue[str] = asyncio.Queue(_REFUSED_MAX)
        self._held_bytes = 0
        """The memory of the calls without an answer."""
        self._writing = anyio.CapacityLimiter(1)

    async def execute(self, source: str, timeout: float | None) -> ExecutionResult:
        """Run the cell and return the result. At the return or the exception, all function calls have ended."""
        outcome: ExecutionResult | Exception
        try:
            if self._functions:
                self._open()
            async with anyio.create_task_group() as calls:
                calls.start_soon(self._serve, calls)
                calls.start_soon(self._refuse)
                try:
                    with interrupting_cells():
                        outcome = await self._session.execute(source, timeout=timeout, on_output=self._on_output)
                except Exception as exc:  # noqa: BLE001 - raised below: a task group would wrap it
                    outcome = exc
                finally:
                    # Before the cancellation: `_answer` turns that into an error, which must not be written any more.
                    self._is_running = False
                    calls.cancel_scope.cancel()
        finally:
            if self._functions:
                await await_to_end(anyio.to_thread.run_sync(self._close, limiter=self._writing))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _on_output(self, output: Output) -> None:
        if (message := self._read_message(output, VALUE)) is not None:
            self.value_json = message.get("value")
        elif self._is_running and (message := self._read_message(output, CALL)) is not None:
            self._accept(message)

    def _accept(self, message: Mapping[str, Any]) -> None:
        """Accept a call. The kernel's message is untrusted: only the run's own functions can be called."""
        call_id, name, arguments = (message.get(key) for key in ("id", "name", "arguments"))
        # The id becomes a file name below: only hexadecimal digits, never a path.
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id):
            return
        function = self._functions.get(name) if isinstance(name, str) else None
        call = _Call(call_id, function, arguments if isinstance(arguments, str) else None)
        if self._held_bytes + call.held_bytes <= _CALLS_BYTES:
            self._held_bytes += call.held_bytes
            self._requests.put_nowait(call)
        elif not self._refused.full():
            self._refused.put_nowait(call_id)

    def _read_message(self, output: Output, mime: str) -> Mapping[str, Any] | None:
        content = output.data.get(mime) if isinstance(output, DisplayData | ExecuteResult) else None
        return content if isinstance(content, dict) and content.get("token") == self.token else None

    async def _serve(self, calls: anyio.abc.TaskGroup) -> None:
        """Start the requested calls from this task, whose context variables functions must see."""
        while True:
            call = await self._requests.get()
            # Taken here and released by `_answer`, so waiting calls cost no task; `_held_bytes` bounds their memory.
            await self._free.acquire()
            calls.start_soon(self._answer, call)

    async def _refuse(self) -> None:
        """Write the errors of the refused calls."""
        content = json.dumps({"error": _REFUSAL})
        while True:
            await self._write_answer(await self._refused.get(), content)

    async def _answer(self, call: _Call) -> None:
        """Call a function for the waiting kernel and write the result, as long as the run lasts."""
        try:
            content = json.dumps({"value": await _call_function(call)}, default=_to_plain)
        except BaseException as exc:  # noqa: BLE001 - also SystemExit: it must not end this program
            content = json.dumps({"error": _describe_exception(exc)})
        try:
            await self._write_answer(call.id, content)
        finally:
            self._held_bytes -= call.held_bytes
            self._free.release()

    async def _write_answer(self, call_id: str, content: str) -> None:
        if not self._is_running:
            return
        writing = anyio.to_thread.run_sync(self._write, call_id, content.encode(), limiter=self._writing)
        await await_to_end(writing)  # an abandoned thread would write after the directory was removed

    def _open(self) -> None:
        """Create the run's directory, which exists for the kernel to see as long as the run lasts."""
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
        """Write a result. On an error remove the directory, which ends all waiting calls in the kernel."""
        try:
            if self._is_running:
                replace_beneath(self._session.workspace, self._directory / f"{call}.json", content)
        except OSError:
            self._close()

    def _close(self) -> None:
        """Remove the directory, in a thread: a cell may add files meanwhile."""
        self._is_running = False
        remove_within(self._session.workspace, self._directory, seconds=CALL_SECONDS)
        with suppress(OSError):  # something else is in it
            (self._session.workspace / _FOLDER).rmdir()


async def _call_function(call: _Call) -> object:
    if call.function is None:
        raise TypeError("this is not a function of the run")
    args, kwargs = _parse_value(call.arguments)
    value = call.function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _parse_value(text: object) -> Any:  # noqa: ANN401 - what the code returned
    """Parse a value from the kernel's JSON, which may be missing (the message was too large), malformed or nested too deep."""
    if not isinstance(text, str):
        raise ValueError("it is too large")  # noqa: TRY004 - not the caller's error
    value = parse_untrusted_json(text)
    if _depth(value) > NESTING_MAX:
        raise ValueError(f"must not be nested deeper than {NESTING_MAX} lists and dictionaries")
    return clean(value)


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _describe_exception(exc: BaseException) -> str:
    """Describe an exception, also after an error in ``__str__``."""
    try:
        return f"{type(exc).__name__}: {exc}"
    except Exception:  # noqa: BLE001 - ``__str__`` of any class
        return type(exc).__name__


def _to_plain(value: object) -> object:
    """Convert a value outside of JSON: by pydantic, or to text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


CALL, VALUE = "application/vnd.kernelexec.call+json", "application/vnd.kernelexec.value+json"
#: The reserved name.
_RESERVED_NAME = "__kernelexec"
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_LOOPS = ast.For | ast.AsyncFor | ast.While
#: The code that the kernel runs first. It has its own globals, so that the user's names do not affect it. It polls for files,
#: which work without a network, and reads them through ``pathlib``, because rules may forbid ``open``.
_PRELUDE = """\
def __kernelexec(token, folder, inputs, names):
    import asyncio, dataclasses, datetime, json, pathlib, uuid
    from IPython.display import display

    directory = pathlib.Path(folder)

    def plain(value):
        kind, module = type(value).__name__, type(value).__module__.partition(".")[0]
        if isinstance(value, (set, frozenset)):
            return [*value]
        if isinstance(value, (datetime.date, datetime.time)):
            return None if kind == "NaTType" else value.isoformat()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if hasattr(type(value), "model_dump"):
            return value.model_dump(mode="json")
        if module == "numpy" and hasattr(value, "dtype"):
            return (value.astype(str) if value.dtype.kind in "mM" else value).tolist()
        if module == "pandas":
            if kind in ("DataFrame", "Series"):
                return rows(value)
            return value.tolist() if hasattr(value, "tolist") else None if kind == "NAType" else str(value)
        raise TypeError(f"A value of type {kind} must be converted to JSON first: text, numbers, lists or dictionaries.")

    def packed(value, what):
        __tracebackhide__ = True
        try:
            return json.dumps(value, default=plain)
        except (TypeError, ValueError, RecursionError) as exc:
            reason = str(exc)
        raise TypeError(f"{what}: {reason}")

    def rows(table):
        index = table.index
        counts = type(index).__name__ == "RangeIndex" and index.name is None and (index.start, index.step) == (0, 1)
        if type(table).__name__ == "Series":
            if counts:
                return table.tolist()
            table = table.to_frame()
        table = table if counts else table.reset_index()
        columns = [str(name) for name in table.columns]
        if len({*columns}) < len(columns):
            raise TypeError("A DataFrame must have unique column names: rename its columns.")
        return table.set_axis(columns, axis=1).to_dict("records")

    def function(name):
        async def called(*args, **kwargs):
            __tracebackhide__ = True
            arguments = packed([args, kwargs], f"The arguments of {name}")
            if len(arguments) > @LIMIT@:
                raise ValueError(f"{name}: its arguments are {len(arguments)} characters of JSON; must be at most @LIMIT@.")
            answer, pause = directory / f"{uuid.uuid4().hex}.json", 0.002
            if directory.is_dir():
                request = {"token": token, "id": answer.stem, "name": name, "arguments": arguments}
                display({"@CALL@": request, "text/plain": f"called {name}: {arguments:.200}"}, raw=True)
            try:
                while not answer.exists():
                    if not directory.is_dir():
                        raise RuntimeError(f"{name}: its run is over, or its result could not be written.")
                    await asyncio.sleep(pause)
                    pause = min(0.05, pause * 1.5)
                reply = json.loads(answer.read_text("utf-8"))
            finally:
                answer.unlink(missing_ok=True)
            if "error" in reply:
                raise RuntimeError(reply["error"])
            return reply["value"]

        called.__name__ = called.__qualname__ = name
        return called

    class Run:
        def __init__(self):
            self.value, self.count, self.counts = None, 0, {}

        def returns(self, value=None):
            self.value, self.count = value, self.count + 1

        def enters(self, loop):
            self.counts[loop] = self.count

        def returned_in(self, loop):
            return self.count > self.counts[loop]

        def ends(self):
            __tracebackhide__ = True
            value = packed(self.value, "The code's value")
            display({"@VALUE@": {"token": token, "value": value}, "text/plain": f"returned {value:.200}"}, raw=True)

    return [*json.loads(inputs), *map(function, names), Run()]
"""
#: The limit of one call's arguments, in characters of JSON: larger messages would not arrive.
ARGUMENTS_CHARS = 4 * 1024 * 1024
_EPILOGUE = f"{_RESERVED_NAME}.ends()\ndel {_RESERVED_NAME}\n"


def build_cell(code: str, *, inputs: Mapping[str, Any], functions: Iterable[str], token: str, folder: str) -> str:
    """Build the cell for code. The cell runs in the session's namespace, and displays function calls and the value.

    Args:
        code: see ``SandboxProvider.run``.
        inputs: variables of the code, as JSON values.
        functions: names of functions for the code to await.
        token: the token of this run, in all messages.
        folder: the run's directory as the kernel sees the path. Results of calls are written there while the directory exists.

    Raises:
        InvalidCode: the code is not valid Python for the top level.
        InvalidRequest: the name of an input or a function is not usable in code.
        TypeError, ValueError: an input is not a JSON value.
    """
    names = [*functions]
    for name in (*inputs, *names):
        _check_name(name)
    prelude = _PRELUDE.replace("@LIMIT@", str(ARGUMENTS_CHARS)).replace("@CALL@", CALL).replace("@VALUE@", VALUE)
    values = json.dumps([*inputs.values()])
    bound = ", ".join([*inputs, *names, _RESERVED_NAME])
    # A function of the same code with empty globals: the session may have a `map` or `display` of its own.
    call = f"{_RESERVED_NAME}.__class__({_RESERVED_NAME}.__code__, {{}})({token!r}, {folder!r}, {values!r}, {names!r})"
    text = code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings(action="ignore"):
            future, body = _replace_returns(text)
            source = f"{future}{prelude}[{bound}] = {call}\n{body}\n{_EPILOGUE}"
            _compile(ast.parse(source, "code"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise InvalidCode(f"The code cannot run: {exc}.") from exc
    return source


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name in (_RESERVED_NAME, "__debug__"):
        raise InvalidRequest(f"{name!r} must be an identifier and not a keyword, to name a function or an input.")


def _replace_returns(text: str) -> tuple[str, str]:
    """Return the ``from __future__`` imports of code, which must begin a cell, and the code with calls in the place of returns.

    Without such imports and with a return only at the end, the code stays as written.
    """
    trial = ast.parse(text, "code")
    _drop_returns(trial.body)
    _compile(trial)  # as a cell that may ``return`` at its top level
    body = ast.parse(text, "code").body
    futures = [node for node in body if isinstance(node, ast.ImportFrom) and (node.module, node.level) == ("__future__", 0)]
    match body[-1:]:
        case [ast.Return() | ast.Expr() as last] if not futures and not _has_return(body[:-1]):
            return "", _replace_end(text, last)
        case [] | [_] if not futures and not _has_return(body):
            return "", text
        case [ast.Expr(value=value)]:
            body[-1] = _call_run("returns", value)
    statements = _break_at_returns([node for node in body if node not in futures], itertools.count())
    loop = ast.While(ast.Constant(value=True), [*statements, ast.Break()], [])  # it runs once, and returns break it
    return "".join(f"{ast.unparse(node)}\n" for node in futures), ast.unparse(ast.fix_missing_locations(loop))


def _replace_end(text: str, last: ast.Return | ast.Expr) -> str:
    """Replace the last statement of code by a call with the statement's value."""
    # As bytes: `col_offset` counts UTF-8 bytes, not characters.
    lines = text.encode().split(b"\n")
    before = b"\n".join([*lines[: last.lineno - 1], lines[last.lineno - 1][: last.col_offset]]).decode()
    value = (ast.get_source_segment(text, last) or "").removeprefix("return" if isinstance(last, ast.Return) else "")
    return f"{before}{_RESERVED_NAME}.returns({f'({value})' if last.value else ''})"


def _compile(tree: ast.Module) -> None:
    compile(tree, "code", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _drop_returns(block: list[ast.stmt]) -> None:
    for index, node in enumerate(block):
        if isinstance(node, ast.TryStar) and any(_has_return(handler.body) for handler in node.handlers):
            raise SyntaxError("'return' cannot appear in an except* block", ("code", node.lineno, None, None))
        if isinstance(node, ast.Return):
            block[index] = ast.copy_location(ast.Expr(node.value) if node.value else ast.Pass(), node)
        for inner in _blocks(node):
            _drop_returns(inner)


def _break_at_returns(block: list[ast.stmt], numbers: Iterator[int]) -> list[ast.stmt]:
    """Replace the returns of a block by breaks. A conditional break after an inner loop with a return leaves the outer loop."""
    statements: list[ast.stmt] = []
    for node in block:
        if isinstance(node, ast.Return):
            statements += [_call_run("returns", *([node.value] if node.value else [])), ast.Break()]
            continue
        if not _has_return([node]):
            statements.append(node)
            continue
        for inner in _blocks(node):
            inner[:] = _break_at_returns(inner, numbers)
        if isinstance(node, _LOOPS):
            number = ast.Constant(next(numbers))
            statements += [_call_run("enters", number), node, ast.If(_call_run("returned_in", number).value, [ast.Break()], [])]
        else:
            statements.append(node)
    return statements


def _call_run(method: str, *args: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Attribute(ast.Name(_RESERVED_NAME), method), [*args], []))


def _has_return(block: list[ast.stmt]) -> bool:
    """Return whether a block contains a return of the same scope."""
    return any(isinstance(node, ast.Return) or any(map(_has_return, _blocks(node))) for node in block)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement within the same scope."""
    if isinstance(node, _SCOPES):
        return
    for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        bodies = (getattr(part, name, None) for name in ("body", "orelse", "finalbody"))
        yield from (block for block in bodies if isinstance(block, list))
