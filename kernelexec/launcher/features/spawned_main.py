"""The main module of processes spawned by ``multiprocessing``: imports, functions, classes and values of the cells so far.

A spawned process gets functions by name from its own main module. Processes of a script run the script again. A kernel has no
script, so its processes run a file with the definitions of the cells.
"""

from __future__ import annotations

import ast
import io
import itertools
import multiprocessing.spawn
import os
import pickle
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

#: The limit of all pickled values together, in bytes.
_VALUES_BYTES = 64 * 1024 * 1024
#: Files of the newest states, for processes that still start.
_FILES_MAX = 6
#: Sets the main module first: values and functions name it.
_BEGIN = """import pickle as _pickle, sys as _sys
_sys.modules["__main__"] = _sys.modules[__name__]
"""
_GUARDED = """try:
{body}
except Exception: pass
"""
_LOAD = """with open({path!r}, "rb") as _file:
    for _name, _value in _pickle.load(_file).items():
        try: globals()[_name] = _pickle.loads(_value)
        except Exception: pass
"""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class SpawnedMain:
    """The writer of the file for spawned processes: at the start of a process, once for each state of the cells."""

    def __init__(self, user_module: ModuleType, sources: Callable[[], Iterable[str]]) -> None:
        self._variables = vars(user_module)
        self._sources = sources
        self._written: tuple[list[str], Path] | None = None
        self._files: deque[Path] = deque()
        self._numbers = itertools.count()
        self._pid = os.getpid()
        sys.modules["__mp_main__"] = user_module  # results name it
        spawn: Any = multiprocessing.spawn
        prepare = spawn.get_preparation_data

        # Called in the parent for each process that it spawns; without a main module there, the child would have none.
        def get_preparation_data(name: str) -> dict[str, Any]:
            data: dict[str, Any] = prepare(name)
            if not data.keys() & {"init_main_from_path", "init_main_from_name"}:
                with suppress(OSError):
                    data["init_main_from_path"] = str(self._write())
            return data

        spawn.get_preparation_data = get_preparation_data

    def _write(self) -> Path:
        """Return the file's path; write the file first if the cells have changed."""
        sources = list(self._sources())
        if self._written is None or self._written[0] != sources or os.getpid() != self._pid:
            directory = self._written[1].parent if self._written is not None else Path(tempfile.mkdtemp(prefix="main-"))
            number = f"{os.getpid()}-{next(self._numbers)}"
            values = directory / f"values-{number}"
            definitions = list(_find_definitions(sources, self._variables))
            values.write_bytes(pickle.dumps(_pickle_values(definitions, self._variables)))
            path = directory / f"cells-{number}.py"
            load = _LOAD.format(path=str(values))
            path.write_text(_BEGIN + "".join(_format(definitions, load)), encoding="utf-8", errors="surrogateescape")
            self._written = sources, path
            self._files += [values, path]
            while len(self._files) > _FILES_MAX:
                self._files.popleft().unlink(missing_ok=True)
        return self._written[1]


def _find_definitions(sources: Iterable[str], variables: dict[str, Any]) -> Iterator[ast.stmt]:
    """Yield the current definitions of the cells, and the imports used by them."""
    nodes = [node for source in sources for node in _parse(source)]
    definitions = [node for node in nodes if _defines(node, variables)]
    used = {name.id for node in definitions for name in ast.walk(node) if isinstance(name, ast.Name)}
    for node in nodes:
        if node in definitions or (isinstance(node, ast.Import | ast.ImportFrom) and _bound_names(node) & (used | {"*"})):
            yield node


def _parse(source: str) -> Iterator[ast.stmt]:
    """Yield the statements of a cell, also within blocks and ``%%time``."""
    pending: list[ast.AST] = []
    with suppress(SyntaxError, ValueError, RecursionError):
        pending += ast.parse(source).body[::-1]
    while pending:
        node = pending.pop()
        match node:
            case ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [ast.Constant("time"), _, ast.Constant(str(cell))])):
                yield from _parse(cell)
            case ast.If() | ast.Try() | ast.With() | ast.ExceptHandler():
                pending += list(ast.iter_child_nodes(node))[::-1]
            case ast.stmt():
                yield node


def _defines(node: ast.stmt, variables: dict[str, Any]) -> bool:
    """Return whether a statement defines a function or class still held by a variable."""
    if isinstance(node, _Definition):
        return node.name in variables
    if not isinstance(node, ast.Assign) or not isinstance(target := node.targets[0], ast.Name):
        return False
    value = variables.get(target.id)
    return isinstance(value, FunctionType) and value.__module__ == "__main__" and isinstance(node.value, ast.Lambda)


def _bound_names(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}


def _format(definitions: list[ast.stmt], load: str) -> Iterator[str]:
    """Yield the imports, the values, the definitions, and the values again, since some need the classes."""
    future = [node for node in definitions if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    texts = [_guard(node) for node in definitions if node not in future]
    imports = [isinstance(node, ast.Import | ast.ImportFrom) for node in definitions if node not in future]
    yield from itertools.compress(texts, imports)
    yield load
    yield from itertools.compress(texts, [not item for item in imports])
    yield load


def _guard(node: ast.stmt) -> str:
    """Return the text of a statement with all exceptions ignored."""
    return _GUARDED.format(body="\n".join(f" {line}" for line in ast.unparse(node).split("\n")))


def _pickle_values(definitions: list[ast.stmt], variables: dict[str, Any]) -> dict[str, bytes]:
    """Return pickles of the variables used by definitions, as far as possible within the limit."""
    own = {node.name for node in definitions if isinstance(node, _Definition)}
    names = {name.id for node in definitions for name in ast.walk(node) if isinstance(name, ast.Name)} - own
    pickles, room = {}, _VALUES_BYTES
    for name in sorted(names & variables.keys()):
        if isinstance(variables[name], ModuleType):
            continue
        file = _BoundedFile(room)
        with suppress(Exception):  # a user's object may do anything
            pickle.Pickler(file, pickle.HIGHEST_PROTOCOL).dump(variables[name])
            pickles[name] = file.getvalue()
            room -= len(pickles[name])
    return pickles


class _BoundedFile(io.BytesIO):
    """A file in memory with a limit; raises OverflowError beyond."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit = limit_bytes

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self._limit:
            raise OverflowError("too large")
        return super().write(content)
