"""A time limit interrupts the call that it is for, and no later code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kernelexec.launcher.ipython.interrupts import call_with_time_limit


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_result_or_the_fallback_is_returned() -> None:
    assert call_with_time_limit(lambda: {"a": 1}, {}) == {"a": 1}
    assert call_with_time_limit(lambda: 1 / 0, {"b": 2}) == {"b": 2}


def test_a_timer_that_is_already_over_its_wait_interrupts_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = list[Any]()

    class LateTimer(threading.Timer):
        def run(self) -> None:
            self.finished.wait()
            time.sleep(0.05)  # the call must not return meanwhile
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(threading, "Timer", LateTimer)
    monkeypatch.setattr(signal, "pthread_kill", lambda *_: handlers.append(signal.getsignal(signal.SIGINT)))
    assert call_with_time_limit(lambda: {"a": 1}, {}) == {"a": 1}
    assert handlers == [signal.default_int_handler]
