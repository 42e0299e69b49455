"""A failure in plain terms: its kind, the line of the failed cell, and what to try; tracebacks as kernels write them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from kernelexec.results import Cause, CellLine, Diagnosis, DisplayData, Error, Interrupted, Output, Status, Stream
from kernelexec.rules.diagnosis import diagnose
from kernelexec.rules.diagnosis.diagnosis import EXCEPTIONS

RULE = "-" * 75
RUN_CODE = (
    "Traceback (most recent call last):\n"
    "  File ~/kx/lib/python3.11/site-packages/IPython/core/interactiveshell.py:3823 in run_code\n"
    "    exec(code_obj, self.user_global_ns, self.user_ns)\n"
)


def error(ename: str, evalue: str, *frames: str) -> Error:
    """An error whose traceback has IPython's head and foot."""
    head = f"{ename:<42}Traceback (most recent call last)"
    return Error(ename, evalue, (RULE, head, *frames, f"{ename}: {evalue}"))


NAME = error(
    "NameError", "name 'total' is not defined", "Cell In[1], line 2\n      1 x = 1\n----> 2 total + x\n      3 y = 2\n"
)
FUNCTION = error(
    "ZeroDivisionError",
    "division by zero",
    "Cell In[6], line 4\n      1 def half(n):\n      2     return n / 0\n      3 \n----> 4 value = half(3)\n",
    "Cell In[6], line 2, in half(n)\n      1 def half(n):\n----> 2     return n / 0\n",
)
OTHER_CELL = error(
    "ZeroDivisionError",
    "division by zero",
    "Cell In[2], line 1\n----> 1 half(3)\n",
    "Cell In[1], line 3, in half(n)\n      1 def half(n):\n      2     # halves\n----> 3     return n / 0\n",
)
CALLBACK = error(
    "ZeroDivisionError",
    "division by zero",
    "Cell In[2], line 3\n      1 import helper\n      2 def inverse(x): return 1 / x\n----> 3 helper.apply(inverse, 0)\n",
    "File /srv/helper.py:2, in apply(f, x)\n      1 def apply(f, x):\n----> 2     return f(x)\n",
    "Cell In[2], line 2, in inverse(x)\n----> 2 def inverse(x): return 1 / x\n",
)
LIBRARY = error(
    "JSONDecodeError",
    "Expecting value: line 1 column 1 (char 0)",
    "Cell In[5], line 2\n      1 import json\n----> 2 json.loads('')\n",
    "File /usr/lib/python3.11/json/__init__.py:346, in loads(s, cls, object_hook)\n"
    "    345         parse_constant is None and object_pairs_hook is None and not kw):\n"
    "--> 346     return _default_decoder.decode(s)\n    347 if cls is None:\n    348     cls = JSONDecoder\n",
    "File /usr/lib/python3.11/json/decoder.py:355, in JSONDecoder.raw_decode(self, s, idx)\n"
    "    354 except StopIteration as err:\n"
    '--> 355     raise JSONDecodeError("Expecting value", s, err.value) from None\n    356 return obj, end\n',
)
DURING = error(
    "IndexError",
    "list index out of range",
    "Cell In[13], line 2\n      1 try:\n----> 2     {}['a']\n      3 except KeyError:\n",
    "KeyError: 'a'",
    "\nDuring handling of the above exception, another exception occurred:\n",
    "IndexError                                Traceback (most recent call last)",
    "Cell In[13], line 4\n      1 try:\n      2     {}['a']\n      3 except KeyError:\n----> 4     [][1]\n",
)
CAUSED = error(
    "ValueError",
    "bad key",
    "Cell In[4], line 2\n      1 try:\n----> 2     {}['a']\n      3 except KeyError as exc:\n",
    "KeyError: 'a'",
    "\nThe above exception was the direct cause of the following exception:\n",
    "ValueError                                Traceback (most recent call last)",
    "Cell In[4], line 4\n      1 try:\n      3 except KeyError as exc:\n----> 4     raise ValueError('bad key') from exc\n",
)
COLOURED = error(
    "KeyError",
    "'a'",
    "\x1b[96mCell\x1b[39m\x1b[96m \x1b[39m\x1b[32mIn[7]\x1b[39m\x1b[32m, line 2\x1b[39m\n"
    "\x1b[92m      1\x1b[39m \x1b[38;5;255md\x1b[39m \x1b[38;5;204m=\x1b[39m \x1b[38;5;204m{\x1b[39m\x1b[38;5;204m}\x1b[39m\n"
    "\x1b[92m----> \x1b[39m\x1b[92m2\x1b[39m \x1b[38;5;255md\x1b[39m\x1b[38;5;204m[\x1b[39m\x1b[38;5;186m'a'\x1b[39m"
    "\x1b[38;5;204m]\x1b[39m\n",
)
COLOURED_SYNTAX = Error(
    "SyntaxError",
    "invalid syntax (3792271279.py, line 2)",
    ("  \x1b[96mCell\x1b[39m\x1b[96m \x1b[39m\x1b[32mIn[8]\x1b[39m\x1b[32m, line 2\x1b[39m\n\x1b[33m    d = = 2\x1b[39m\n",),
)
ARROWS = error(
    "ValueError",
    "\n----> 4 no\n----> 4 no",
    "Cell In[2], line 5\n      1 # ----> 4 x\n      2 z = '''\n      3 ----> 4 no\n      4 ----> 4 no'''\n"
    "----> 5 raise ValueError(z)\n",
)
NESTED_REPORT = error(
    "RuntimeError",
    "the notebook failed:\nCell In[9], line 77\n---> 77 theirs()",
    "Cell In[3], line 2\n      1 path = 'a.ipynb'\n----> 2 raise RuntimeError(report)\n",
)
SYNTAX = Error(
    "SyntaxError",
    "invalid syntax (4034705137.py, line 2)",
    ("  Cell In[2], line 2\n    b = = 2\n        ^\nSyntaxError: invalid syntax\n",),
)
EVAL = Error(
    "SyntaxError",
    "invalid syntax (<string>, line 1)",
    (
        RUN_CODE,
        "  Cell In[17], line 2\n    eval('1 +')\n",
        "  File <string>:1\n    1 +\n      ^\nSyntaxError: invalid syntax\n",
    ),
)
BROKEN_MODULE = Error(
    "SyntaxError",
    "invalid syntax (broken.py, line 8)",
    (
        RUN_CODE,
        "  Cell In[34], line 2\n    import broken\n",
        "  File /srv/x/broken.py:8\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n",
    ),
)
INDENT = Error(
    "IndentationError",
    "unexpected indent (2964260736.py, line 2)",
    ("  Cell In[4], line 2\n    y = 2\n    ^\nIndentationError: unexpected indent\n",),
)
TAB = Error(
    "TabError",
    "inconsistent use of tabs and spaces in indentation (821687771.py, line 3)",
    ("  Cell In[5], line 3\n    y = 2\n    ^\nTabError: inconsistent use of tabs and spaces in indentation\n",),
)
DEDENT = Error(
    "IndentationError",
    "unindent does not match any outer indentation level (<tokenize>, line 3)",
    ("  File <tokenize>:3\n    y = 2 % 3\n    ^\nIndentationError: unindent does not match any outer indentation level\n",),
)
DEDENT_312 = Error(
    "IndentationError",
    "unindent does not match any outer indentation level (<string>, line 4)",
    ("  File <string>:4\n    y = 2 % 3\n    ^\nIndentationError: unindent does not match any outer indentation level\n",),
)
EXIT = Error("SystemExit", "3", ("An exception has occurred, use %tb to see the full traceback.\n", "SystemExit: 3\n"))
GROUP = Error("ExceptionGroup", "g (2 sub-exceptions)", ())
STOPPED = error("KeyboardInterrupt", "", "Cell In[4], line 2\n      1 import time\n----> 2 time.sleep(30)\n")
BASH = error(
    "CalledProcessError",
    "Command 'b'exit 3\\n'' returned non-zero exit status 3.",
    "Cell In[25], line 1\n----> 1 get_ipython().run_cell_magic('bash', '', 'exit 3\\n')\n",
    "File /srv/shell.py:138, in _ScriptMagic.__call__(self, line, cell)\n--> 138     raise CalledProcessError(code, cell)\n",
)

