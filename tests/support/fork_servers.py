"""The fork servers among a process's children."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

#: How many seconds a process may be without its command line: in the moment after its exec it has none yet.
_STARTING_SECONDS = 5


def is_fork_server(process: psutil.Process) -> bool:
    """Whether a process that has an executable runs as a fork server; one that has ended is none."""
    words: list[str] = []
    until = time.monotonic() + _STARTING_SECONDS
    with suppress(psutil.NoSuchProcess):  # also a zombie
        while not (words := process.cmdline()) and time.monotonic() < until:
            time.sleep(0.001)
    return "--forkserver" in words


def fork_servers(parent: psutil.Process) -> list[psutil.Process]:
    """Return the fork servers that a process has started."""
    return [child for child in parent.children() if is_fork_server(child)]
