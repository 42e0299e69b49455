"""Work that makes many objects leaves the interpreter as it was, also if several threads do such work."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from kernelexec.session.lifecycle import short_turns


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[float, bool]]:
    interval, was_enabled = sys.getswitchinterval(), gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval(), request.param
    sys.setswitchinterval(interval)
    (gc.enable if was_enabled else gc.disable)()


def test_the_interpreter_is_as_before_when_the_last_thread_is_done(before: tuple[float, bool]) -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        with short_turns():
            begun.set()
            end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    with short_turns():
        assert (round(sys.getswitchinterval(), 6), gc.isenabled()) == (0.0005, False)
    assert (round(sys.getswitchinterval(), 6), gc.isenabled()) == (0.0005, False)
    end.set()
    thread.join()
    assert (sys.getswitchinterval(), gc.isenabled()) == before


def test_an_interval_that_is_shorter_stays() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        with short_turns():
            assert sys.getswitchinterval() <= 0.0001
    finally:
        sys.setswitchinterval(interval)