PLACES: dict[str, tuple[Error, int | None, str | None]] = {
    "a line of the cell": (NAME, 2, "total + x"),
    "a function of the cell": (FUNCTION, 2, "return n / 0"),
    "a function of an earlier cell": (OTHER_CELL, 1, "half(3)"),
    "deep in a library": (LIBRARY, 2, "json.loads('')"),
    "a failure in handling another": (DURING, 4, "[][1]"),
    "a failure caused by another": (CAUSED, 4, "raise ValueError('bad key') from exc"),
    "colours": (COLOURED, 2, "d['a']"),
    "colours of syntax": (COLOURED_SYNTAX, 2, "d = = 2"),
    "lines that look like arrows": (ARROWS, 5, "raise ValueError(z)"),
    "a message that holds a traceback": (NESTED_REPORT, 2, "raise RuntimeError(report)"),
    "syntax": (SYNTAX, 2, "b = = 2"),
    "a function that a module calls": (CALLBACK, 2, "def inverse(x): return 1 / x"),
    "syntax of evaluated text": (EVAL, 2, "eval('1 +')"),
    "syntax of an imported module": (BROKEN_MODULE, 2, "import broken"),
    "indentation": (INDENT, 2, "y = 2"),
    "indentation among tokens": (DEDENT, 3, "y = 2 % 3"),
    "the same in Python 3.12": (DEDENT_312, 4, "y = 2 % 3"),
    "tabs": (TAB, 3, "y = 2"),
    "an exit": (EXIT, None, None),
    "a group": (GROUP, None, None),
    "an unknown magic": (Error("UsageError", "Line magic function `%nosuchmagic` not found."), None, None),
    "another language": (Error("Error", "object not found", ()), None, None),
}
HINTS: dict[str, tuple[Error, str]] = {
    "a name": (NAME, "Define the name in an earlier cell, or check its spelling."),
    "a zero": (FUNCTION, "Guard against a divisor of zero."),
    "syntax": (SYNTAX, "Fix the marked line: nothing of the cell ran."),
    "indentation": (INDENT, "Fix the indentation of the marked line: nothing of the cell ran."),
    "indentation among tokens": (DEDENT, "Fix the indentation of the marked line: nothing of the cell ran."),
    "the same in Python 3.12": (DEDENT_312, "Fix the indentation of the marked line: nothing of the cell ran."),
    "an index": (DURING, "Check the length first."),
    "a key": (COLOURED, "Look at the keys or columns that are there."),
    "a file": (
        error("FileNotFoundError", "[Errno 2] No such file or directory: 'a.csv'"),
        "List the directory: paths are relative to the session's workspace.",
    ),
    "a right": (
        error("PermissionError", "[Errno 13] Permission denied: '/a'"),
        "Write in the session's workspace or in $TMPDIR; the options `context_paths` and `mounts` give kernels more folders.",
    ),
    "a type": (error("TypeError", "unsupported operand"), "Check the types of the values that the marked line uses."),
    "an attribute": (error("AttributeError", "no attribute 'a'"), "Check the value's type, and `dir(value)`."),
    "a function without a name": (
        error("PicklingError", "Can't pickle <function <lambda> at 0x7f>: attribute lookup <lambda> on __main__ failed"),
        "Define it with `def` or `class` at the top level of a cell, or use threads.",
    ),
    "a class in a function": (
        error("AttributeError", "Can't pickle local object 'g.<locals>.L'"),
        "Define it with `def` or `class` at the top level of a cell, or use threads.",
    ),
    "a class in a function, as Python 3.14 says it": (
        error("PicklingError", "Can't pickle <class '__main__.g.<locals>.L'>: it's not found as __main__.g.<locals>.L"),
        "Define it with `def` or `class` at the top level of a cell, or use threads.",
    ),
    "a function that the worker lacks": (
        error("AttributeError", "Can't get attribute 'f' on <module '__main__' (built-in)>"),
        "Start processes after the definition, or put it into a file with `%%writefile work.py` and import that.",
    ),
    "a worker that died": (
        error("BrokenProcessPool", "A process in the process pool was terminated abruptly while the future was running."),
        "Look at the workers' errors in the output; put functions into a file with `%%writefile work.py` and import that.",
    ),
    "memory": (error("MemoryError", ""), "Work on smaller pieces, or delete objects that are no longer needed."),
    "input": (
        error("StdinNotImplementedError", "raw_input was called, but this frontend does not support input requests."),
        "input() cannot be answered here: set the value in code.",
    ),
    "a module": (
        error("ModuleNotFoundError", "No module named 'numpyy'"),
        "numpyy is not installed in the kernel's environment: install it, or do without.",
    ),
    "a submodule of a module": (
        error("ModuleNotFoundError", "No module named 'sklearnn'"),
        "sklearnn is not installed in the kernel's environment: install it, or do without.",
    ),
}


