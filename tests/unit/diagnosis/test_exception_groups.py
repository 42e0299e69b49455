"""The diagnosis of an exception group, from the tree that Python prints: what failed in it, where first, what to try."""

from __future__ import annotations

import pytest

from kernelexec.results import Diagnosis, Error
from kernelexec.rules.diagnosis import diagnose

TREE = """  + Exception Group Traceback (most recent call last):
  |   File "Cell In[4]", line 9, in <module>
  |     await main()
  |   File "Cell In[3]", line 2, in main
  |     async with asyncio.TaskGroup() as tasks:
  |   File "/lib/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled (3 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/lib/other.py", line 77, in other
    |     theirs()
    | KeyError: 'a'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "Cell In[4]", line 5, in second
    |     inner(0)
    |   File "Cell In[4]", line 3, in inner
    |     return 1 / n
    |            ~~^~~
    | ZeroDivisionError: division by zero
    +---------------- 3 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "Cell In[4]", line 7, in third
      |     import numpyy
      | ModuleNotFoundError: No module named 'numpyy'
      +------------------------------------"""
MESSAGE = "unhandled (3 sub-exceptions): KeyError: 'a'; ZeroDivisionError: division by zero; ModuleNotFoundError: no"
HINTS = (
    "Look at the keys or columns that are there.",
    "Guard against a divisor of zero.",
    "numpyy is not installed in the kernel's environment: install it, or do without.",
)
LATER = """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "Cell In[4]", line 12, in <module>
    raise RuntimeError('later')
RuntimeError: later"""


def diagnosed(*lines: str, ename: str = "ExceptionGroup", evalue: str = "unhandled (3 sub-exceptions)") -> Diagnosis:
    actual = diagnose("error", 1, None, None, [Error(ename, evalue, lines)])
    assert actual is not None
    return actual


def test_the_place_is_that_of_the_first_exception_that_has_one_in_the_cell() -> None:
    actual = diagnosed(*TREE.split("\n"), f"ExceptionGroup: {MESSAGE}")
    assert actual == Diagnosis("ExceptionGroup", MESSAGE, 3, "return 1 / n", None, HINTS)


def test_where_none_has_one_it_is_that_of_the_group() -> None:
    tree = TREE.replace('|   File "Cell In[4]", line 3', '|   File "/x.py", line 3').replace(", line 5", ", line x")
    actual = diagnosed(*tree.replace(", line 7", ", line x").split("\n"), f"ExceptionGroup: {MESSAGE}")
    assert (actual.line, actual.line_text) == (9, "await main()")


def test_a_frame_without_its_source_has_a_number_only() -> None:
    tree = [line for line in TREE.split("\n") if "return" not in line and "~" not in line]
    assert (diagnosed(*tree).line, diagnosed(*tree).line_text) == (3, None)


def test_a_group_that_only_led_to_an_exception_is_not_what_failed() -> None:
    actual = diagnosed(*TREE.split("\n"), *LATER.split("\n"), ename="RuntimeError", evalue="later")
    assert actual == Diagnosis("RuntimeError", "later", 12, "raise RuntimeError('later')")


@pytest.mark.parametrize("last", ["  | cut", "ExceptionGroup: something else", "    +------------------------------------"])
def test_a_tree_without_its_last_line_leaves_what_the_group_says_itself(last: str) -> None:
    assert diagnosed(*TREE.split("\n")[:-1], last).message == "unhandled (3 sub-exceptions)"


def test_a_long_message_is_cut() -> None:
    assert len(diagnosed(*TREE.split("\n"), f"ExceptionGroup: {MESSAGE}{'x' * 10**5}").message) == 2000


def test_a_tree_of_spaces_and_bars_is_read_in_no_time() -> None:
    hostile = ["| " * 50_000, " " * 100_000, "+" + "-" * 100_000, 'File "Cell In[1]", line 1' * 1000]
    assert diagnosed(*hostile).line is None


def test_the_first_exceptions_of_a_large_group_are_explained() -> None:
    branches = [
        f"    +---------------- 1 ----------------\n    | ModuleNotFoundError: No module named 'm{n}'" for n in range(10_000)
    ]
    hints = diagnosed(*branches).hints
    assert (len(hints), hints[0][:3], hints[-1][:3]) == (50, "m0 ", "m49")


@pytest.mark.parametrize(("length", "hints"), [(100, ("Write in the session's workspace or in $TMPDIR.",)), (10**5, ())])
def test_exceptions_of_a_group_are_explained_by_their_first_characters(length: int, hints: tuple[str, ...]) -> None:
    assert diagnosed("  +-+---------------- 1 ----------------", f"    | E: {'x' * length}Read-only file system").hints == hints
