"""The blocking names are the async names: same arguments, same defaults."""

from __future__ import annotations

import asyncio
import inspect
from typing import get_type_hints
from unittest import mock

import pytest

from kernelexec import AsyncExecutor, AsyncFiles, AsyncSession, Closed, Executor, Files, Session
from kernelexec.session.features.background_commands import BackgroundCommands
from kernelexec.session.features.inspection import Inspection
from kernelexec.session.features.limits import SessionLimits
from kernelexec.session.features.packages.installer import PackageInstaller
from kernelexec.session.features.saved_state.branches import SessionBranches
from kernelexec.session.features.saved_state.checkpoints import SessionCheckpoints
from kernelexec.session.features.saved_state.snapshots import VariableSnapshots
from kernelexec.session.features.trials import CodeTests
from kernelexec.session.features.variable_values import VariableValues

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


PARTS = [
    *(BackgroundCommands, CodeTests, Inspection, PackageInstaller, SessionBranches, SessionCheckpoints, SessionLimits),
    *(VariableSnapshots, VariableValues),
]


#: Methods of parts that are others than those of a session with their names.
OTHERS = {(SessionBranches, "open"), (SessionCheckpoints, "restore")}


@pytest.mark.parametrize("part", PARTS)
def test_a_method_of_a_session_has_the_signature_and_the_docstring_of_its_parts_method(part: type) -> None:
    shared = vars(part).keys() & vars(AsyncSession).keys()
    methods = {
        name for name in shared if inspect.isfunction(vars(part)[name]) and name[0] != "_" and (part, name) not in OTHERS
    }
    assert methods
    for name in methods:
        ours, theirs = vars(AsyncSession)[name], vars(part)[name]
        assert (ours.__doc__, str(inspect.signature(ours))) == (theirs.__doc__, str(inspect.signature(theirs)))


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