def diagnosed(
    *outputs: Output, exit_code: int | None = 1, interrupted: Interrupted | None = None, cause: Cause | None = None
) -> Diagnosis:
    actual = diagnose("error", exit_code, interrupted, cause, outputs)
    assert actual is not None
    return actual


@pytest.mark.parametrize("status", ["ok", "aborted", "running"])
def test_cells_without_a_failure_have_no_diagnosis(status: Status) -> None:
    assert diagnose(status, 0, None, None, [NAME]) is None


@pytest.mark.parametrize(("failure", "line", "text"), PLACES.values(), ids=PLACES)
def test_the_place_is_the_last_line_of_the_failed_cell(failure: Error, line: int | None, text: str | None) -> None:
    actual = diagnosed(failure)
    assert (actual.kind, actual.message) == (failure.ename, failure.evalue)
    assert (actual.line, actual.line_text) == (line, text)


@pytest.mark.parametrize(("failure", "hint"), HINTS.values(), ids=HINTS)
def test_a_hint_says_what_to_try(failure: Error, hint: str) -> None:
    assert diagnosed(failure).hints == (hint,)


@pytest.mark.parametrize("failure", [EXIT, GROUP, error("ImportError", "cannot import name 'x' from 'os'")])
def test_where_nothing_is_known_no_hint_is_given(failure: Error) -> None:
    assert diagnosed(failure).hints == ()


