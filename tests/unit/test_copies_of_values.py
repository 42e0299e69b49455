"""Values that programs send to other processes: pickles and copies of each public one are equal to it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import kernelexec
from kernelexec import CellRefused, Config, ExecutionFailed, ExecutionResult, KernelexecError, SecurityError


def pickle_at(protocol: int, value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))  # noqa: S301 - of this test


COPIES: list[Callable[[Any], Any]] = [partial(pickle_at, 2), partial(pickle_at, 5), copy.copy, copy.deepcopy]
PUBLIC = {name: getattr(kernelexec, name) for name in kernelexec.__all__}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
#: What belongs to its process: open sessions and their parts, and types of functions and of arguments.
LIVE = {
    *("AsyncCheckpoint", "Checkpoint"),
    *("AsyncAttachedSession", "AsyncExecutor", "AsyncFiles", "AsyncSession", "AttachedSession", "Executor", "Files", "Session"),
    *("ExecutorOptions", "Hook", "ReadTracker"),
}
RESULTS = [value for name, value in CLASSES.items() if dataclasses.is_dataclass(value) and name not in LIVE]
MODELS = [value for value in CLASSES.values() if issubclass(value, BaseModel)]
ERRORS = [value for value in CLASSES.values() if issubclass(value, KernelexecError)]
SIMPLE: dict[Any, Any] = {
    str: "text",
    int: 3,
    float: 0.5,
    bool: True,
    bytes: b"\x00\xff",
    Path: Path("a/b"),
    datetime: datetime(2026, 1, 2, tzinfo=UTC),
    Any: {"a": [1, None]},
    object: "object",
    type(None): None,
}


def make_sample(kind: Any, depth: int = 0) -> Any:
    """Return a value of a type, with values in all of its fields."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = [field.name for field in dataclasses.fields(kind) if field.init]
        return kind(**{name: make_sample(hints[name], depth + 1) for name in fields})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind("no")
    return make_generic_sample(typing.get_origin(kind), typing.get_args(kind), depth)


def make_generic_sample(origin: Any, arguments: tuple[Any, ...], depth: int) -> Any:
    """Return a value of a type with arguments; optional values end at some depth, since cells have cells."""
    if origin is typing.Literal:
        return arguments[-1]
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return None if depth > 5 and type(None) in arguments else make_sample(arguments[0], depth)
    samples = [make_sample(argument, depth) for argument in arguments if argument is not ...]
    return {samples[0]: samples[1]} if issubclass(origin, Mapping) else origin(samples)


def test_the_lists_of_this_module_have_all_public_classes() -> None:
    listed = {value.__name__ for value in (*RESULTS, *MODELS, *ERRORS)}
    assert set(CLASSES) - listed == LIVE
    assert len(RESULTS) > 50


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_copies_of_results_events_and_decisions_are_equal(kind: Any) -> None:
    value = make_sample(kind)
    for make_copy in COPIES:
        if kind is not CellRefused:  # no exception is equal to another one
            assert make_copy(value) == value
        assert type(make_copy(value)) is kind
        assert repr(make_copy(value)) == repr(value)


def read_secret() -> str:
    return "secret"


CONFIGS: dict[str, Any] = {
    "default": {},
    "full": {
        "isolation": "local",
        "environment": {"set": {"A": "b"}},
        "profiles": {"own": {"memory_bytes": "1g", "cpus": 2, "timeout": 5}},
        "container": {"tmpfs": {"/scratch": "64m"}},
        "secrets": {"TOKEN": {"env": "TOKEN"}, "KEY": {"file": "/srv/key"}, "OWN": read_secret},
        "rules": {"blocked_commands": ["rm .*"]},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_of_a_configuration_are_equal(name: str) -> None:
    config = Config.model_validate(CONFIGS[name])
    for make_copy in COPIES:
        again = make_copy(config)
        assert again == config
        assert again.model_dump() == config.model_dump()
        with pytest.raises(TypeError):
            again.profiles["new"] = again.profiles["simple"]
        assert again.model_copy(update={"quiet": True}).quiet


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_copies_of_errors_have_their_text_and_result(kind: type[KernelexecError]) -> None:
    result = ExecutionResult("1", "a", "error")
    error: Any = kind("no", result) if issubclass(kind, ExecutionFailed | SecurityError) else kind("no")
    for make_copy in COPIES:
        again = make_copy(error)
        assert (type(again), str(again), again.may_have_run) == (kind, "no", error.may_have_run)
        assert getattr(again, "result", None) == getattr(error, "result", None)
