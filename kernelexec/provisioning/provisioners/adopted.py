"""A process that another process started, by the few methods of ``Popen`` that a provisioner calls."""

from __future__ import annotations

import os
import select
import signal
from typing import Self

from kernelexec.provisioning.runtime.processes import status_of

#: What is said of its end: the system tells that to its parent only.
_UNKNOWN = 1


class AdoptedProcess:
    """It is held by a descriptor, so that another one which gets its id is never taken for it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd: int | None = fd
        self._killed = False

    @classmethod
    def of(cls, pid: int, born: int) -> Self | None:
        """The process of that id that was born then; None if it has ended."""
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
        status = status_of(pid)
        if status is None or status.born != born:
            os.close(fd)
            return None
        return cls(pid, fd)

    def opened(self) -> int:
        """A descriptor of the process, for the caller to close."""
        if self._fd is None:
            raise ProcessLookupError
        return os.dup(self._fd)

    def poll(self) -> int | None:
        """What stands for its exit status once it has ended; else None."""
        if self._fd is not None and not _is_readable(self._fd, 0):
            return None
        return -signal.SIGKILL if self._killed else _UNKNOWN

    def wait(self) -> int:
        """What stands for its exit status, once it has ended."""
        if self._fd is not None:
            _is_readable(self._fd, None)
        status = self.poll()
        assert status is not None
        self.close()
        return status

    async def hear(self) -> None:
        """Wait for who may tell how it ended: nobody."""

    def send_signal(self, signum: int) -> None:
        """Signal it; nothing happens if it has ended."""
        if self._fd is not None:
            self._killed |= signum == signal.SIGKILL
            signal.pidfd_send_signal(self._fd, signum)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_readable(fd: int, milliseconds: int | None) -> bool:
    ended = select.poll()
    ended.register(fd, select.POLLIN)
    return bool(ended.poll(milliseconds))
