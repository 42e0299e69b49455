"""A reader of the owner's pipe that comes after the owner's end knows of it: ``poll`` reports nothing to it."""

from __future__ import annotations

import os
import select
from pathlib import Path

from kernelexec.launcher.owner import OwnerPipe


def test_a_pipe_without_an_owner_is_known_where_poll_reports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    os.mkfifo(path)
    pipe = OwnerPipe(str(path), 0)
    poll = select.poll()
    poll.register(pipe.fd, select.POLLIN)
    assert poll.poll(0) == []
    assert not pipe.has_writer()
    writer = os.open(path, os.O_WRONLY)
    assert pipe.has_writer()
    os.close(writer)
    assert not pipe.has_writer()
    pipe.close()
