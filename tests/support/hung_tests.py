"""What the event loops of a process wait for while a test hangs: threads that wait for a loop do not show it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import threading
from collections.abc import Iterator
from typing import Any


class HungTests:
    """Writes the tasks of all loops to stderr when a test has run for so many seconds; a thread waits for that."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._test: str | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._stderr = os.dup(2)

    @contextlib.contextmanager
    def watch(self, test: str) -> Iterator[None]:
        """Watch a test while it runs."""
        if self._thread is None or os.getpid() != self._pid:
            self._pid, self._changed = os.getpid(), threading.Condition()
            self._thread = threading.Thread(target=self._run, name="hung tests", daemon=True)
            self._thread.start()
        self._set_test(test)
        try:
            yield
        finally:
            self._set_test(None)

    def _set_test(self, test: str | None) -> None:
        with self._changed:
            self._test = test
            self._changed.notify()

    def _run(self) -> None:
        while True:
            test = self._test
            if not self._wait_for_change(test, None if test is None else self._seconds):
                os.write(self._stderr, describe_loops(f"{test} has run for {self._seconds} s").encode("utf-8", "replace"))
                self._wait_for_change(test, None)

    def _wait_for_change(self, test: str | None, seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._test is not test, seconds)


def describe_loops(heading: str) -> str:
    """Return what each open event loop of this process is about to do, and where its tasks wait."""
    text = io.StringIO()
    print(f"\n{heading}", file=text)
    for loop in [each for each in gc.get_objects() if isinstance(each, asyncio.BaseEventLoop) and not each.is_closed()]:
        internal: Any = loop
        for name in ("_ready", "_scheduled", "_selector", "_csock", "_ssock"):
            print(f"{loop} {name}: {str(getattr(internal, name, None))[:500]}", file=text)
        for task in asyncio.all_tasks(loop):
            places = " > ".join(_await_chain(task.get_coro()))
            print(f"task {task.get_name()}: {places} waits for {str(getattr(task, '_fut_waiter', None))[:500]}", file=text)
    return text.getvalue()


def _await_chain(awaiting: object) -> Iterator[str]:
    """Yield the lines at which a coroutine, and each one that it awaits, is suspended."""
    while awaiting is not None:
        frame = getattr(awaiting, "cr_frame", None) or getattr(awaiting, "gi_frame", None)
        yield f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else str(awaiting)[:200]
        awaiting = getattr(awaiting, "cr_await", None) or getattr(awaiting, "gi_yieldfrom", None)
