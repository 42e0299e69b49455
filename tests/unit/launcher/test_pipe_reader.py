"""What waits for the reader of pipes waits for the output that it has just read, too."""

from __future__ import annotations

import os
import select
import selectors
import time
from threading import Event
from typing import Any

import pytest

from kernelexec.launcher.output.captured_output import PipeReader

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
