"""Changes to CPython, IPython and ipykernel for which they have no setting.

Each patch names the checked versions, the gain, and a test in ``tests/local/launcher/test_patches.py``, which fails once the
library does the same. A patch for speed must gain 5 ms a start or 0.2 ms a cell.

Removed on 2026-11-25 for a smaller gain, in processor time of a forked kernel:
quicker traits and configuration of traitlets, remembered signatures of ipykernel, transformed cells kept between ipykernel and
IPython, a display formatter for plain values, fillers between small objects.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from types import CodeType, ModuleType
from typing import Any

from ipykernel.compiler import XCachingCompiler, get_tmp_hash_seed, murmur2_x86
from ipykernel.ipkernel import IPythonKernel

from .. import owner
from ..output.captured_output import DRAIN_SECONDS, CapturedFd, PipeReader

_MAIN = "__main__"
#: Positions of a child's descriptors for stdout and stderr among the arguments; -1 stands for this process's own.
_STDOUT, _STDERR = 9, 11
_INHERITED = -1


def leave_out_debugger() -> None:
    """Keep ipykernel from loading debugpy. Call this before a kernel exists.

    - Checked for: ipykernel 7.4.0.
    - Gain: 35 ms a start in processor time, 150 ms without a fork server, and 10 MiB. Only Jupyter's own clients debug.
    - Obsolete when: ``test_ipykernel_loads_its_debugger``.
    """
    absent: Any = ModuleType("ipykernel.debugger")
    absent.Debugger, absent._is_debugpy_available = object, False  # noqa: SLF001 - both names are imported by ipykernel 7
    sys.modules.setdefault(absent.__name__, absent)


class Compiler(XCachingCompiler):
    """ipykernel's compiler, with the module of each cell registered in ``inspect``.

    A traceback asks ``inspect`` twice for the module of each frame. For an unknown file ``inspect`` looks at all modules.

    - Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
    - Gain: 1.3 ms a cell that fails; a millisecond for each frame once pandas is imported.
    - Obsolete when: ``test_the_module_of_a_cell_is_searched_for``.
    """

    def get_code_name(self, raw_code: str, code: str, number: int) -> Any:
        """Return the file name of a cell."""
        try:
            name = super().get_code_name(raw_code, code, number)
        except OSError:  # no directory for temporary files is writable now: the name of a file that does not exist will do
            name = f"{os.environ.get('TMPDIR', '/tmp')}/ipykernel_{os.getpid()}/{murmur2_x86(raw_code, get_tmp_hash_seed())}.py"  # noqa: S108
        modules: dict[str, str] = getattr(inspect, "modulesbyfile", {})
        modules[name] = _MAIN
        return name


def find_class_sources(compiler: Any) -> None:
    """Let ``inspect`` find classes without a file in the cells of a compiler, the newest first.

    - Checked for: CPython 3.11 to 3.14, IPython 9.18.
    - Gain: ``inspect.getsource``, ``getsourcefile`` and ``??`` find classes and dataclasses of cells, as they find functions.
    - Obsolete when: ``test_python_finds_no_source_of_a_class_of_a_cell``.
    """
    get_file = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002 - its name in inspect
        """Work out which source or compiled file an object was defined in."""
        try:
            return get_file(object)
        except (OSError, TypeError):
            name = _find_cell(object, compiler) if isinstance(object, type) and object.__module__ == _MAIN else None
            if name is None:
                raise
            return name

    inspect.getfile = getfile


def cell_sources(compiler: Any) -> Iterator[tuple[str, str]]:
    """Yield the file name and source of each cell, the newest first."""
    numbers: dict[str, int] = compiler._filename_map  # noqa: SLF001 - IPython has no other
    for name in sorted(numbers, key=lambda name: numbers[name], reverse=True):
        if lines := linecache.cache.get(name):
            yield name, "".join(lines[2]) if len(lines) > 1 else ""


def _find_cell(cls: type, compiler: Any) -> str | None:
    """Return the file name of the cell with a class: from the class's methods, or else by name, fields and line."""
    for member in vars(cls).values():
        code = getattr(inspect.unwrap(_function_of(member)), "__code__", None)
        if isinstance(code, CodeType) and code.co_filename in linecache.cache and _is_part(code, cls):
            return code.co_filename
    candidates = [
        (name, node)
        for name, source in cell_sources(compiler)
        if f"class {cls.__name__}" in source
        for node in _find_definitions(source, cls.__qualname__)
    ]
    fields = list(vars(cls).get("__annotations__", ()) or ())
    line = vars(cls).get("__firstlineno__")
    ranked = sorted(candidates, key=lambda item: (_fields(item[1]) != fields, line is not None and _line(item[1]) != line))
    return ranked[0][0] if ranked else None


