"""Names of other libraries: the errors and the guide say what to write instead."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kernelexec
from kernelexec import AsyncExecutor, AsyncSession, ExecutionResult, Executor, Session
from kernelexec.executor.blocking.parts import Files
from kernelexec.imports import (
    EXECUTE_KEYWORDS,
    EXECUTOR,
    FILES,
    PACKAGE,
    RESULT,
    SESSION,
    SESSION_KEYWORDS,
)
from kernelexec.session.features.session_files import AsyncFiles

_ROW = re.compile(r"^\| (`.*`) \| (.*) \|$", re.MULTILINE)
_USE = re.compile(r"`(session|executor|result|files|kernelexec)\.(\w+)")
CLASSES: dict[str, tuple[Any, ...]] = {
    "session": (Session, AsyncSession),
    "executor": (Executor, AsyncExecutor),
    "result": (ExecutionResult,),
    "files": (Files, AsyncFiles),
}
NAMES = {
    "session": SESSION,
    "executor": EXECUTOR,
    "result": RESULT,
    "files": FILES,
    "kernelexec": PACKAGE,
}
CASES = [(owner, name, instead) for owner, names in NAMES.items() for name, instead in names.items()]


def rows() -> list[tuple[str, str]]:
    text = Path(kernelexec.__file__).with_name("guide").joinpath("values.md").read_text()
    return _ROW.findall(text.partition("## Other names")[2].partition("\n## ")[0])


@pytest.mark.parametrize(("owner", "name", "instead"), CASES)
def test_the_error_of_such_a_name_says_what_to_write(owner: str, name: str, instead: str) -> None:
    targets = [cls.__new__(cls) for cls in CLASSES.get(owner, ())] or [kernelexec]
    for target in targets:
        with pytest.raises(AttributeError) as failure:
            getattr(target, name)
        assert str(failure.value).endswith(f"has no attribute {name!r}: write {instead}")
        assert not hasattr(target, name)


@pytest.mark.parametrize("owner", CLASSES)
def test_the_error_of_any_other_name_is_as_usual(owner: str) -> None:
    for cls in CLASSES[owner]:
        with pytest.raises(AttributeError, match=f"^'{cls.__name__}' object has no attribute 'colour'$"):
            getattr(cls.__new__(cls), "colour")  # noqa: B009 - it is not there


def test_the_error_of_a_property_is_its_own() -> None:
    class Derived(Executor):
        @property
        def broken(self) -> int:
            raise AttributeError("of the property")

        @property
        def incomplete(self) -> object:
            return self.colour  # type: ignore[attr-defined]

    derived = Derived.__new__(Derived)
    with pytest.raises(AttributeError, match=r"^of the property$"):
        _ = derived.broken
    with pytest.raises(AttributeError, match=r"^'Derived' object has no attribute 'colour'$"):
        _ = derived.incomplete


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (Session.execute, EXECUTE_KEYWORDS),
        (AsyncSession.execute, EXECUTE_KEYWORDS),
        (Session.execute_command, EXECUTE_KEYWORDS),
        (AsyncSession.execute_command, EXECUTE_KEYWORDS),
        (Executor.session, SESSION_KEYWORDS),
        (AsyncExecutor.session, SESSION_KEYWORDS),
    ],
)
def test_the_error_of_such_a_keyword_says_what_to_write(method: Any, names: Mapping[str, str]) -> None:
    target = SimpleNamespace(_portal=SimpleNamespace(call=lambda call: call()), _target=None)
    for name, instead in ((name, names[name]) for name in names.keys() - signature(method).parameters.keys()):
        with pytest.raises(TypeError) as failure:
            method(target, "1", **{name: 1})
        assert str(failure.value) == f"{method.__name__}() has no argument {name!r}: write {instead}"


def test_no_error_of_wrong_arguments_names_a_part_of_a_session() -> None:
    for name, method in vars(AsyncSession).items():
        if callable(method) and not name.startswith("_"):
            assert method.__qualname__ in (f"AsyncSession.{name}", f"Session.{name}")


@pytest.mark.parametrize(("name", "instead"), [case[1:] for case in CASES])
def test_suggested_names_exist(name: str, instead: str) -> None:
    parts = re.findall(r"\w+(?=[(.]|$)", re.sub(r"\(.*?\)", "()", instead))
    target = {"session": Session, "executor": Executor, "result": ExecutionResult, "files": Files, "kernelexec": kernelexec}[
        parts[0]
    ]
    assert hasattr(target, parts[1]) or parts[1] in {"name", "workspace", "notebook"}, (name, instead)


def test_the_guide_has_the_same_names() -> None:
    listed = {(owner, name): right for left, right in rows() for owner, name in _USE.findall(left)}
    for owner, name, instead in CASES:
        assert (owner, name) in listed or owner == "files" or name in {"run_cell", "run", "run_code"}, name
        assert instead in listed.get((owner, name), instead), name


def test_results_are_copied_and_pickled() -> None:
    result = ExecutionResult("e1", "s", "ok", outputs=())
    assert copy.copy(result) == copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result  # noqa: S301 - our own
