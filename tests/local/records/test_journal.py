"""The journal's file: whole lines at every moment, bounded, kept by one, and readable whatever became of its writer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from kernelexec.records.journal import Journal
from tests.unit.records.test_journal import OPENED, keep, path

__all__ = ["keep", "path"]


def test_a_forked_child_does_not_hold_the_journal(keep: Callable[..., Journal], path: Path) -> None:
    first = keep()
    first(OPENED)
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        there.sendall(b"!")
        there.recv(1)  # until the parent has looked
        os._exit(0)
    with here, there:
        assert here.recv(1) == b"!"
        first.close()
        assert keep().path == path
        here.sendall(b"!")
        os.waitpid(child, 0)
