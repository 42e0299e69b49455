"""The guard of the unit tier: a test that starts a process or reaches an engine fails."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.no_processes import ProcessRefused, no_processes


def connect() -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("/var/run/docker.sock")


def run() -> None:
    subprocess.run(["true"], check=True)


def fork() -> None:
    os.fork()


@pytest.mark.parametrize("start", [run, fork, connect])
def test_a_start_is_refused_and_a_refusal_that_is_swallowed_fails_the_test(start: Callable[[], object]) -> None:
    guard = no_processes()
    guard.__enter__()
    with pytest.raises(ProcessRefused):
        start()
    with suppress(ProcessRefused):
        start()
    with pytest.raises(pytest.fail.Exception, match="starts no process"):
        guard.__exit__(None, None, None)


def test_a_test_without_processes_passes() -> None:
    with no_processes(), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
