"""The process of one kernel and the connection to it: the state that the parts of a ``Kernel`` share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from kernelexec.config import Config
from kernelexec.events import KernelContainer
from kernelexec.kernel.client import KernelClient
from kernelexec.kernel.death import Death
from kernelexec.kernel.startup_children import StartupChildren
from kernelexec.provisioning import Backend, InstalledSpec, KernelexecProvisioner, RuntimeDirectory, Transport

_CRASH_OUTPUT_BYTES, _STDERR_BYTES = 2 * 1024 * 1024, 4096


class KernelProcess:
    """One process from before its launch until after its death. ``KernelStarter`` fills it, ``KernelStopper`` empties it."""

    def __init__(self, config: Config, runtime: RuntimeDirectory, backend: Backend, installed: InstalledSpec | None) -> None:
        self.config = config
        self.runtime = runtime
        self.backend = backend
        self.installed = installed
        """The kernelspec of a kernel without our launcher; None for our own."""
        self.secrets = backend.secrets
        self.token = secrets.token_hex(8)
        """Random name of the process, which only its launcher can repeat."""
        self.transport: Transport = "ipc"
        self.provisioner: KernelexecProvisioner | None = None
        self.client: KernelClient | None = None
        self.container: KernelContainer | None = None
        self.launcher_info: dict[str, Any] = {}
        """The launcher's report of itself when it became ready."""
        self.startup_children: StartupChildren | None = None
        """The children of a kernel without our launcher."""
        self.death: Death | None = None
        self.died = asyncio.Event()
        self.on_death: Callable[[Death], None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process lives and its channels are connected."""
        return self.client is not None and self.death is None and not self.client.is_disconnected

    @property
    def label(self) -> str:
        """The kernel at the beginning of a message."""
        return f"The kernel {self.installed.name!r}" if self.installed else "The kernel"

    @property
    def has_ready_pipe(self) -> bool:
        """Whether the process is our launcher with pipes to its owner, by which it reports that it is ready."""
        return self.installed is None and self.transport == "ipc"

    @property
    def adoption_seconds(self) -> float:
        """How long the process waits for a new owner after its owner has died; 0 for a process with a lease."""
        return self.backend.adoption_seconds if self.has_ready_pipe else 0.0

    async def watch(self, provisioner: KernelexecProvisioner) -> None:
        """Record the death of the process when it ends; ``KernelStarter`` runs this as a task of the session."""
        await self.record_exit(provisioner)

    async def record_exit(self, provisioner: KernelexecProvisioner, *, is_killed: bool = False) -> None:
        """Wait for the end of the process, read the rest of its messages, and record its death."""
        status = await provisioner.wait()
        if self.client is not None:
            await self.client.wait_drained()
        self.set_death(Death.of(status, out_of_memory=not is_killed and provisioner.is_oom_killed))

    def set_death(self, death: Death) -> None:
        """Record the death, once: end all executions and call ``on_death``."""
        if self.death is not None:
            return
        self.death = death
        self.died.set()
        if self.client is not None:
            self.client.on_crash_output(self.runtime.read_file("words", _CRASH_OUTPUT_BYTES))
            self.client.finish("died")
        if self.on_death is not None:
            self.on_death(death)

    async def read_stderr(self) -> str:
        """Return the end of the process's own stderr, without secrets."""
        if self.provisioner is not None and (log := await self.provisioner.read_log()) is not None:
            return self.mask_output(log.encode())
        return self.mask_output(self.runtime.read_file("stderr", _STDERR_BYTES))

    def mask_output(self, raw: bytes) -> str:
        """Return output of the process without secrets."""
        text = raw.decode("utf-8", "replace")
        return text if self.secrets is None else self.secrets.masker.mask_text(text)
