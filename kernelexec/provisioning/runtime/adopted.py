"""A process that another process started, with the methods of ``Popen`` that a provisioner calls."""

from __future__ import annotations

import os
import select
import signal
import struct
from contextlib import suppress
from typing import Self

from kernelexec.launcher.processes.proc import PROC
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.processes import read_live_status

#: Exit status of a process that ended unobserved, where the system reports the real one to its parent only.
UNKNOWN_STATUS = 256
#: The request ``PIDFD_GET_INFO`` with the bit that asks for the exit status, which Linux 6.15 and later have of a process that
#: its parent has waited for, and its message.
_GET_INFO, _INFO_EXIT, _INFO = 0xC040FF0B, 1 << 3, struct.Struct("=Q52xi")


class AdoptedProcess:
    """A process held by a pidfd, so that it is never confused with a later process of the same id."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd: int | None = fd
        self._killed = False
        self._exit_status: int | None = None

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
        """Return its exit status once it has ended, or a substitute where that is unknown; else None."""
        if self._exit_status is None and self._fd is not None:
            if not _is_readable(self._fd, 0):
                return None
            self._exit_status = _read_exit_status(self._fd, self.pid)
        substitute = -signal.SIGKILL if self._killed else UNKNOWN_STATUS
        return substitute if self._exit_status is None else self._exit_status

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status, or a substitute where that is unknown."""
        if self._fd is not None:
            _is_readable(self._fd, None)
        status = self.poll()
        assert status is not None
        self.close()
        return status

    async def wait_report(self) -> None:
        """Wait for a report of its exit status, where a process sends one."""

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


def _read_exit_status(fd: int, pid: int) -> int | None:
    """Return the exit status of a process that has ended; None if the system shows it to the parent only."""
    for _ in range(2):  # the parent may wait for it between the two looks
        with suppress(OSError):
            has, status = _INFO.unpack(platform.control_fd(fd, _GET_INFO, _INFO.pack(_INFO_EXIT, 0)))
            if has & _INFO_EXIT:
                return os.waitstatus_to_exitcode(status)
        with suppress(OSError, ValueError, IndexError):
            state, *fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            if state == b"Z":
                return os.waitstatus_to_exitcode(int(fields[48]))
    return None
