"""What is no notebook to replay is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidCode, InvalidRequest
from kernelexec.executor.replay import CELLS_MAX
from tests.local.replay.test_notebooks import written


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Executor]:
    with Executor(isolation="local", workspace=tmp_path / "workspaces") as executor:
        yield executor


HOSTILE: dict[str, bytes] = {
    "no JSON": b"{",
    "no notebook": b'{"cells": 5}',
    "not UTF-8": b"\xff\xfe",
    "deep": b'{"cells": ' + b"[" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_malformed_notebook_is_refused_before_anything_starts(own: Executor, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_bytes(HOSTILE[kind])
    with pytest.raises(InvalidRequest, match=r"a\.ipynb"):
        own.session("again", notebook=path)
    assert own.sessions() == ()
    assert not (tmp_path / "workspaces" / "again").exists()


@pytest.mark.parametrize(
    ("source", "reason"), [("x = '\x00'", "NUL"), ("x = '\ud800'", "surrogate"), ("#" * 5_000_000, "limit")]
)
def test_a_cell_that_no_kernel_could_take_is_refused_before_anything_starts(
    own: Executor, tmp_path: Path, source: str, reason: str
) -> None:
    path = tmp_path / "a.ipynb"
    kept: dict[str, Any] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    actual = [{**kept, "source": text} for text in ("open('mark', 'w')", source)]
    notebook = {"cells": actual, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(InvalidCode, match=f"cell 2 of .*{reason}"):
        own.session("again", notebook=path)
    assert own.sessions() == ()


def test_a_notebook_of_too_many_cells_is_refused(own: Executor, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("# %%\nx = 1\n" * (CELLS_MAX + 1), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="10001 cells, the limit is 10000"):
        own.session("again", notebook=path)


BAD_PATHS: tuple[Any, ...] = (
    5,
    "",
    "missing.ipynb",
    "a\0b",
    "/",
    "/dev/zero",
    b"a",
    "x" * 5000,
    "a\ud800",
    "~nobody-there/a.ipynb",
)


@pytest.mark.parametrize("path", BAD_PATHS, ids=repr)
def test_invalid_notebook_paths_are_refused(own: Executor, path: Any) -> None:
    with pytest.raises(InvalidRequest, match="notebook"):
        own.session("again", notebook=path)
    assert own.sessions() == ()


@pytest.mark.parametrize("value", [True, 1, None, "yes"], ids=repr)
def test_repeat_unsafe_is_a_choice_that_goes_with_a_notebook(own: Executor, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="repeat_unsafe="):
        own.session("again", repeat_unsafe=value)


def test_a_session_that_is_open_takes_no_notebook(own: Executor, tmp_path: Path) -> None:
    path = written(tmp_path / "a.ipynb", "x = 1")
    own.session("again")
    with pytest.raises(InvalidRequest, match="close it first"):
        own.session("again", notebook=path)
