"""A kernel behind a program that starts it. jupyter_client calls it, by the entry point ``kernelexec-wrapped``."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace

from kernelexec.provisioning.provisioners.local import Provisioner as LocalProvisioner
from kernelexec.provisioning.runtime.processes import ancestors_of, descends
from kernelexec.results import Stats

#: A process that a signal ended has this added to the signal's number, as shells say it, and most programs that start others.
_SIGNALLED = 128
_MONITORED = (signal.SIGSTOP, signal.SIGKILL)


class Provisioner(LocalProvisioner):
    """The local provisioner, but for what stands between: another process, whose end is the kernel's.

    Signals are for the kernel, which is known once it serves: it is who serves its sockets.
    """

    _kernel: int | None = None
    _kernel_pid: int | None = None

    def serves(self, peer: int) -> bool:
        """Whether a process that answers at a socket of the kernel is of it."""
        if self.pid is None or not descends(peer, self.pid):
            return False
        if self._kernel is None:
            with suppress(OSError):
                self._kernel, self._kernel_pid = os.pidfd_open(peer), peer
        return True

    async def poll(self) -> int | None:
        """The exit status, or None while the kernel lives."""
        return _status(await super().poll())

    async def wait(self) -> int | None:
        """The exit status once the kernel's process has ended."""
        return _status(await super().wait())

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed while something was for want of memory."""
        killed = self._left is not None and _status(self._left) == -signal.SIGKILL
        return killed and self._count.kills() > self._oom_kills

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel alone, where it is known; the end is for who started it."""
        if signum in _MONITORED or self._kernel is None:
            if self.process is not None and signum in (*_MONITORED, signal.SIGTERM):
                self.process.send_signal(signum)
            return
        with suppress(OSError):
            signal.pidfd_send_signal(self._kernel, signum)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Called when the kernel has ended: what it left behind ends too."""
        await super().cleanup(restart=restart)
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            os.close(kernel)

    def _own(self) -> set[int]:
        """The kernel, and what is around it."""
        return {*super()._own(), *(ancestors_of(self._kernel_pid) if self._kernel_pid is not None else ())}

    async def stats(self) -> Stats:
        """What the kernel and all that it started use."""
        return replace(await super().stats(), isolation=self.isolation)


def _status(found: int | None) -> int | None:
    """Of the kernel, from that of what started it."""
    signum = 0 if found is None else found - _SIGNALLED
    return -signum if 0 < signum < signal.NSIG else found
