"""A kernel's process ends with its owner, at once or after its patience, unless a new owner comes meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelexec.provisioning.launch import LAUNCHER
from tests.support.pace import BOUND, slow

#: Long enough that no test is over before it, and short.
PATIENCE = slow(1.5)


#: It has started another one, whose parent is gone; both have its stdout.
PROGRAM = "import os, time; os.system('sleep 600 &'); print('runs', flush=True); time.sleep(600)"


@contextmanager
def guarded(directory: Path, patience: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A guard with a program of its own, and the descriptor by which this process owns it."""
    os.mkfifo(directory / "owner", 0o600)
    fd = os.open(directory / "owner", os.O_RDWR | os.O_NONBLOCK)
    order = json.dumps({"owner": str(directory / "owner"), "grace_seconds": patience})
    program = [sys.executable, "-c", PROGRAM]
    command = [sys.executable, "-I", "-S", str(LAUNCHER), "--guard", *program]
    environ = os.environ | {"KERNELEXEC_LAUNCH": order}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True) as guard:
        try:
            assert guard.stdout is not None
            assert guard.stdout.readline() == "runs\n"
            yield guard, fd
        finally:
            guard.kill()


def ended_after(guard: subprocess.Popen[str], begun: float) -> float:
    """How long after a moment the guard, and all that it had started, was gone."""
    assert guard.stdout is not None
    assert guard.stdout.read() == ""  # its program held the pipe too
    guard.wait(BOUND)
    return time.monotonic() - begun


@pytest.mark.parametrize("patience", [0.0, PATIENCE])
def test_a_process_without_a_new_owner_ends_after_its_patience_with_all_that_it_started(
    short_path: Path, patience: float
) -> None:
    with guarded(short_path, patience) as (guard, fd):
        begun = time.monotonic()
        os.close(fd)
        assert ended_after(guard, begun) >= patience


def test_a_process_that_is_taken_over_goes_on_and_its_patience_begins_again(short_path: Path) -> None:
    with guarded(short_path, PATIENCE) as (guard, first):
        os.close(first)
        second = os.open(short_path / "owner", os.O_WRONLY | os.O_NONBLOCK)
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(PATIENCE + 1)
        begun = time.monotonic()
        os.close(second)
        assert ended_after(guard, begun) >= PATIENCE


def test_a_process_without_an_owner_says_so(short_path: Path) -> None:
    with guarded(short_path, 0.0) as (guard, fd):
        os.close(fd)
        guard.wait(BOUND)
        with pytest.raises(OSError, match="No such device or address"):
            os.open(short_path / "owner", os.O_WRONLY | os.O_NONBLOCK)


def test_a_process_whose_owner_was_gone_before_it_looked_ends_after_its_patience(short_path: Path) -> None:
    os.mkfifo(short_path / "owner", 0o600)
    order = json.dumps({"owner": str(short_path / "owner"), "grace_seconds": PATIENCE})
    command = [sys.executable, "-I", "-S", str(LAUNCHER), "--guard", sys.executable, "-c", "import time; time.sleep(600)"]
    environ = os.environ | {"KERNELEXEC_LAUNCH": order}
    begun = time.monotonic()
    with subprocess.Popen(command, env=environ, start_new_session=True) as guard:
        try:
            guard.wait(BOUND)
        finally:
            guard.kill()
    assert time.monotonic() - begun >= PATIENCE
