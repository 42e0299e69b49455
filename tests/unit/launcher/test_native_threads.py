"""Threads of C code, which are named with their libraries while they wait, and are no obstacle once they have ended."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from kernelexec.launcher.checkpoints import native_threads
from tests.support.takeovers import wait_until

TASKS = Path("/proc/self/task")
MICROSECONDS = 200_000


def start_thread(function: Any, argument: int) -> int:
    """Start a thread that runs a function of C; return its number."""
    before = set(TASKS.iterdir())
    thread = ctypes.c_ulong()
    assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, function, ctypes.c_void_p(argument)) == 0
    [task] = set(TASKS.iterdir()) - before
    return int(task.name)


def test_a_thread_of_no_library_is_listed_until_it_ends() -> None:
    number = start_thread(ctypes.CDLL(None).usleep, MICROSECONDS)
    [thread] = [thread for thread in native_threads.find_native_threads() if thread.number == number]
    assert (thread.library, str(thread)) == ("", thread.name)
    wait_until(lambda: not (TASKS / str(number)).exists())
    assert number not in [thread.number for thread in native_threads.find_native_threads()]


def test_a_thread_that_ends_while_it_is_looked_at_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    number = start_thread(ctypes.CDLL(None).usleep, MICROSECONDS)

    def look_late(task: Path, _: object) -> set[str]:
        if int(task.name) == number:
            wait_until(lambda: not task.exists())
        return set()

    monkeypatch.setattr(native_threads, "_find_libraries", look_late)
    assert number not in [thread.number for thread in native_threads.find_native_threads()]


def test_only_threads_of_openmp_end_on_request() -> None:
    assert not native_threads.end_pools([native_threads.NativeThread(1, "python", "/lib/libother.so")])
    assert not native_threads.end_pools([])
