"""A process that another process started, with the methods of ``Popen`` that a provisioner calls."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Self

from kernelexec.provisioning.runtime.processes import read_live_status

#: Exit status of a process that ended unobserved: the system reports the real one to its parent only.
_UNKNOWN = 1


class AdoptedProcess:
    """A process held by a pidfd, so that it is never confused with a later process of the same id."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd: int | None = fd
        self._killed = False

    @classmethod
    def of(cls, pid: int, born: int) -> Self | None:
        """Return the process with that id and start time; None if it has ended."""
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
        status = read_live_status(pid)
        if status is None or status.born != born:
            os.close(fd)
            return None
        return cls(pid, fd)

    def duplicate_pidfd(self) -> int:
        """Return a duplicate of the pidfd, which the caller must close."""
        if self._fd is None:
            raise ProcessLookupError
        return os.dup(self._fd)

    def poll(self) -> int | None:
        """Return a substitute for its exit status once it has ended; else None."""
        if self._fd is not None and not _is_readable(self._fd, 0):
            return None
        return -signal.SIGKILL if self._killed else _UNKNOWN

    def wait(self) -> int:
        """Wait until it has ended, and return a substitute for its exit status."""
        if self._fd is not None:
            _is_readable(self._fd, None)
        status = self.poll()
        assert status is not None
        self.close()
        return status

    async def wait_report(self) -> None:
        """Wait for a report of its exit status, which does not exist here."""

    def send_signal(self, signum: int) -> None:
        """Signal the process; nothing happens if it has ended."""
        if self._fd is not None:
            self._killed |= signum == signal.SIGKILL
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signum)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_readable(fd: int, milliseconds: int | None) -> bool:
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(milliseconds))
