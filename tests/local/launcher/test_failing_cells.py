"""Cells that fail otherwise than by a plain exception: magics, debuggers, values and exceptions that cannot be shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelexec import Executor, Session
from kernelexec.results import ExecutionResult


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspaces")) as executor:
        yield executor.session()


def hints(result: ExecutionResult) -> str:
    return " ".join(result.diagnosis.hints) if result.diagnosis else ""


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        pytest.param("%pip nosuchcommand", 1, marks=pytest.mark.nightly),
        pytest.param("%pip install --no-index nosuch-thing", 1, marks=pytest.mark.nightly),
        ("import os\n%pip nosuchcommand\nprint('aft' 'er')", 1),
        ("if True:\n    %pip nosuchcommand", 1),
        ("get_ipython().run_line_magic('pip', 'nosuchcommand')", 1),
        ("%uv nosuchcommand", 1),
    ],
)
def test_a_magic_whose_program_fails_is_an_error_with_its_exit_code(session: Session, code: str, exit_code: int) -> None:
    result = session.execute(code, timeout=60)
    assert result.status == "error"
    assert result.exit_code in ((1, 2) if "uv" in code else (exit_code,))  # without and with uv
    assert result.error is not None
    assert result.error.ename == "CalledProcessError"
    assert "after" not in result.text
    assert result.state == "kept"


def test_a_magic_whose_program_succeeds_is_none(session: Session) -> None:
    result = session.execute("%pip --version\nprint('after')", timeout=60)
    assert (result.status, result.exit_code) == ("ok", 0)
    assert "after" in result.text
    assert session.execute("!false\n%pip --version").ok


@pytest.mark.parametrize("code", ["breakpoint()", "import pdb; pdb.set_trace()", "%debug", "%%debug\nx = 1", "%debug x = 1"])
def test_a_debugger_without_a_user_is_an_error_with_a_hint(session: Session, code: str) -> None:
    session.execute("1 / 0")
    result = session.execute(code, timeout=20)
    assert result.status == "error"
    assert "breakpoint()" in hints(result)
    assert len(result.text) < 4000


def test_the_debugger_after_exceptions_does_not_hide_them(session: Session) -> None:
    session.execute("%pdb on")
    result = session.execute("1 / 0", timeout=20)
    session.execute("%pdb off")
    assert result.error is not None
    assert (result.error.ename, len([output for output in result.outputs if output == result.error])) == (
        "ZeroDivisionError",
        1,
    )


DISPLAYS = {
    "__repr__": "def __repr__(self): raise ValueError('too many rows')",
    "_repr_html_": "def _repr_html_(self): raise ValueError('too many rows')",
    "_repr_png_": "def _repr_png_(self): raise ValueError('too many rows')",
    "_repr_mimebundle_": "def _repr_mimebundle_(self, *a, **k): raise ValueError('too many rows')",
    "_ipython_display_": "def _ipython_display_(self): raise ValueError('too many rows')",
}


@pytest.mark.parametrize("method", DISPLAYS.values(), ids=DISPLAYS)
def test_a_value_that_cannot_be_shown_is_an_error_of_its_cell_only(session: Session, method: str) -> None:
    code = f"class Chart:\n    {method}\n"
    result = session.execute(f"{code}Chart()")
    assert result.error is not None
    assert (result.status, result.exit_code, result.error.ename) == ("error", 1, "ValueError")
    assert (result.diagnosis and result.diagnosis.kind) == "ValueError"
    assert session.execute("6 * 7").ok
    assert session.execute(f"{code}display(Chart())").ok  # as in Jupyter


EXCEPTIONS = {
    "_render_traceback_ returns None": "def _render_traceback_(self): return None",
    "_render_traceback_ returns numbers": "def _render_traceback_(self): return [1, None]",
    "_render_traceback_ returns text": "def _render_traceback_(self): return 'one line'",
    "_render_traceback_ raises": "def _render_traceback_(self): raise KeyError('x')",
    "_render_traceback_ exits": "def _render_traceback_(self): raise SystemExit(3)",
    "_render_traceback_ is a number": "_render_traceback_ = 5",
    "__getattr__ answers everything": "def __getattr__(self, name): return lambda *a, **k: None",
    "__getattribute__ raises": "def __getattribute__(self, name): raise KeyError(name)",
    "__str__ raises": "def __str__(self): raise KeyError('x')",
    "__str__ exits": "def __str__(self): raise SystemExit(3)",
    "__str__ returns a number": "def __str__(self): return 5",
    "__str__ interrupts": "def __str__(self): raise KeyboardInterrupt",
    "__repr__ raises": "def __repr__(self): raise KeyError('x')",
    "__notes__ a number": "__notes__ = 5",
    "__notes__ of numbers": "__notes__ = [1, None]",
    "__notes__ that raise": "@property\n    def __notes__(self): raise KeyError('x')",
    "__cause__ itself": "def __init__(self, *a): self.__cause__ = self",
    "__cause__ a cycle": "def __init__(self, *a): e = ValueError(); e.__cause__ = self; self.__cause__ = e",
    "__context__ of thousands": (
        "def __init__(self, *a):\n        e = self\n        for _ in range(3000):\n"
        "            e.__context__ = ValueError(); e = e.__context__"
    ),
    "__class__ another": "__class__ = int",
    "__module__ a number": "__module__ = 5",
}


@pytest.mark.parametrize("body", EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_an_exception_is_reported_as_itself_whatever_its_methods_do(session: Session, body: str) -> None:
    result = session.execute(f"class Remote(Exception):\n    {body}\nraise Remote('host down')", timeout=60)
    assert (result.status, result.state) == ("error", "kept")
    assert result.error is not None
    assert result.error.ename == "Remote"
    assert (result.diagnosis and result.diagnosis.kind) == "Remote"
    assert len(result.text) < 64 * 1024
    assert session.execute("6 * 7").text == "42"


@pytest.mark.parametrize(
    "code",
    [
        "def f(): f()\nf()",
        "def f(n): return g(n)\ndef g(n): return f(n + 1)\nf(0)",
        "class A:\n    def __repr__(self): return repr(self)\nrepr(A())",
        "import json; x = []; x.append(x); json.dumps(x, check_circular=False)",
        "class A:\n    def __getattr__(self, name): return self.other\nA().x",
    ],
)
def test_endless_recursion_is_reported_in_few_words(session: Session, code: str) -> None:
    result = session.execute(code, timeout=60)
    assert result.error is not None
    assert result.error.ename == "RecursionError"
    assert len(result.text.encode()) < 4000


FILLED_DESCRIPTORS = """
import resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, limit[1]))
kept = []
try:
    while True: kept.append(open('/dev/null'))
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
"""
RESOURCES = {
    "asyncio.run": ("import asyncio\nasync def main(): return 5\nasyncio.run(main())", "await"),
    "run_until_complete": ("import asyncio\nasyncio.get_event_loop().run_until_complete(asyncio.sleep(0))", "await"),
    "Runner": ("import asyncio\nwith asyncio.Runner() as runner: runner.run(asyncio.sleep(0))", "await"),
    "anyio.run": ("import anyio\nanyio.run(anyio.sleep, 0)", "await"),
    "descriptors": (
        FILLED_DESCRIPTORS,
        "Close files",
    ),
    "disk": ("open('/dev/full', 'w', buffering=1).write('x\\n')", "Delete files"),
    "disk of a command": ("!echo x > /dev/full", "Delete files"),
    "read-only": ("raise OSError(30, 'Read-only file system', '/x')", "workspace"),
    "threads": ('raise RuntimeError("can\'t start new thread")', "fewer workers"),
    "processes": ("!echo 'sh: fork: Resource temporarily unavailable' >&2; exit 254", "fewer workers"),
}


@pytest.mark.parametrize(("code", "hint"), RESOURCES.values(), ids=RESOURCES)
def test_the_hint_is_about_what_is_missing(session: Session, code: str, hint: str) -> None:
    result = session.execute(code, timeout=60)
    session.execute("kept = None")
    assert result.status == "error"
    assert hint in hints(result)