@pytest.mark.parametrize("failure", [EVAL, BROKEN_MODULE], ids=["evaluated text", "an imported module"])
def test_syntax_that_failed_while_the_cell_ran_is_not_reported_to_have_run_nothing(failure: Error) -> None:
    assert "nothing of the cell ran" not in " ".join(diagnosed(failure).hints)


@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_every_known_exception_has_a_cause_and_what_to_try(name: str) -> None:
    actual = diagnosed(error(name, "it"))
    assert (actual.kind, actual.message, bool(actual.cause)) == (name, "it", True)
    assert actual.hints or name == "ImportError"
    assert actual.retryable == (name in ("TimeoutError", "ConnectionError"))


@pytest.mark.parametrize(
    ("name", "like"),
    [("ConnectionResetError", "ConnectionError"), ("URLError", "ConnectionError"), ("ReadTimeout", "TimeoutError")],
)
def test_an_exception_of_a_library_is_explained_as_what_it_is(name: str, like: str) -> None:
    actual, known = diagnosed(error(name, "it")), EXCEPTIONS[like]
    assert (actual.kind, actual.cause, actual.hints, actual.retryable) == (name, known.cause, known.hints, True)


@pytest.mark.parametrize(
    ("evalue", "package"),
    [
        ("No module named 'seaborn'", "seaborn"),
        ("No module named 'sklearn'", "scikit-learn"),
        ("No module named 'cv2'", "opencv-python-headless"),
    ],
)
def test_a_missing_module_names_its_package(evalue: str, package: str) -> None:
    actual = diagnosed(error("ModuleNotFoundError", evalue))
    assert actual.package == package
    assert package in actual.hints[0]
    script = diagnosed(Stream("stderr", f"Traceback (most recent call last):\nModuleNotFoundError: {evalue}\n"))
    assert (script.kind, script.package) == ("command", package)


