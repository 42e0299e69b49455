"""Threads of C code, which are named with their libraries while they wait, and are no obstacle once they have ended."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelexec.launcher.checkpoints import fork_safety
from tests.support.takeovers import wait_until

TASKS = Path("/proc/self/task")


def start_thread() -> tuple[int, Callable[[], object]]:
    """Start a thread that runs a function of C; return its number and what ends it."""
    library, semaphore, thread = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.c_ulong()
    assert library.sem_init(semaphore, 0, 0) == 0
    before = set(TASKS.iterdir())
    assert library.pthread_create(ctypes.byref(thread), None, library.sem_wait, semaphore) == 0
    [task] = set(TASKS.iterdir()) - before
    return int(task.name), lambda: library.sem_post(semaphore)


def test_a_thread_of_no_library_is_listed_until_it_ends() -> None:
    number, end = start_thread()
    [thread] = [thread for thread in fork_safety.find_native_threads() if thread.number == number]
    assert (thread.library, str(thread)) == ("", thread.name)
    end()
    wait_until(lambda: not (TASKS / str(number)).exists())
    assert number not in [thread.number for thread in fork_safety.find_native_threads()]


def test_a_thread_that_ends_while_it_is_looked_at_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    number, end = start_thread()

    def look_late(task: Path, _: object) -> set[str]:
        if int(task.name) == number:
            end()
            wait_until(lambda: not task.exists())
        return set()

    monkeypatch.setattr(fork_safety, "_find_libraries", look_late)
    assert number not in [thread.number for thread in fork_safety.find_native_threads()]


def test_only_threads_of_openmp_end_on_request() -> None:
    assert not fork_safety.end_pools([fork_safety.NativeThread(1, "python", "/lib/libother.so")])
    assert not fork_safety.end_pools([])
