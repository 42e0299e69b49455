"""The blocking names are the async names: same arguments, same defaults."""

from __future__ import annotations

import asyncio
import inspect
from typing import get_type_hints
from unittest import mock

import pytest

from kernelexec import AsyncExecutor, AsyncFiles, AsyncSession, Closed, Executor, Files, Session

PAIRS = [
    *((Executor, AsyncExecutor, name) for name in ("__init__", "session", "sessions", "close_session")),
    *(
        (Session, AsyncSession, name)
        for name in ("execute", "execute_command", "executions", "wait_for", "read_output", "interrupt", "restart", "close")
    ),
    *(
        (Session, AsyncSession, name)
        for name in (
            "variables",
            "complete",
            "inspect",
            "is_complete",
            "snapshot",
            "restore",
            "mask",
            "environment",
            "install",
            "rebuild",
            "start_background",
            "background",
            "background_output",
            "background_commands",
            "kill_background",
        )
    ),
    *((Files, AsyncFiles, name) for name in ("list", "read", "read_bytes", "write", "delete", "delete_many")),
]


@pytest.mark.parametrize(("blocking", "truth", "name"), PAIRS)
def test_a_blocking_method_has_the_signature_of_its_async_twin(blocking: type, truth: type, name: str) -> None:
    ours, theirs = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(truth, name))
    if name == "session":
        assert list(ours.parameters.values()) == list(theirs.parameters.values())
    else:
        assert str(ours) == str(theirs)


def test_errors_about_arguments_name_the_blocking_method() -> None:
    session = Session(mock.Mock(call=lambda call: asyncio.run(call())), mock.Mock())
    message = r"^Session\.execute\(\) got an unexpected keyword argument 'tiemout'(\. Did you mean 'timeout'\?)?$"  # since 3.13
    with pytest.raises(TypeError, match=message):
        session.execute("1", tiemout=3)  # type: ignore[call-arg] # that is the mistake


def test_an_executor_that_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(Closed, match="with Executor"):
        Executor(isolation="local").session()


def test_the_annotations_of_an_executor_are_resolvable() -> None:
    assert get_type_hints(AsyncExecutor.session)["return"] is AsyncSession
    assert get_type_hints(AsyncExecutor.open_session)["return"] == AsyncSession | None
