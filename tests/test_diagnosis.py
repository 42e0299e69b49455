"""A failure in plain terms: its kind, the line of the failed cell, and what to try; tracebacks as kernels write them."""

from __future__ import annotations

from typing import get_args

import pytest

from kernelexec.diagnosis import diagnose
from kernelexec.results import Cause, Diagnosis, DisplayData, Error, Interrupted, Output, Status, Stream

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
    "Cell In[13], line 4\n      2     {}['a']\n      3 except KeyError:\n----> 4     [][1]\n",
    "KeyError: 'a'",
    "\nDuring handling of the above exception, another exception occurred:\n",
    "IndexError                                Traceback (most recent call last)",
    "Cell In[13], line 4\n      1 try:\n      2     {}['a']\n      3 except KeyError:\n----> 4     [][1]\n",
)
CAUSED = error(
    "ValueError",
    "bad key",
    "Cell In[4], line 4\n      3 except KeyError as exc:\n----> 4     raise ValueError('bad key') from exc\n",
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
    "syntax": (SYNTAX, "Mend the marked line: nothing of the cell ran."),
    "indentation": (INDENT, "Mend the indentation of the marked line: nothing of the cell ran."),
    "indentation among tokens": (DEDENT, "Mend the indentation of the marked line: nothing of the cell ran."),
    "the same in Python 3.12": (DEDENT_312, "Mend the indentation of the marked line: nothing of the cell ran."),
    "an index": (DURING, "Check the length first."),
    "a key": (COLOURED, "Look at the keys or columns that are there."),
    "a file": (
        error("FileNotFoundError", "[Errno 2] No such file or directory: 'a.csv'"),
        "List the directory: paths are relative to the session's workspace.",
    ),
    "a right": (
        error("PermissionError", "[Errno 13] Permission denied: '/a'"),
        "Write in the session's workspace or in $TMPDIR; on this machine the option `confinement` allows more.",
    ),
    "a type": (error("TypeError", "unsupported operand"), "Check the types of the values that the marked line uses."),
    "an attribute": (error("AttributeError", "no attribute 'a'"), "Check the value's type, and `dir(value)`."),
    "memory": (error("MemoryError", ""), "Work on smaller pieces, or delete what is no longer needed."),
    "input": (
        error("StdinNotImplementedError", "raw_input was called, but this frontend does not support input requests."),
        "Nobody can answer input(): set the value in code.",
    ),
    "a module": (
        error("ModuleNotFoundError", "No module named 'numpyy'"),
        "numpyy is not installed in the kernel's environment: install it, or do without.",
    ),
    "a submodule": (
        error("ModuleNotFoundError", "No module named 'sklearnn.linear'"),
        "sklearnn is not installed in the kernel's environment: install it, or do without.",
    ),
}


def diagnosed(
    *outputs: Output, exit_code: int | None = 1, interrupted: Interrupted | None = None, cause: Cause | None = None
) -> Diagnosis:
    found = diagnose("error", exit_code, interrupted, cause, outputs)
    assert found is not None
    return found


@pytest.mark.parametrize("status", ["ok", "aborted", "running"])
def test_what_did_not_fail_has_no_diagnosis(status: Status) -> None:
    assert diagnose(status, 0, None, None, [NAME]) is None


@pytest.mark.parametrize(("failure", "line", "text"), PLACES.values(), ids=PLACES)
def test_the_place_is_the_last_line_of_the_failed_cell(failure: Error, line: int | None, text: str | None) -> None:
    found = diagnosed(failure)
    assert (found.kind, found.message) == (failure.ename, failure.evalue)
    assert (found.line, found.line_text) == (line, text)


@pytest.mark.parametrize(("failure", "hint"), HINTS.values(), ids=HINTS)
def test_a_hint_says_what_to_try(failure: Error, hint: str) -> None:
    assert diagnosed(failure).hints == (hint,)


@pytest.mark.parametrize("failure", [CAUSED, EXIT, GROUP, error("ImportError", "cannot import name 'x' from 'os'")])
def test_where_nothing_is_known_no_hint_is_given(failure: Error) -> None:
    assert diagnosed(failure).hints == ()


@pytest.mark.parametrize("failure", [EVAL, BROKEN_MODULE], ids=["evaluated text", "an imported module"])
def test_syntax_that_failed_while_the_cell_ran_is_not_said_to_have_run_nothing(failure: Error) -> None:
    assert "nothing of the cell ran" not in " ".join(diagnosed(failure).hints)


def test_an_exception_is_neither_retryable_nor_given_a_cause() -> None:
    assert (diagnosed(NAME).cause, diagnosed(NAME).retryable) == (None, False)


def test_the_last_exception_among_the_outputs_counts() -> None:
    found = diagnosed(FUNCTION, Stream("stdout", "between"), NAME, DisplayData({"text/plain": "p"}), Stream("stderr", "after"))
    assert (found.kind, found.line) == ("NameError", 2)


def test_a_long_message_is_cut_at_its_head() -> None:
    assert diagnosed(error("KeyError", "k" * 1999 + "lost")).message == "k" * 1999 + "l"


@pytest.mark.parametrize("outputs", [(), (Stream("stderr", "make: *** no rule"),)], ids=["silent", "stderr"])
@pytest.mark.parametrize("exit_code", [1, 127, 139])
def test_a_failed_command_is_told_by_its_exit_code(outputs: tuple[Output, ...], exit_code: int) -> None:
    hints = ("Read stderr: the command says there what it missed.",)
    assert diagnosed(*outputs, exit_code=exit_code) == Diagnosis(
        "command", f"The command ended with exit code {exit_code}.", hints=hints
    )


def test_a_failed_script_is_told_as_a_failed_command_is() -> None:
    assert diagnosed(BASH, exit_code=3) == diagnosed(exit_code=3)


@pytest.mark.parametrize(
    ("cause", "said", "retryable"),
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
    said: str,
    retryable: bool,  # noqa: FBT001
    outputs: tuple[Output, ...],
) -> None:
    found = diagnosed(*outputs, exit_code=137, interrupted="timeout", cause=cause)
    assert (found.kind, found.message, found.cause, found.retryable) == (cause, said, said, retryable)
    assert (found.line, found.line_text) == ((2, "time.sleep(30)") if outputs else (None, None))


@pytest.mark.parametrize("cause", sorted(set(get_args(Cause)) - {"culled"}))
def test_every_end_of_a_kernel_that_fails_a_cell_is_explained(cause: Cause) -> None:
    assert diagnosed(cause=cause).kind == cause


def test_a_timeout_names_the_line_that_ran() -> None:
    said = "The cell ran over its timeout."
    hints = ("Give it more time, or do less at once.",)
    expected = Diagnosis("timeout", said, 2, "time.sleep(30)", said, hints, retryable=True)
    assert diagnosed(STOPPED, exit_code=124, interrupted="timeout") == expected


def test_an_interrupt_on_request_names_the_line_that_ran() -> None:
    expected = Diagnosis("interrupted", "The cell was interrupted on request.", 2, "time.sleep(30)", retryable=True)
    assert diagnosed(STOPPED, exit_code=130, interrupted="request") == expected


@pytest.mark.parametrize(("interrupted", "kind"), [("timeout", "timeout"), ("request", "interrupted")])
def test_an_interrupted_command_has_no_line(interrupted: Interrupted, kind: str) -> None:
    found = diagnosed(Stream("stderr", "^C"), exit_code=124, interrupted=interrupted)
    assert (found.kind, found.line, found.line_text) == (kind, None, None)
