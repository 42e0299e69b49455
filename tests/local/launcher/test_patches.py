"""Each patch of a library is still needed: what the library does by itself is what the patch changes."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ipykernel.compiler import XCachingCompiler
from IPython.core.ultratb import AutoFormattedTB

from kernelexec import Executor
from kernelexec.launcher.ipython.patches import Compiler
from kernelexec.launcher.ipython.tracebacks import format_group

LOADED = 7
KERNEL = """
import os, sys
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
app.initialize(["-f", sys.argv[1]])
os._exit(7 if "debugpy" in sys.modules else 0)
"""
THEIRS = "from IPython.core.ultratb import AutoFormattedTB\nget_ipython().InteractiveTB.__class__ = AutoFormattedTB"
#: Fails in line 4; IPython marks line 5.
FAILING = "def w():\n    return n_\ntry:\n    w()\nexcept ZeroDivisionError:\n    pass"


def test_ipykernel_loads_its_debugger(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", KERNEL, str(tmp_path / "connection.json")], capture_output=True, check=False)
    assert ran.returncode == LOADED, ran.stderr


def test_the_module_of_a_cell_is_searched_for() -> None:
    known: dict[str, str] = getattr(inspect, "modulesbyfile", {})
    assert XCachingCompiler().get_code_name("a = 1", "a = 1", 0) not in known
    ours: Any = Compiler
    name = ours().get_code_name("b = 1", "b = 1", 0)
    assert known.pop(name) == "__main__"


def test_ipython_marks_another_line(tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path) as executor:
        session = executor.session()
        assert session.execute(THEIRS).status == "ok"
        error = session.execute(FAILING).error
    assert error is not None
    assert "line 5" in "\n".join(error.traceback)


def test_ipython_shows_no_exception_of_a_group() -> None:
    group = ExceptionGroup("several", [KeyError("inner")])
    theirs: Any = AutoFormattedTB
    shown = theirs().structured_traceback(ExceptionGroup, group, None)
    assert "inner" not in "\n".join(shown)
    assert "inner" in "\n".join(format_group(group, str, lambda _: None))


def test_a_task_keeps_its_first_cell() -> None:
    cell: ContextVar[int] = ContextVar("cell", default=0)
    actual: list[int] = []

    async def work(queue: asyncio.Queue[int]) -> None:
        await queue.get()
        actual.append(cell.get())

    async def main() -> None:
        queue = asyncio.Queue[int]()
        task = copy_context().run(asyncio.create_task, work(queue))
        await asyncio.sleep(0)
        cell.set(1)
        queue.put_nowait(1)
        await task

    asyncio.run(main())
    assert actual == [0]


def test_python_finds_no_source_of_a_class_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = type("Cls", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    with pytest.raises(OSError, match="source code not available"):
        inspect.getsource(cls)


def test_children_share_the_pipe_of_a_descriptor() -> None:
    code = "import os, subprocess, sys\nshow = [sys.executable, '-c', 'import os; print(os.fstat(1).st_ino)']\n"
    code += "for _ in range(2): subprocess.run(show)\nprint(os.fstat(1).st_ino)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(set(ran.stdout.split())) == 1


def test_matplotlib_remembers_its_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - a large library, for this test only

    before = mpl.get_cachedir()
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    assert mpl.get_cachedir() == before != str(tmp_path)