PARTS = {
    "of a package": (
        "No module named 'pandas.nopath'",
        "The module pandas is there, but has no part nopath.",
        "in another version of pandas",
    ),
    "of a package of Python's": ("No module named 'json.nopath'", "The module json is there, but has no part nopath.", "name"),
    "of a part": ("No module named 'a.b.c'", "The module a.b is there, but has no part c.", "in another version of a.b"),
    "of no package": (
        "No module named 'os.nopath'; 'os' is not a package",
        "The module os is there, but is no package, and has no part nopath.",
        "`dir(os)`",
    ),
    "of a part that is no package": (
        "No module named 'os.path.nopath'; 'os.path' is not a package",
        "The module os.path is there, but is no package, and has no part nopath.",
        "`dir(os.path)`",
    ),
}


@pytest.mark.parametrize(("evalue", "cause", "hint"), PARTS.values(), ids=PARTS)
def test_a_module_without_such_a_part_is_not_called_missing(evalue: str, cause: str, hint: str) -> None:
    reported = [
        diagnosed(error("ModuleNotFoundError", evalue)),
        diagnosed(Stream("stderr", f"ModuleNotFoundError: {evalue}\n")),
    ]
    for actual in reported:
        assert (actual.cause, actual.package) == (cause, None)
        assert hint in actual.hints[0]
        assert "install it" not in " ".join(actual.hints)
    if "json" in evalue:
        assert "another version" not in reported[0].hints[0]


@pytest.mark.parametrize("error", [None, Error("CalledProcessError", "Command 'pip install x' returned 1", ())])
def test_pip_without_a_network_names_the_installation_of_packages(error: Error | None) -> None:
    output = Stream("stderr", "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n")
    outputs: list[Output] = [output] if error is None else [output, error]
    actual = diagnose("error", 1, None, None, outputs, networked=False)
    assert actual is not None
    assert "install_packages" in actual.hints[0]
    networked = diagnose("error", 1, None, None, outputs, networked=True)
    assert networked is not None
    assert "install_packages" not in "".join(networked.hints)


OFFLINE = [
    error("gaierror", "[Errno -3] Temporary failure in name resolution"),
    error("URLError", "<urlopen error [Errno 101] Network is unreachable>"),
    error("OSError", "[Errno 101] Network is unreachable"),
    error("ConnectError", "[Errno -2] Name or service not known"),
    Stream("stderr", "curl: (6) Could not resolve host: example.org\n"),
    Stream("stderr", "npm error getaddrinfo EAI_AGAIN registry\n"),
]


@pytest.mark.parametrize("output", OFFLINE)
def test_a_missing_network_is_reported_only_without_network(output: Output) -> None:
    actual = diagnose("error", 1, None, None, [output], networked=False)
    assert actual is not None
    assert (actual.cause, actual.retryable) == ("The session has no network.", False)
    assert "network is off" in actual.hints[0]
    assert "network is off" not in " ".join(diagnosed(output).hints)


def test_the_lines_of_all_cells_that_it_came_by() -> None:
    inner = "return n / 0"
    assert diagnosed(OTHER_CELL).calls == (CellLine(2, 1, "half(3)"), CellLine(1, 3, inner, "half"))
    assert diagnosed(FUNCTION).calls == (CellLine(6, 4, "value = half(3)"), CellLine(6, 2, inner, "half"))
    actual = diagnose("error", 1, None, None, [OTHER_CELL], "\n\nhalf(3)")
    assert actual is not None
    assert (actual.line, actual.calls[0].line, actual.calls[1].line) == (3, 3, 3)
    assert diagnosed(SYNTAX).calls == ()


