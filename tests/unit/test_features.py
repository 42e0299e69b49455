"""What users were promised has tests: each row names some, and each of them exists."""

from __future__ import annotations

import ast
import tomllib
from functools import cache

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
GROUPS: dict[str, dict[str, dict[str, object]]] = tomllib.loads((TESTS / "features.toml").read_text(encoding="utf-8"))
ROWS = {row: message for group in GROUPS.values() for row, message in group.items()}
#: The rows of each part; what is left out was only an idea, or is shown under another number.
NUMBERS = {"A": range(1, 12), "T": range(1, 25), "D": range(1, 11), "C": range(1, 22), "X": range(1, 12)}
NUMBERS_OF_G = [*range(1, 39), *range(45, 60)]


@cache
def found_in(module: str) -> dict[str, bool]:
    """The names of the tests in a module, each with whether it is a part of the gate."""
    path = TESTS / f"{module}.py"
    nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    marks = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node).startswith("pytestmark")]
    return {
        node.name: "pytest.mark.nightly" not in {*map(ast.unparse, node.decorator_list)} and "nightly" not in str(marks)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_no_row_is_missing_or_there_twice() -> None:
    wanted = {f"{part}{number}" for part, numbers in NUMBERS.items() for number in numbers} | {f"G{n}" for n in NUMBERS_OF_G}
    assert set(ROWS) == wanted
    assert sum(map(len, GROUPS.values())) == len(ROWS)


@pytest.mark.parametrize(("row", "message"), ROWS.items(), ids=ROWS)
def test_a_row_is_shown_by_tests_that_exist(row: str, message: dict[str, object]) -> None:
    assert set(message) <= {"what", "shown_by", "measured_by"}, row
    named = message["shown_by"]
    assert isinstance(named, list)
    in_gate = False
    for item in named:
        module, _, name = item.partition("::")
        actual = found_in(module)
        assert actual, f"{row}: no tests in {module}"
        assert not name or name in actual, f"{row}: no {name} in {module}"
        in_gate |= actual[name] if name else any(actual.values())
    assert in_gate, f"{row}: no test of it is a part of the gate"


def test_nine_of_ten_branches_are_asked_for() -> None:
    root = TESTS.parent
    coverage = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["coverage"]
    assert (coverage["run"]["branch"], coverage["report"]["fail_under"] >= 90) == (True, True)
    assert ".ci/tests " in (root / ".ci/nightly").read_text()
    assert "--nightly --cov " in (root / ".ci/nightly").read_text()
