"""The tree of errors is what its docstring draws."""

from __future__ import annotations

import inspect
import re
from typing import cast

import pytest

from kernelexec import errors
from kernelexec.errors import InvalidRequest, KernelexecError, did_you_mean
from kernelexec.results import ExecutionFailed, ExecutionResult, SecurityError

CLASSES: dict[str, type[KernelexecError]] = {
    name: cast("type[KernelexecError]", actual)
    for name, actual in (*vars(errors).items(), ("ExecutionFailed", ExecutionFailed), ("SecurityError", SecurityError))
    if inspect.isclass(actual) and issubclass(actual, Exception)
}


def drawn() -> dict[str, str]:
    """Every name in the docstring's tree with the name above it."""
    above: list[str] = []
    parents: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if actual := re.match(r"^(?P<bars>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \(|  |$)", line):
            depth = len(actual["bars"]) // 4
            del above[depth:]
            parents[actual["name"]] = above[-1] if above else ""
            above.append(actual["name"])
    return parents


def test_the_docstring_draws_every_error_under_its_parent() -> None:
    truth = {
        name: next((base.__name__ for base in actual.__bases__ if base.__name__ in CLASSES), "")
        for name, actual in CLASSES.items()
    }
    assert drawn() == truth


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_has_the_one_root(name: str) -> None:
    assert issubclass(CLASSES[name], KernelexecError)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_only_a_failed_execution_and_one_whose_owner_ended_may_have_run(name: str) -> None:
    assert CLASSES[name].may_have_run is (name in ("ExecutionFailed", "OwnerEnded"))


def test_a_request_that_makes_no_sense_is_a_value_error() -> None:
    assert issubclass(InvalidRequest, ValueError)


def test_a_failed_execution_carries_its_result() -> None:
    result = ExecutionResult("e", "s", "error")
    failure = ExecutionFailed("said", result)
    assert failure.result is result
    assert str(failure) == "said"


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("isolatoin", ["isolation", "workspace"], " (did you mean 'isolation'?)"),
        ("zzz", ["isolation"], ""),
        ("anything", [], ""),
        ("", ["isolation"], ""),
    ],
)
def test_nearest_names_the_closest_or_nothing(name: str, known: list[str], message: str) -> None:
    assert did_you_mean(name, known) == message
