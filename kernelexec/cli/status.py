"""Exit statuses, the same in every command. The help of each command and the README say them too."""

from __future__ import annotations

import signal

from kernelexec.results import ExecutionResult

SIGNAL_BASE = 128
CELL_FAILED = 1
TIMED_OUT = 124
#: What failed is kernelexec and not the code, as ``timeout``, ``env`` and ``docker run`` say it of themselves.
OURSELVES = 125
INTERRUPTED = SIGNAL_BASE + signal.SIGINT
#: Nobody reads the output any more.
UNREAD = SIGNAL_BASE + signal.SIGPIPE

MEANING = (
    f"{TIMED_OUT} after a timeout; {INTERRUPTED} after Ctrl+C; {OURSELVES} where kernelexec itself failed: "
    "wrong usage, bad input, no kernel, output that cannot be written."
)


class CommandFailed(Exception):
    """What ends a command: its exit status, and the line that says why; an empty one where nobody would read it."""

    def __init__(self, message: str, status: int = OURSELVES) -> None:
        super().__init__(message)
        self.status = status


def of_cell(result: ExecutionResult) -> int:
    """The exit code of a command or of a kernel that ended; of code 0 or 1."""
    if result.ok:
        return 0
    if result.status == "aborted":
        return INTERRUPTED
    return (result.exit_code or CELL_FAILED) & 0xFF or CELL_FAILED
