"""Cells of code mode: the code at the top level, with a prelude that defines functions and an epilogue that sends its value.

Unlike in other cells, the code may ``return``. A final return becomes a call. From the first other return on, the code is put
into a loop that returns break. It is not put into a function, which would have its own variables and would not allow
statements of the top level.
"""

from __future__ import annotations

import ast
import itertools
import json
import keyword
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelexec.errors import InvalidCode, InvalidRequest

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

    place = pathlib.Path(folder)

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
            why = str(exc)
        raise TypeError(f"{what}: {why}")

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
            given = packed([args, kwargs], f"The arguments of {name}")
            if len(given) > @LIMIT@:
                raise ValueError(f"{name}: its arguments are {len(given)} characters of JSON; must be at most @LIMIT@.")
            answer, pause = place / f"{uuid.uuid4().hex}.json", 0.002
            if place.is_dir():
                asked = {"token": token, "id": answer.stem, "name": name, "given": given}
                display({"@CALL@": asked, "text/plain": f"called {name}: {given:.200}"}, raw=True)
            try:
                while not answer.exists():
                    if not place.is_dir():
                        raise RuntimeError(f"{name}: its run is over, or its result could not be written.")
                    await asyncio.sleep(pause)
                    pause = min(0.05, pause * 1.5)
                told = json.loads(answer.read_text("utf-8"))
            finally:
                answer.unlink(missing_ok=True)
            if "error" in told:
                raise RuntimeError(told["error"])
            return told["value"]

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
    """Build the cell that runs code in the session's namespace, and that displays its function calls and its value.

    Args:
        code: see ``SandboxProvider.run``.
        inputs: variables that are set first, as JSON values.
        functions: names of functions that the code can await.
        token: the token of this run, which is in all of its messages.
        folder: the run's directory as the kernel sees it. Results of calls are written there as long as it exists.

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
    call = f"{_RESERVED_NAME}.__class__({_RESERVED_NAME}.__code__, {{}})({token!r}, {folder!r}, {values!r}, {names!r})"
    text = code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings(action="ignore"):
            future, body = _replace_returns(text)
            source = f"{future}{prelude}[{bound}] = {call}\n{body}\n{_EPILOGUE}"
            _compile(ast.parse(source, "code"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        message = f"The code cannot run: {exc}."
        raise InvalidCode(message) from exc
    return source


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name in (_RESERVED_NAME, "__debug__"):
        message = f"{name!r} must be an identifier and not a keyword, to name a function or an input."
        raise InvalidRequest(message)


def _replace_returns(text: str) -> tuple[str, str]:
    """Return the ``from __future__`` imports of code, which must begin a cell, and the code with its returns replaced by calls.

    The text before the first nested return does not change.
    """
    _check(text)
    tree = ast.parse(text, "code")
    raw, edits = text.encode(), dict[tuple[int, int], str]()
    starts = [0, *itertools.accumulate(len(line) + 1 for line in raw.split(b"\n"))]
    futures = [node for node in tree.body if _is_future(node)]
    for node in futures:
        edits[_span(node, starts)] = "pass"
    first = next((index for index, node in enumerate(tree.body) if _has_return([node])), len(tree.body))
    last, end, tail = tree.body[first : first + 1] or tree.body[-1:], len(raw), ""
    match last:
        case [ast.Return(value=value) | ast.Expr(value=value) as node]:
            span = _span(node, starts)
            expression = raw[slice(*span)].decode().removeprefix("return" if isinstance(node, ast.Return) else "")
            edits[span] = f"{_RESERVED_NAME}.returns(({expression}))" if value else f"{_RESERVED_NAME}.returns()"
            end = span[1] if isinstance(node, ast.Return) else end
        case [node] if first < len(tree.body):
            end, tail = _span(node, starts)[0], ast.unparse(_wrap_in_loop(tree.body[first:]))
    for (begin, stop), replacement in sorted(edits.items(), reverse=True):
        raw, end = raw[:begin] + replacement.encode() + raw[stop:], end + len(replacement.encode()) - (stop - begin)
    return "".join(f"{ast.unparse(node)}\n" for node in futures), raw[:end].decode() + tail


def _check(text: str) -> None:
    """Check that code compiles as a cell that may ``return`` at its top level."""
    tree = ast.parse(text, "code")
    _drop_returns(tree.body)
    _compile(tree)


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


def _wrap_in_loop(body: list[ast.stmt]) -> ast.While:
    """Put statements into a loop that runs once, and that their returns break."""
    if isinstance(last := body[-1], ast.Expr):
        body[-1] = _call_run("returns", last.value)
    block = [*_break_at_returns(body, itertools.count()), ast.Break()]
    return ast.fix_missing_locations(ast.While(ast.Constant(value=True), block, []))


def _break_at_returns(block: list[ast.stmt], numbers: Iterator[int]) -> list[ast.stmt]:
    """Replace the returns of a block by breaks. An inner loop is followed by a break if a return ended it."""
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
    """Return whether a block contains a return of its scope."""
    return any(isinstance(node, ast.Return) or any(map(_has_return, _blocks(node))) for node in block)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks within a statement that run in its own scope."""
    if isinstance(node, _SCOPES):
        return
    for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        bodies = (getattr(part, name, None) for name in ("body", "orelse", "finalbody"))
        yield from (block for block in bodies if isinstance(block, list))


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level


def _span(node: ast.stmt, starts: list[int]) -> tuple[int, int]:
    """Return the offsets of a statement in bytes, from the offsets of its lines."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
