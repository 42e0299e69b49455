"""What a kernel leaves out to start sooner is nothing that users see: their configuration counts, in files and in code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelexec import Executor, Session

CONFIGURED = """
c.InteractiveShell.ast_node_interactivity = "all"
c.PlainTextFormatter.float_precision = "%.2f"
c.IPKernelApp.exec_lines = ["greeting = 'hello'"]
"""
COLLECTING = """
import gc, weakref
class Node: pass
node = Node()
node.own, gone = node, weakref.ref(node)
del node
gc.disable()
"""
FAILING = """
def fail(number):
    note = '{}'
    return 1 / number
"""
THEIRS = "from IPython.core.ultratb import AutoFormattedTB\nget_ipython().InteractiveTB.__class__ = AutoFormattedTB"
#: Fails in line 4; IPython marks line 5.
FAILING_IN_A_TRY = "def w():\n    return n_\ntry:\n    w()\nexcept ZeroDivisionError:\n    pass"


#: Cells that fail, the line that did, and the line that the one before it in the traceback is of, where there is one.
RAISED = {
    "in a try": ("def w():\n    return n_\ntry:\n    w()\nexcept ZeroDivisionError:\n    pass", 2, 4),
    "before a finally": ("x = 1\ny = 2\ntry:\n    z = n_\nfinally:\n    pass\n    y = 3", 4, None),
    "with a cause": ("try:\n    1 / 0\nexcept Exception as exc:\n    raise ValueError from exc", 4, 2),
    "in an except": ("try:\n    1 / 0\nexcept Exception:\n    x = 1\n    n_", 5, 2),
    "again": ("try:\n    1 / 0\nexcept Exception as exc:\n    x = 1\n    raise exc", 2, 5),
    "in a coroutine": (
        "async def f():\n    try:\n        await g()\n    finally:\n        pass\nasync def g():\n    n_\nawait f()",
        7,
        3,
    ),
    "of a library": ("import json\ntry:\n    json.loads('')\nfinally:\n    x = 1", 3, None),
    "in a magic": ("%%time\nx = 1\n\n1 / 0", 4, 1),
    "captured": ("%%capture\nx = 1\n1 / 0", 3, None),
    "in a magic's line": ("def f():\n    return 1\n%time f() / 0", 3, None),
    "in a script": ("x = 1\n%run failing.py", 2, None),
    "no script": ("x = 1\n%run nosuch.py", 2, None),
    "no magic": ("x = 1\n%nosuch", 2, None),
    "an exit": ("z = 1\nimport sys\nsys.exit(2)", 3, None),
    "an exit in a function": ("def leave():\n    raise SystemExit(3)\nleave()", 2, 3),
    "a captured exit": ("%%capture\nimport sys\nsys.exit(2)", 3, None),
    "an exit after a failure": ("try:\n    {}['a']\nexcept KeyError:\n    raise SystemExit(1)", 4, 2),
}


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "started"])
def test_configuration_files_count(tmp_path: Path, fork: bool) -> None:  # noqa: FBT001 - a parameter
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text(CONFIGURED)
    (profile / "startup").mkdir()
    (profile / "startup" / "first.py").write_text(f"begun = 6\n{COLLECTING}")
    environment = {"set": {"IPYTHONDIR": str(tmp_path / "ipython")}}
    config = {"environment": environment, "fork_server": fork}
    with Executor(isolation="local", workspace=tmp_path / "workspace", config=config) as executor:
        result = executor.session().execute("greeting\nbegun\n1 / 3\ngc.isenabled()\ngc.collect() > 0 and gone() is None")
    assert result.text.split() == ["'hello'", "6", "0.33", "False", "True"]


def test_configuration_in_code_counts(session: Session) -> None:
    shown = "%config PlainTextFormatter.float_precision = '%.1f'\n2 / 3"
    assert session.execute(shown).text == "0.7\n"


def test_the_collection_of_garbage_is_on_again(session: Session) -> None:
    assert session.execute("import gc\ngc.isenabled()").text == "True\n"


def test_a_traceback_shows_the_lines_of_each_cell(session: Session) -> None:
    for number in range(3):
        session.execute(FAILING.format(f"é {number}").replace("fail", f"fail{number}"))
    failed = session.execute("fail1(0)")
    assert failed.error is not None
    shown = "\n".join(failed.error.traceback)
    assert "é 1" in shown
    assert "return 1 / number" in shown
    assert "é 0" not in shown


def test_the_module_of_a_frame_of_a_cell_is_known_without_a_search(session: Session) -> None:
    code = """
import inspect, sys
frame, searched = inspect.currentframe(), []
inspect.ismodule = lambda thing: searched.append(thing) or isinstance(thing, type(sys))
(inspect.getmodule(frame) is sys.modules["__main__"], all(thing is frame for thing in searched))
"""
    assert session.execute(code).text == "(True, True)\n"


@pytest.mark.parametrize(("code", "line", "before"), RAISED.values(), ids=RAISED)
def test_a_traceback_marks_the_line_that_raised(session: Session, code: str, line: int, before: int | None) -> None:
    (session.workspace / "failing.py").write_text("1 / 0\n")
    result = session.execute(code)
    assert result.diagnosis is not None
    assert (result.diagnosis.line, result.diagnosis.line_text) == (line, code.splitlines()[line - 1].strip())
    told = [call.line for call in result.diagnosis.calls]
    assert told[-2:-1] == ([] if before is None else [before])
    if not code.startswith("%%") and "exit" not in code.lower():
        marked = [int(number) for number in re.findall(r"^Cell In\[1\], line (\d+)", result.text, re.MULTILINE)]
        assert marked == told
        assert all(f"> {number} {code.splitlines()[number - 1]}" in result.text for number in marked if "%" not in code)


def test_an_exit_is_shown_as_jupyter_shows_it(session: Session) -> None:
    shown = session.execute("raise SystemExit(2)").error
    assert shown is not None
    assert shown.traceback == ("An exception has occurred, use %tb to see the full traceback.\n", "SystemExit: 2\n")


def test_an_endless_recursion_tells_its_line(session: Session) -> None:
    result = session.execute("def f(n):\n    try:\n        return f(n + 1)\n    finally:\n        n = 0\nf(0)")
    assert result.diagnosis is not None
    assert (result.diagnosis.kind, result.diagnosis.line, len(result.diagnosis.calls)) == ("RecursionError", 3, 50)


def test_ipython_marks_another_line(session: Session) -> None:
    assert session.execute(THEIRS).status == "ok"
    error = session.execute(FAILING_IN_A_TRY).error
    session.restart()
    assert error is not None
    assert "line 5" in "\n".join(error.traceback)
