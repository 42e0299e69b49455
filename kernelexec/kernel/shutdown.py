"""The end of a kernel: shutdown by request, kill, and the container that is kept for the next kernel of the session."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import anyio.to_thread

from kernelexec.kernel.process import KernelProcess
from kernelexec.provisioning import KernelexecProvisioner, RuntimeDirectory
from kernelexec.provisioning.runtime.handover import remove_handover


@dataclass(frozen=True, slots=True)
class ReusableKernelHost:
    """A provisioner whose container can run the next kernel, and the private directory that is mounted there."""

    provisioner: KernelexecProvisioner
    runtime: RuntimeDirectory

    async def remove(self) -> None:
        """Remove the container and the directory."""
        with anyio.CancelScope(shield=True):
            await self.provisioner.cleanup()
            await anyio.to_thread.run_sync(self.runtime.remove)


class ReuseSlot:
    """Holds a reusable container for the next kernel until the session closes."""

    def __init__(self) -> None:
        self._host: ReusableKernelHost | None = None
        self._closed = False

    def take(self) -> ReusableKernelHost | None:
        """Give the container to the next kernel; None if there is none."""
        host, self._host = self._host, None
        return host

    async def put(self, host: ReusableKernelHost | None) -> None:
        """Replace the container; remove it at once if the slot is closed."""
        await self.drop()
        self._host = host
        if self._closed:
            await self.drop()

    async def close(self) -> None:
        """Remove the container, and each one that is put later."""
        self._closed = True
        await self.drop()

    async def drop(self) -> None:
        """Remove the container now: the next kernel may come late."""
        if (host := self.take()) is not None:
            await host.remove()


class KernelStopper:
    """Ends the process of one kernel and removes what belongs to it."""

    def __init__(self, process: KernelProcess, host: ReusableKernelHost | None) -> None:
        self.is_stopping = False
        """Whether an end was requested, so that nothing is started any more."""
        self._process = process
        self._host = host
        """The container of the kernel before, until this one starts; then that of this one, once it has ended."""
        self._killing = anyio.Lock()
        self._is_over = False
        """Whether everything has ended that another kernel may not have by now."""
        self._is_last = False
        """Whether no other kernel follows."""

    def take_host(self) -> ReusableKernelHost | None:
        """Give away the container that can be used again; None if there is none, or it was taken."""
        host, self._host = self._host, None
        return host

    async def wait_exit(self, patience: float) -> bool:
        """Return whether the process ends within ``patience`` seconds, after it was asked to."""
        with anyio.move_on_after(patience):
            await self._process.died.wait()
        return self._process.death is not None

    async def kill(self) -> None:
        """Kill the process and all its descendants, and wait for their end; ``take_host`` has the container, if it goes on."""
        self.is_stopping = True
        with anyio.CancelScope(shield=True):
            async with self._killing:
                if not self._is_over:
                    await self._kill()

    async def _kill(self) -> None:
        process, restart = self._process, not self._is_last
        provisioner = process.provisioner
        if provisioner is not None and process.death is None:
            await provisioner.kill(restart=restart)
            await process.record_exit(provisioner, is_killed=True)
        if process.client is not None:
            process.client.close()
        if provisioner is not None:
            process.provisioner = None
            await provisioner.cleanup(restart=restart)
            if provisioner.is_reusable:
                self._host = ReusableKernelHost(provisioner, process.runtime)
        if self._host is not None and not await anyio.to_thread.run_sync(process.runtime.clear):
            await self._host.provisioner.cleanup()
            self._host = None
        if self._host is None:
            await anyio.to_thread.run_sync(process.runtime.remove)
        if process.adoption_seconds:
            remove_handover(process.runtime.session)
        self._is_over = True

    async def stop(self, patience: float) -> None:
        """End the kernel for good: by request within ``patience`` seconds, then by kill; remove its container too."""
        with anyio.CancelScope(shield=True):
            if self._process.alive and self._process.client is not None and patience:
                self._process.client.send_control("shutdown_request", restart=False)
                await self.wait_exit(patience)
            self._is_last = True
            await self.kill()
            if (host := self.take_host()) is not None:
                await host.remove()
