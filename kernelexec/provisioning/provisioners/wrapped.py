"""The provisioner of kernels that another program starts; its entry point is ``kernelexec-wrapped``."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace

from kernelexec.provisioning.provisioners.local import LocalKernelProvisioner
from kernelexec.provisioning.runtime.processes import is_descendant, walk_ancestors
from kernelexec.results import Stats

#: A process that a signal ended has this added to the signal's number, as shells say it, and most programs that start others.
_SIGNALLED = 128
_MONITORED = (signal.SIGSTOP, signal.SIGKILL)


class WrappedKernelProvisioner(LocalKernelProvisioner):
    """A local provisioner whose process is a wrapper of the kernel; the wrapper ends when the kernel ends.

    Signals go to the kernel itself, which is known by the sockets that it serves.
    """

    _kernel: int | None = None
    _kernel_pid: int | None = None

    def accepts_peer(self, peer: int, *, guarded: bool) -> bool:  # noqa: ARG002 - of the interface
        """Accept descendants of the wrapper; the first one is the kernel."""
        if self.pid is None or not is_descendant(peer, self.pid):
            return False
        if self._kernel is None:
            with suppress(OSError):
                self._kernel, self._kernel_pid = os.pidfd_open(peer), peer
        return True

    async def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives."""
        return _kernel_status(await super().poll())

    async def wait(self) -> int | None:
        """Return the exit status once the kernel's process has ended."""
        return _kernel_status(await super().wait())

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed while its control group counted a kill for want of memory."""
        killed = self._exit_status is not None and _kernel_status(self._exit_status) == -signal.SIGKILL
        return killed and self._oom_reader.count_kills() > self._oom_kills

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel where it is known; SIGSTOP and SIGKILL go to the wrapper."""
        if signum in _MONITORED or self._kernel is None:
            if self.process is not None and signum in (*_MONITORED, signal.SIGTERM):
                self.process.send_signal(signum)
            return
        with suppress(OSError):
            signal.pidfd_send_signal(self._kernel, signum)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the processes that the ended kernel left behind."""
        await super().cleanup(restart=restart)
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            os.close(kernel)

    def _kernel_pids(self) -> set[int]:
        """Return the wrapper, the kernel, and the processes between them."""
        return {*super()._kernel_pids(), *(walk_ancestors(self._kernel_pid) if self._kernel_pid is not None else ())}

    async def stats(self) -> Stats:
        """Return the use of the kernel and of all its descendants."""
        return replace(await super().stats(), isolation=self.isolation)


def _kernel_status(wrapper: int | None) -> int | None:
    """Return the kernel's exit status, from that of its wrapper."""
    signum = 0 if wrapper is None else wrapper - _SIGNALLED
    return -signum if 0 < signum < signal.NSIG else wrapper