def test_a_line_is_one_of_the_cell_as_its_author_wrote_it() -> None:
    def place(source: str, *frames: str, ename: str = "ZeroDivisionError", evalue: str = "it") -> tuple[int | None, str | None]:
        actual = diagnose("error", 1, None, None, [error(ename, evalue, *frames)], source)
        assert actual is not None
        return actual.line, actual.line_text

    def frame(line: int, text: str, cell: int = 1) -> str:
        return f"Cell In[{cell}], line {line}\n----> {line} {text}\n"

    magic = frame(1, "get_ipython().run_line_magic('time', 'f()')")
    assert place("%time f()", magic) == (1, "%time f()")
    assert place("x = %time f()", frame(1, "x = get_ipython().run_line_magic('time', 'f()')")) == (1, "x = %time f()")
    assert place("\n\n  %time f()", magic) == (3, "%time f()")
    assert place("!a \\\n  b\n1/0", frame(2, "1/0")) == (3, "1/0")
    assert place("x = 1 + \\\n 1\n1/0", frame(3, "1/0")) == (3, "1/0")
    assert place(">>> 1/0", frame(1, "1/0")) == (1, "1/0")
    assert place("f()", frame(9, "get_ipython().system('a')")) == (9, "get_ipython().system('a')")
    assert place("get_ipython().system('a')", frame(1, "get_ipython().system('a')")) == (1, "get_ipython().system('a')")
    assert place("ls", frame(1, "get_ipython().run_command('ls', work_dir=None, stdin=None)")) == (None, None)
    assert place("f()", frame(1, "f()", 4), frame(3, "1/0", 4)) == (1, "f()")  # IPython counts what %%capture runs twice
    assert place("x\n%run a.py", "File /a.py:2\n----> 2 1/0\n") == (2, "%run a.py")
    assert place("%run a.py\n%run b.py", "File /a.py:2\n----> 2 1/0\n") == (None, None)
    unknown = "Line magic function `%no` not found."
    assert place("x\n%no a", ename="UsageError", evalue=unknown) == (2, "%no a")
    assert place("x\n%none a", ename="UsageError", evalue=unknown) == (None, None)
    assert place("%%no\nx", ename="UsageError", evalue="Cell magic `%%no` not found.") == (1, "%%no")
    assert place("%%time", ename="UsageError", evalue="Can't use statement directly after '%%time'!") == (None, None)


NO_SOURCE = "      1 'Could not get source, probably due dynamically evaluated source code.'"


def test_of_a_cell_magic_it_is_the_line_that_ran() -> None:
    def place(source: str, *frames: str, name: str = "time") -> tuple[int | None, str | None]:
        magic = f"Cell In[2], line 1\n----> 1 get_ipython().run_cell_magic('{name}', '', 'x\\n')\n"
        actual = diagnose("error", 1, None, None, [error("ZeroDivisionError", "it", magic * bool(name), *frames)], source)
        assert actual is not None
        return actual.line, actual.line_text

    def body(file: str, line: int, function: str = "") -> str:
        return f"File <{file}>:{line}{f', in {function}()' * bool(function)}\n{NO_SOURCE}\n"

    timed = "\n%%time\n\ndef g():\n    1/0\ng()\n%time h()"
    assert place(timed) == (2, "%%time")
    assert place(timed, body("timed exec", 3)) == (6, "g()")
    assert place(timed, body("timed exec", 3), body("timed exec", 2, "g")) == (5, "1/0")
    assert place(timed, body("timed exec", 3), body("timed exec", 1, "of_an_earlier_cell")) == (6, "g()")
    assert place(timed, body("timed exec", 4), body("timed eval", 1)) == (7, "%time h()")
    assert place(timed, body("timed exec", 4), body("timed eval", 1), body("timed exec", 2, "g")) == (5, "1/0")
    assert place("%%time\n1/0", body("timed eval", 1).replace("      1", "----> 1")) == (2, "1/0")
    assert place("%%timeit\ndef f():\n  1/0\nf()", body("magic-timeit", 3, "inner"), name="timeit") == (4, "f()")
    inner = body("magic-timeit", 2, "inner.<locals>.f")
    assert place("%%timeit\ndef f():\n  1/0\nf()", body("magic-timeit", 3, "inner"), inner, name="timeit") == (3, "1/0")
    assert place("%%prun\nx=1\n1/0", body("string", 2), name="prun") == (3, "1/0")
    assert place("exec('1/0')", "Cell In[2], line 1\n----> 1 exec('1/0')\n", body("string", 1), name="") == (1, "exec('1/0')")
    captured = "Cell In[3], line 2\n      1 x=1\n----> 2 1/0\n"
    assert place("%%capture\nx=1\n1/0", captured, name="") == (3, "1/0")
    assert place("%%capture\n%%time\nx=1\n1/0", body("timed exec", 2)) == (4, "1/0")


