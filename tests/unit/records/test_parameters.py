"""Parameters of a notebook: where they go and how they are written, as papermill does it."""

from __future__ import annotations

import copy
from typing import Any

import nbformat
import pytest
from papermill.cli import _resolve_type
from papermill.parameterize import parameterize_notebook

from kernelexec.errors import InvalidRequest
from kernelexec.records.notebook.notebook_formats import inject_parameters, read_value

VALUES: dict[str, Any] = {
    "i": 1,
    "negative": -2,
    "big": 10**30,
    "f": 0.5,
    "t": True,
    "n": None,
    "text": "a \"quoted\" 'text'\n\\ \u00e4 \t",
    "l": [1, "a", [None, 2.5]],
    "d": {"a": {"b": [True]}, "c": ""},
    "inf": float("inf"),
    "nan": float("nan"),
}


def code(source: str, *tags: str) -> dict[str, Any]:
    return dict(nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}))


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}, "papermill": {}}
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


NOTEBOOKS = {
    "tagged": notebook(code("first"), code("i = 0\nf: float = 1", "parameters"), code("last")),
    "injected before": notebook(code("i = 0", "parameters"), code("i = 5", "injected-parameters"), code("last")),
    "not tagged": notebook(code("first"), code("last")),
    "two tagged": notebook(code("i = 0", "x", "parameters"), code("between"), code("i = 1", "parameters")),
    "empty": notebook(),
}


@pytest.mark.parametrize("before", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_the_cell_is_that_of_papermill(before: dict[str, Any]) -> None:
    expected = parameterize_notebook(nbformat.from_dict(copy.deepcopy(before)), VALUES)
    actual = copy.deepcopy(before)
    inject_parameters(actual, VALUES)
    assert [cell["source"].strip() for cell in actual["cells"]] == [cell["source"].strip() for cell in expected.cells]
    assert [cell["metadata"]["tags"] for cell in actual["cells"]] == [cell["metadata"]["tags"] for cell in expected.cells]
    nbformat.validate(nbformat.from_dict(actual))
    names: dict[str, Any] = {}
    (injected,) = [cell["source"] for cell in actual["cells"] if "injected-parameters" in cell["metadata"].get("tags", [])]
    exec(injected, names)  # noqa: S102 - of this test
    assert all(repr(names[name]) == repr(value) for name, value in VALUES.items())


@pytest.mark.parametrize(
    "text",
    ["1", "-1", "1.5", "1e3", "True", "False", "None", "true", "text", "", " 1", "1_000", "nan", "-inf", "0x10", "[1]", "'a'"],
)
def test_a_text_has_the_value_that_papermill_gives_it(text: str) -> None:
    assert repr(read_value(text)) == repr(_resolve_type(text))


def test_names_that_the_notebook_does_not_have_are_returned() -> None:
    book = copy.deepcopy(NOTEBOOKS["tagged"])
    assert inject_parameters(book, {"i": 1, "f": 2, "j": 3}) == ("j",)
    assert inject_parameters(copy.deepcopy(NOTEBOOKS["not tagged"]), {"i": 1}) == ("i",)
    assert inject_parameters(notebook(code("%magic", "parameters")), {"i": 1}) == ("i",)


@pytest.mark.parametrize(
    "values", [{"a b": 1}, {"class": 1}, {"": 1}, {"x\n": 1}, {"x": {1, 2}}, {"x": object()}, {"x": b"x"}], ids=range(7)
)
def test_parameters_without_a_form_in_python_are_refused(values: dict[str, Any]) -> None:
    book = notebook(code("1"))
    with pytest.raises(InvalidRequest, match="parameter"):
        inject_parameters(book, values)
    assert len(book["cells"]) == 1


def test_a_value_without_an_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidRequest, match="nested more than"):
        inject_parameters(notebook(), {"x": endless})
