"""A guard for tests that start no process and reach no container engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: Audit events of CPython that come before a process starts.
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "pty.spawn"}
#: One list of refused events for each guard that is active, the innermost one last.
_guards: list[list[str]] = []


class ProcessRefused(RuntimeError):
    """A process or a connection to an engine that a guard has refused."""


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if not _guards:
        return
    if event in _STARTS or (event == "socket.connect" and str(args[1]).endswith(("docker.sock", "podman.sock"))):
        _guards[-1].append(event)
        msg = f"{event}: a test of the unit tier starts no process and reaches no engine"
        raise ProcessRefused(msg)


sys.addaudithook(_refuse)


@contextmanager
def no_processes() -> Iterator[None]:
    """Refuse every process and every connection to an engine, and fail at the end where the code has swallowed the refusal."""
    refused: list[str] = []
    _guards.append(refused)
    try:
        yield
    finally:
        _guards.remove(refused)
    if refused:
        pytest.fail(f"a test of the unit tier starts no process and reaches no engine: {', '.join(refused)}")