def test_of_a_cell_magic_a_group_has_its_line_too() -> None:
    tree = """  + Exception Group Traceback (most recent call last):
  |   File "Cell In[2]", line 1, in <module>
  |     get_ipython().run_cell_magic('time', '', 'x')
  |   File "<timed exec>", line 2, in <module>
  | ExceptionGroup: g (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: a
    +------------------------------------"""
    actual = diagnose("error", 1, None, None, [Error("ExceptionGroup", "g", tuple(tree.split("\n")))], "%%time\nx = 1\nf()")
    assert actual is not None
    assert (actual.line, actual.line_text) == (3, "f()")


def test_a_line_that_a_cell_magic_cannot_compile_is_one_of_the_cell() -> None:
    run = "  Cell In[2], line 1\n    get_ipython().run_cell_magic('time', '', 'x')\n"

    def actual(source: str, *entries: str) -> Diagnosis:
        reported = diagnose("error", 1, None, None, [Error("SyntaxError", "invalid syntax", (RUN_CODE, *entries))], source)
        assert reported is not None
        return reported

    broken = actual("%%time\nx=1\n\n1/", run, "  File <unknown>:3\n    1/\n      ^\nSyntaxError: invalid syntax\n")
    assert (broken.line, broken.line_text, broken.cause) == (4, "1/", "The cell is not Python.")
    evaluated = "  File <string>:1\n    1 +\n      ^\nSyntaxError: invalid syntax\n"
    called = actual("%%time\nx=1\neval(a)", run, "  File <timed exec>:2\n", evaluated)
    assert (called.line, called.line_text, called.cause) == (3, "eval(a)", "The code that was compiled there is not Python.")
    within = actual("%%time\nx=1\n%time 1 +", run, evaluated)
    assert (within.line, within.line_text) == (1, "%%time")
    captured = diagnose("error", 1, None, None, [SYNTAX], "%%capture\na = 1\nb = = 2")
    assert captured is not None
    assert (captured.line, captured.line_text, captured.cause) == (3, "b = = 2", "The cell is not Python.")


def test_of_an_endless_recursion_the_first_and_the_last_calls_are_reported() -> None:
    frames = [f"Cell In[3], line {number}, in f(n)\n----> {number} return f(n + 1)" for number in range(1, 1000)]
    actual = diagnosed(Error("RecursionError", "maximum recursion depth exceeded", ("Traceback", *frames)))
    assert [call.line for call in actual.calls] == [*range(1, 26), *range(975, 1000)]


def test_the_last_exception_among_the_outputs_counts() -> None:
    actual = diagnosed(FUNCTION, Stream("stdout", "between"), NAME, DisplayData({"text/plain": "p"}), Stream("stderr", "after"))
    assert (actual.kind, actual.line) == ("NameError", 2)


@pytest.mark.parametrize("name", ["E", "SyntaxError", "ExceptionGroup", "UsageError"])
def test_numbers_of_any_length_in_a_traceback_are_read(name: str) -> None:
    """Python reads no number of 5,000 digits."""
    long = "9" * 5000
    lines = (
        f"Cell In[{long}], line {long}, in f()\n---> {long} x\nFile <x>:{long}\nx",
        f'  File "Cell In[{long}]", line {long}\n    x',
    )
    for line in lines:
        error = Error(name, "x", (line, f"{name}: x"))
        assert diagnose("error", 1, None, None, [error], "%%time\nx") is not None


def test_a_long_message_is_cut_at_its_head() -> None:
    assert diagnosed(error("KeyError", "k" * 1999 + "lost")).message == "k" * 1999 + "l"


@pytest.mark.parametrize("outputs", [(), (Stream("stderr", "make: *** no rule"),)], ids=["silent", "stderr"])
@pytest.mark.parametrize("exit_code", [1, 7, 255])
def test_a_failed_command_is_reported_by_its_exit_code(outputs: tuple[Output, ...], exit_code: int) -> None:
    hints = ("Read stderr: it names the cause.",)
    assert diagnosed(*outputs, exit_code=exit_code) == Diagnosis(
        "command", f"The command ended with exit code {exit_code}.", hints=hints
    )