def _function_of(member: Any) -> Any:
    for name in ("__func__", "fget", "func"):  # class and static methods, properties, cached properties
        member = getattr(member, name, None) or member
    return member


def _is_part(code: CodeType, cls: type) -> bool:
    return code.co_qualname.startswith(f"{cls.__qualname__}.")


def _find_definitions(source: str, qualname: str) -> Iterator[ast.ClassDef]:
    """Yield the definitions of classes with a qualified name."""
    pending: list[tuple[ast.AST, str]] = []
    with suppress(SyntaxError, ValueError, RecursionError):
        pending = [(ast.parse(source), "")]
    while pending:
        parent, prefix = pending.pop()
        for node in ast.iter_child_nodes(parent):
            inner = prefix
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{prefix}{node.name}."
                if isinstance(node, ast.ClassDef) and inner == f"{qualname}.":
                    yield node
                if not isinstance(node, ast.ClassDef):
                    inner += "<locals>."
            pending.append((node, inner))


def _fields(node: ast.ClassDef) -> list[str]:
    """Return the annotated names of a class."""
    return [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def give_own_pipes(find_captured: Callable[[], Sequence[CapturedFd]], find_pipes: Callable[[], PipeReader]) -> None:
    """Put a new pipe behind each captured descriptor inherited by a child of ``subprocess`` or ``multiprocessing``.

    - Checked for: CPython 3.11 to 3.14.
    - Gain: a pipe does not tell its writers apart, and a full buffer of a child ends within a line.
    - Obsolete when: ``test_children_share_the_pipe_of_a_descriptor``.
    """
    try:
        import _posixsubprocess  # noqa: PLC0415 - as in subprocess, not on every system
    except ImportError:
        return
    functions: Any = _posixsubprocess
    fork_exec = functions.fork_exec
    lock = threading.Lock()

    def fork_exec_with_pipes(*arguments: Any) -> Any:
        targets = {fd if fd != _INHERITED else number for number, fd in ((1, arguments[_STDOUT]), (2, arguments[_STDERR]))}
        inherited, pipes = [item for item in find_captured() if item.fd in targets], find_pipes()
        if not inherited or owner.is_forked_child:  # the reader of the pipes is a thread of the parent
            return fork_exec(*arguments)
        if pipes.has_output:  # earlier output comes before that of the child
            pipes.drain(DRAIN_SECONDS)
        # Two starts at once would lend the same descriptor twice, and each child could get the other's pipe.
        with lock:
            lent = [item for item in inherited if item.lend()]
            try:
                return fork_exec(*arguments)
            finally:
                for item in lent:
                    item.take_back()

    functions.fork_exec = fork_exec_with_pipes
    module: Any = subprocess
    module._fork_exec = fork_exec_with_pipes  # noqa: SLF001 - it has imported the name
    module._USE_POSIX_SPAWN = False  # noqa: SLF001 - documented in subprocess; since 3.13 most programs would start so


def follow_wakers(kernel: IPythonKernel, loop: asyncio.AbstractEventLoop) -> None:
    """Move a task to the newest cell when this cell's code schedules the task. Timers and files move no task.

    ipykernel finds the cell of a task's output in the task's context, a copy of the context of the cell that created the task.

    - Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
    - Gain: a cell that puts work into the queue of an earlier cell's task has the task's output.
    - Obsolete when: ``test_a_task_keeps_its_first_cell``.
    """
    stream: Any = sys.stdout
    variable: ContextVar[Any] = stream._parent_header  # noqa: SLF001 - ipykernel has no other
    variables = _cell_variables(kernel)
    call_soon = loop.call_soon

    def call_soon_in_cell(callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        if context is not None:
            # The second condition: code of an older cell, such as another of its tasks, must not take the task back.
            cell = variable.get(None)
            if cell is not context.get(variable) and cell is stream._parent_header_global:  # noqa: SLF001 - as above
                with suppress(RuntimeError):  # the context is in use
                    context.run(_set, [(item, item.get()) for item in variables])
        return call_soon(callback, *args, context=context)

    loop.call_soon = call_soon_in_cell  # type: ignore[assignment, method-assign]


def _set(values: list[tuple[ContextVar[Any], Any]]) -> None:
    for variable, value in values:
        variable.set(value)


def _cell_variables(kernel: IPythonKernel) -> list[ContextVar[Any]]:
    shell: Any = kernel.shell
    holders = (kernel, shell, shell.displayhook, shell.display_pub, sys.stdout, sys.stderr)
    return [value for holder in holders for value in vars(holder).values() if isinstance(value, ContextVar)]
