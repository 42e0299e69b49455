"""Exit statuses, the same in every command. The help of each command and the README say them too."""

from __future__ import annotations

import signal

from kernelexec.results import ExecutionResult

SIGNAL_BASE = 128
CELL_FAILED = 1
TIMED_OUT = 124
#: What failed is kernelexec and not the code, as ``timeout``, ``env`` and ``docker run`` say it of themselves.
OURSELVES = 125
#: As a shell says of what is there and may not be executed.
REFUSED = 126
INTERRUPTED = SIGNAL_BASE + signal.SIGINT
#: Nobody reads the output any more.
UNREAD = SIGNAL_BASE + signal.SIGPIPE

MEANING = (
    f"{TIMED_OUT} after a timeout; {REFUSED} for a command that the rules refuse; {INTERRUPTED} after Ctrl+C; "
    f"{OURSELVES} where kernelexec itself failed: wrong usage, bad input, no kernel, output that cannot be written."
)


class CommandFailed(Exception):
    """What ends a command: its exit status, and the line that says why; an empty one where nobody would read it."""

    def __init__(self, message: str, status: int = OURSELVES) -> None:
        super().__init__(message)
        self.status = status


def is_refused(result: ExecutionResult) -> bool:
    """Whether the rules refused a cell."""
    return result.status == "aborted" and result.diagnosis is not None and result.diagnosis.kind == "refused"


def of_cell(result: ExecutionResult) -> int:
    """The exit code of a command or of a kernel that ended; of code 0 or 1."""
    if result.ok:
        return 0
    if result.status == "aborted":
        return REFUSED if is_refused(result) else INTERRUPTED
    return (result.exit_code or CELL_FAILED) & 0xFF or CELL_FAILED
