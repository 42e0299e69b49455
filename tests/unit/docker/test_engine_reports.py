"""The stream of the engine's events ends with its last user, whatever it is doing then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kernelexec.docker import engine_reports
from kernelexec.docker.client import Engine
from kernelexec.docker.engine_reports import EventStream
from tests.support.pace import BOUND


class SilentStream:
    """Events of an engine in which nothing happens, until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[dict[str, str]]:
        assert self.closed.wait(2 * BOUND)
        return iter(())

    def close(self) -> None:
        self.closed.set()


def test_an_end_while_the_stream_is_opened_waits_for_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hung_up, stream = threading.Event(), threading.Event(), SilentStream()

    def events(**_options: object) -> SilentStream:
        asked.set()
        assert hung_up.wait(BOUND)
        return stream

    engine = SimpleNamespace(api=SimpleNamespace(events=events), release=lambda: None)
    monkeypatch.setattr(Engine, "acquire", lambda: engine)
    monkeypatch.setattr(engine_reports, "_AGAIN_SECONDS", 0)
    reports = EventStream.acquire()
    assert asked.wait(BOUND)
    hang_up = reports._hang_up

    def hang_up_once() -> None:
        hang_up()
        hung_up.set()

    monkeypatch.setattr(reports, "_hang_up", hang_up_once)
    releasing = threading.Thread(target=reports.release, daemon=True)
    releasing.start()
    releasing.join(BOUND)
    ended = not releasing.is_alive()
    stream.close()
    assert ended
