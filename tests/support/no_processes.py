"""A guard for tests that start no process and reach no container engine."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

#: The functions that start processes. No audit hook does this: with one, two threads that begin under coverage can fail.
_STARTS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "execv", "execve")),
    *((subprocess, "_fork_exec"), (pty, "fork")),
)
_ENGINES = ("docker.sock", "podman.sock")


class ProcessRefused(RuntimeError):
    """A process or a connection to an engine that a guard has refused."""


@contextmanager
def no_processes() -> Iterator[None]:
    """Refuse every process and every connection to an engine, and fail at the end where the code has swallowed the refusal."""
    refused: list[str] = []
    connect = socket.socket.connect

    def refuse(event: str) -> NoReturn:
        refused.append(event)
        msg = f"{event}: a test of the unit tier starts no process and reaches no engine"
        raise ProcessRefused(msg)

    def refusing(event: str) -> Callable[..., NoReturn]:
        return lambda *_args, **_options: refuse(event)

    def connect_elsewhere(connecting: socket.socket, address: Any) -> None:
        if str(address).endswith(_ENGINES):
            refuse("socket.connect")
        connect(connecting, address)

    with ExitStack() as patches:
        for module, name in _STARTS:
            patches.enter_context(patch.object(module, name, refusing(f"{module.__name__}.{name}")))
        patches.enter_context(patch.object(socket.socket, "connect", connect_elsewhere))
        yield
    if refused:
        pytest.fail(f"a test of the unit tier starts no process and reaches no engine: {', '.join(refused)}")
