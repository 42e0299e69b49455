"""Times that hold on a slow machine too, and cells that have begun."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

from kernelexec import AttachedSession, ExecutionResult, Session

#: The longest wait for anything that must happen at all, in seconds.
BOUND = 100.0
#: A million turns of a loop on the machine for which the tests' times are written, in seconds.
_TURNS_SECONDS = 0.03


#: The variable by which the processes of a run have the same factor: names of tests have times.
_FACTOR = "KERNELEXEC_TEST_SLOW"


def _measure() -> float:
    """Return how many times slower this machine is, and what else runs on it counts: from 1 to 4."""
    if chosen := os.environ.get(_FACTOR):
        return float(chosen)
    measured = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(10**6):
            pass
        measured.append(time.perf_counter() - begun)
    factor = round(min(max(statistics.median(measured) / _TURNS_SECONDS, 1.0), 4.0), 1)
    os.environ[_FACTOR] = str(factor)
    return factor


#: Measured once a run.
FACTOR = _measure()


def slow(seconds: float) -> float:
    """Return a time that is long enough on a quiet machine as one that is long enough here."""
    return seconds * FACTOR


class RunningCell:
    """A cell that runs in a thread, and has written something."""

    def __init__(self, session: Session | AttachedSession, code: str, **options: Any) -> None:
        """Start it, and wait until it has written something or has ended."""
        written = Event()
        self._thread = ThreadPoolExecutor(1, "running cell")
        self._call: Future[ExecutionResult] = self._thread.submit(
            session.execute, code, on_output=lambda _: written.set(), **options
        )
        self._call.add_done_callback(lambda _: written.set())
        assert written.wait(BOUND), "the cell wrote nothing"

    def result(self) -> ExecutionResult:
        """Return its result when it has ended."""
        try:
            return self._call.result(BOUND)
        finally:
            self._thread.shutdown(wait=False)


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that is true in the end; a test whose condition stays false fails here."""
    end = time.monotonic() + BOUND
    while not (actual := condition()):
        assert time.monotonic() < end, f"it stayed {actual!r}"
        time.sleep(0.02)


def until_equal(read: Callable[[], object], expected: object) -> None:
    """Wait until what is read is this; a test where it stays another fails here with both."""
    end = time.monotonic() + BOUND
    while (actual := read()) != expected:
        assert time.monotonic() < end, f"it stayed {actual!r}, and not {expected!r}"
        time.sleep(0.02)
