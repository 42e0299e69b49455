"""What waits for the reader of pipes waits for the output that it has just read, too."""

from __future__ import annotations

import json
import os
import select
import selectors
import time
from threading import Event, Thread
from typing import Any

import pytest

from kernelexec.launcher.output.captured_output import ForkedOutput, PipeReader

_BOUND = 60.0


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="the system has no epoll")
def test_output_that_is_read_between_two_looks_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    is_looked_for, is_read, taken = Event(), Event(), list[bytes]()

    class LateSelector(selectors.DefaultSelector):
        """One that tells of output when somebody looks whether there is any."""

        def select(self, timeout: float | None = None) -> Any:
            ready = super().select(timeout)
            assert is_looked_for.wait(_BOUND)
            return ready

    def take(content: bytes) -> None:
        is_read.set()
        time.sleep(0.05)  # the one that waits must not go on meanwhile
        taken.append(content)

    def look_when_read() -> bool:
        is_looked_for.set()
        assert is_read.wait(_BOUND)
        return look()

    monkeypatch.setattr(selectors, "DefaultSelector", LateSelector)
    reader = PipeReader()
    look = reader._is_unread
    monkeypatch.setattr(reader, "_is_unread", look_when_read)
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"abc")
    reader.add(read_fd, take)
    reader.drain(_BOUND)
    assert taken == [b"abc"]
    os.close(write_fd)


def test_output_of_earlier_cells_children_is_awaited_on_request() -> None:
    taken = list[bytes]()

    def take(content: bytes) -> None:
        time.sleep(0.05)
        taken.append(content)

    reader = PipeReader()
    read_fd, write_fd = os.pipe()
    reader.add(read_fd, take)
    reader.stop_awaiting(read_fd)
    for number in range(3):
        os.write(write_fd, b"abc")
        reader.read_left(_BOUND)
        assert taken == [b"abc"] * (number + 1)
    os.close(write_fd)


@pytest.mark.parametrize("character", ["\0", "\udc80", "\U0001f98a"])
def test_text_of_forked_children_is_written_in_pieces_that_cannot_mix(monkeypatch: pytest.MonkeyPatch, character: str) -> None:
    forked, lines = ForkedOutput(PipeReader(), lambda *_: None), list[bytes]()
    monkeypatch.setattr(os, "write", lambda _, line: lines.append(line))
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
    forked.write("stderr", character * 5000)
    assert max(map(len, lines)) <= select.PIPE_BUF
    assert "".join(json.loads(line)[2] for line in lines) == character * 5000


def test_children_that_write_on_are_not_waited_for() -> None:
    is_over = Event()
    reader = PipeReader()
    read_fd, write_fd = os.pipe()
    reader.add(read_fd, lambda _: None)
    reader.stop_awaiting(read_fd)

    def flood() -> None:
        while not is_over.is_set():
            os.write(write_fd, b"x" * 4096)
        os.close(write_fd)

    flooding = Thread(target=flood)
    flooding.start()
    begun = time.monotonic()
    for _ in range(20):
        reader.read_left(_BOUND)
    assert time.monotonic() - begun < _BOUND
    is_over.set()
    flooding.join()