@pytest.mark.parametrize(
    ("exit_code", "answer", "cause"),
    [
        (127, "bash: line 1: foo: command not found\n", "There is no program foo."),
        (127, "sh: 1: foo: not found\n", "There is no program foo."),
        (127, "", "There is no program of that name."),
        (126, "bash: line 1: ./a: Permission denied\n", "The file is no program, or may not be executed."),
        (139, "", "It crashed, in compiled code."),
    ],
)
def test_exit_codes_of_shells_are_explained(exit_code: int, answer: str, cause: str) -> None:
    actual = diagnosed(Stream("stderr", answer), exit_code=exit_code)
    assert (actual.kind, actual.cause) == ("command", cause)


def test_without_uv_pip_is_named() -> None:
    actual = diagnosed(Stream("stderr", "bash: line 1: uv: command not found\n"), exit_code=127)
    assert (actual.cause, actual.hints) == (
        "There is no program uv.",
        ("Use pip: it installs into the session's environment too.",),
    )


def test_a_failed_script_is_reported_as_a_failed_command_is() -> None:
    assert diagnosed(BASH, exit_code=3) == diagnosed(exit_code=3)


@pytest.mark.parametrize(
    ("cause", "answer", "retryable"),
    [
        ("oom", "The kernel ran out of memory.", False),
        ("killed", "The kernel's process was killed from outside.", True),
        ("crashed", "The kernel's process crashed.", False),
        ("exited", "The cell ended the kernel's process.", False),
        ("request", "The cell was interrupted on request and had to be killed.", True),
        ("timeout", "The cell ran over its timeout and obeyed no interrupt.", False),
    ],
)
@pytest.mark.parametrize("outputs", [(), (STOPPED,)], ids=["silent", "with a traceback"])
def test_the_end_of_a_kernel_goes_over_an_exception(
    cause: Cause,
    answer: str,
    retryable: bool,  # noqa: FBT001
    outputs: tuple[Output, ...],
) -> None:
    actual = diagnosed(*outputs, exit_code=137, interrupted="timeout", cause=cause)
    assert (actual.kind, actual.message, actual.cause, actual.retryable) == (cause, answer, answer, retryable)
    assert (actual.line, actual.line_text) == ((2, "time.sleep(30)") if outputs else (None, None))


@pytest.mark.parametrize("cause", sorted(set(get_args(Cause)) - {"culled"}))
def test_every_end_of_a_kernel_that_fails_a_cell_is_explained(cause: Cause) -> None:
    assert diagnosed(cause=cause).kind == cause


def test_a_timeout_names_the_line_that_ran() -> None:
    answer = "The cell ran over its timeout."
    hints = ("Give it more time, or do less at once.",)
    expected = Diagnosis(
        "timeout", answer, 2, "time.sleep(30)", answer, hints, retryable=True, calls=(CellLine(4, 2, "time.sleep(30)"),)
    )
    assert diagnosed(STOPPED, exit_code=124, interrupted="timeout") == expected


def test_an_interrupt_on_request_names_the_line_that_ran() -> None:
    expected = Diagnosis("interrupted", "The cell was interrupted on request.", 2, "time.sleep(30)", retryable=True)
    expected = replace(expected, calls=(CellLine(4, 2, "time.sleep(30)"),))
    assert diagnosed(STOPPED, exit_code=130, interrupted="request") == expected


@pytest.mark.parametrize(("interrupted", "kind"), [("timeout", "timeout"), ("request", "interrupted")])
def test_an_interrupted_command_has_no_line(interrupted: Interrupted, kind: str) -> None:
    actual = diagnosed(Stream("stderr", "^C"), exit_code=124, interrupted=interrupted)
    assert (actual.kind, actual.line, actual.line_text) == (kind, None, None)


@pytest.mark.parametrize(
    ("source", "is_in_fence"),
    [
        ("Here:\n```python\n1\n```\nThere:\n```python\n2\n```", True),
        ("x = (\n  ~~~", True),
        ('x = """\n```\n"""\nprint(x', False),
        ("x = '''\n```\n'''\nprint(x", False),
        ("print(x", False),
    ],
)
def test_a_fence_is_named_where_the_code_is_no_python(source: str, *, is_in_fence: bool) -> None:
    diagnosis = diagnose("error", 1, None, None, [Error("SyntaxError", "invalid syntax", ())], source)
    assert diagnosis is not None
    assert (diagnosis.hints == ("The code is in a Markdown fence: send only what is inside.",)) == is_in_fence
