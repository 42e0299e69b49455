"""A command of another user than the kernel's, which the container engine starts, and the end of its processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from .. import platform
from ..processes import accounts, proc, tree
from ..processes.command import TERMINATE_SECONDS
from ..protocol import COMMAND_MARK_VARIABLE, END_COMMAND_FLAG

_LOOK_SECONDS = 0.02


def main(flag: str, arguments: list[str]) -> None:
    """Replace this process by the shell of a command, or end all processes that carry the mark of a command.

    Raises:
        SystemExit: the shell cannot be started.
    """
    if flag == END_COMMAND_FLAG:
        _end(f"{COMMAND_MARK_VARIABLE}={arguments[0]}".encode())
        return
    entry = accounts.find_entry(str(os.getuid()))
    variables = {} if entry is None else accounts.variables_of(entry)
    chosen, command = arguments[0].split(","), arguments[1]
    os.environ.update({name: value for name, value in variables.items() if name not in chosen})
    with suppress(OSError):
        os.setsid()
    argv = [*platform.default_shell(), command]
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the shell is the program
    except OSError as exc:
        sys.exit(f"{argv[0]} cannot be started: {exc.strerror}.")


def _end(entry: bytes) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        for pid, status in _marked(entry).items():
            proc.signal_process(pid, signum, status)
        deadline = time.monotonic() + TERMINATE_SECONDS
        while _marked(entry) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)  # processes of other parents: the system reports no end of them
    name, _, mark = entry.decode().partition("=")
    tree.kill_marked(name, mark)


def _marked(entry: bytes) -> dict[int, proc.ProcessStatus]:
    return {pid: status for pid, status in proc.read_processes().items() if proc.has_variable(pid, entry)}
