"""A cell that raises an exception group: one error output that shows the group and all that failed in it."""

from __future__ import annotations

import pytest

from kernelexec import Diagnosis, Error, ExecutionResult, Session

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_a_group_is_one_error_with_all_that_failed",)

TASKS = """import asyncio
async def divide(n):
    await asyncio.sleep(0)
    return 1 / n
async with asyncio.TaskGroup() as tasks:
    tasks.create_task(divide(0))
    tasks.create_task(divide(1))"""
NESTED = """def failed(kind, said):
    try:
        raise kind(said)
    except Exception as exc:
        return exc
raise ExceptionGroup('outer', [failed(ValueError, 'a\\nb'), ExceptionGroup('inner', [failed(KeyError, 'c')]), OSError()])"""
CAUSED = """try:
    raise ExceptionGroup('g', [ValueError('a')])
except ExceptionGroup as exc:
    raise RuntimeError('later') from exc"""
UNCAUSED = CAUSED.replace("from exc", "from None")
UNHANDLED = """try:
    raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])
except* ValueError:
    pass"""
MANY = "raise ExceptionGroup('g', [ValueError(str(n)) for n in range(1000)])"
DEEP = "exc = ValueError('x')\nfor _ in range(500):\n    exc = ExceptionGroup('g', [exc])\nraise exc"
NO_WORDS = """class Mute(Exception):
    def __str__(self):
        raise RuntimeError
raise ExceptionGroup('g', [Mute()])"""
STRANGE = """class Strange(ExceptionGroup):
    @property
    def exceptions(self):
        raise RuntimeError('no')
raise Strange('g', [ValueError()])"""
GROUPS: dict[str, tuple[str, str, str, int]] = {
    "raised": (
        "x = 1\nraise ExceptionGroup('g', [ValueError('a')])",
        "ExceptionGroup",
        "g (1 sub-exception): ValueError: a",
        2,
    ),
    "of tasks": (
        TASKS,
        "ExceptionGroup",
        "unhandled errors in a TaskGroup (1 sub-exception): ZeroDivisionError: division by zero",
        4,
    ),
    "nested": (NESTED, "ExceptionGroup", "outer (3 sub-exceptions): ValueError: a; KeyError: 'c'; OSError", 3),
    "a cause": (CAUSED, "RuntimeError", "later", 4),
    "no cause": (UNCAUSED, "RuntimeError", "later", 4),
    "what was not handled": (UNHANDLED, "ExceptionGroup", "g (1 sub-exception): KeyError: 'b'", 2),
    "any exception": (
        "raise BaseExceptionGroup('g', [SystemExit(3), ValueError('a')])",
        "BaseExceptionGroup",
        "g (2 sub-exceptions): SystemExit: 3; ValueError: a",
        1,
    ),
    "many": (
        MANY,
        "ExceptionGroup",
        "g (1000 sub-exceptions): " + "".join(f"ValueError: {n}; " for n in range(10)) + "and more",
        1,
    ),
    "deep": (DEEP, "ExceptionGroup", "g (1 sub-exception): ValueError: x", 4),
    "without words": (NO_WORDS, "ExceptionGroup", "g (1 sub-exception): Mute: <Mute whose __str__ raised RuntimeError>", 4),
}


def failed(session: Session, code: str) -> tuple[ExecutionResult, Error, Diagnosis]:
    result = session.execute(code)
    assert (result.status, result.exit_code, result.state) == ("error", 1, "kept")
    assert [type(output) for output in result.outputs] == [Error]
    assert result.error is not None
    assert result.diagnosis is not None
    return result, result.error, result.diagnosis


@pytest.mark.parametrize(("code", "ename", "message", "line"), GROUPS.values(), ids=GROUPS)
@pytest.mark.shared_session
def test_a_group_is_one_error_with_all_that_failed(session: Session, code: str, ename: str, message: str, line: int) -> None:
    result, error, diagnosis = failed(session, code)
    assert error.ename == ename
    assert message.startswith(error.evalue)
    assert error.traceback[-1] == f"{ename}: {message}"
    assert (diagnosis.kind, diagnosis.message, diagnosis.line) == (ename, message, line)
    assert diagnosis.line_text == code.splitlines()[line - 1].strip()
    assert f'File "Cell In[{result.execution_count}]", line {line}' in result.text
    assert "interactiveshell.py" not in result.text
    assert len(result.text) < 10_000


def test_the_traceback_is_the_tree_that_python_prints(session: Session) -> None:
    _, error, _ = failed(session, "raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])")
    assert error.traceback == (
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "Cell In[1]", line 1, in <module>',
        "  |     raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])",
        "  | ExceptionGroup: g (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: a",
        "    +---------------- 2 ----------------",
        "    | KeyError: 'b'",
        "    +------------------------------------",
        "ExceptionGroup: g (2 sub-exceptions): ValueError: a; KeyError: 'b'",
    )


@pytest.mark.shared_session
def test_a_group_without_details_is_an_error_all_the_same(session: Session) -> None:
    assert session.execute(STRANGE).status == "error"
    assert session.execute("1 + 1").text == "2"


def test_a_group_of_an_earlier_cell_is_reported_by_the_cell_that_ran_it(session: Session) -> None:
    session.execute("def run():\n    raise ExceptionGroup('g', [ValueError('a')])")
    result, _, diagnosis = failed(session, "x = 1\nrun()")
    assert (diagnosis.line, diagnosis.line_text) == (2, "run()")
    assert 'File "Cell In[1]", line 2, in run' in result.text


@pytest.mark.parametrize("code", ["%run script.py", "%%capture\nraise ExceptionGroup('g', [ValueError('a')])"])
@pytest.mark.shared_session
def test_a_group_of_a_script_or_a_captured_cell_is_an_error(session: Session, code: str) -> None:
    (session.workspace / "script.py").write_text("raise ExceptionGroup('g', [ValueError('a')])\n")
    result = session.execute(code)
    assert result.error is not None
    assert result.error.traceback[-1] == "ExceptionGroup: g (1 sub-exception): ValueError: a"


def test_an_ordinary_exception_after_a_group_is_shown_as_ever(session: Session) -> None:
    session.execute("raise ExceptionGroup('g', [ValueError('a')])")
    _, error, diagnosis = failed(session, "1/0")
    assert "Cell In[2], line 1" in "\n".join(error.traceback)
    assert (diagnosis.kind, diagnosis.line_text) == ("ZeroDivisionError", "1/0")
