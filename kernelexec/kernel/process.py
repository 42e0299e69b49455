"""A kernel's process from the launch to the end of the last descendant: connection, children, death and reuse."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import KernelConnectionFailed
from kernelexec.events import KernelContainer
from kernelexec.kernel.client import KernelClient
from kernelexec.kernel.launcher_reports import Usage, VariableNames
from kernelexec.provisioning import Backend, InstalledSpec, KernelexecProvisioner, RuntimeDirectory, Transport
from kernelexec.provisioning.runtime.discovery import remove_handover
from kernelexec.provisioning.runtime.processes import UNKNOWN_STATUS, find_guarded_children, read_live_status
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket, list_checkpoints
from kernelexec.results import Cause

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
#: How long all checkpoints of a kernel may take to answer, in seconds: user code may serve their sockets instead.
_CHECKPOINTS_SECONDS = 5.0
#: How long the report of a death may take, in seconds: a fork server needs up to ten while it imports a library.
_REPORT_SECONDS = 12.0
_CRASH_OUTPUT_BYTES, _STDERR_BYTES = 2 * 1024 * 1024, 4096


@dataclass(frozen=True, slots=True)
class Death:
    """The cause of a process's end, and the exit code of a shell (128 + n for signal n)."""

    cause: Cause
    exit_code: int

    @classmethod
    def of(cls, status: int | None, *, out_of_memory: bool = False) -> Death:
        """Read a wait status of ``subprocess``."""
        if out_of_memory:
            return cls("oom", 137)
        if status is None or status >= 0:
            return cls("exited", status or 0)
        return cls("crashed" if -status in _CRASHES else "killed", 128 - status)


class StartupChildren:
    """The children of a guarded kernel from before it served, such as the shell of a kernel for bash.

    ``guard`` is the process id of the guard; None where the kernel's processes are not visible.
    """

    def __init__(self, guard: int | None) -> None:
        self._guard = guard
        # By process id: ids are reused, so only the id with its time of start names a process.
        self._born: dict[int, int] = {}

    @classmethod
    async def of(cls, guard: int | None) -> Self:
        """Return the living children."""
        children = cls(guard)
        await children.refresh()
        return children

    async def refresh(self) -> None:
        """Note the living children with their times of start."""
        if self._guard is not None:
            self._born = await anyio.to_thread.run_sync(find_guarded_children, self._guard)

    async def explain_unknown_state(self) -> str:
        """Return a sentence on why an answering kernel may have lost its state; empty if all children live.

        After the end of a child, the next call compares with the children that are alive now.
        """
        if self._guard is None:
            return "The kernel answers; the programs that it runs cannot be seen from here."
        if all((status := read_live_status(pid)) and status.born == born for pid, born in self._born.items()):
            return ""
        await self.refresh()
        return "A program that the kernel had started before it served has ended: what it held is gone."


@dataclass(frozen=True, slots=True)
class ReusableKernelHost:
    """A provisioner with a container for the next kernel, and the private directory mounted there."""

    provisioner: KernelexecProvisioner
    runtime: RuntimeDirectory

    async def remove(self) -> None:
        """Remove the container and the directory."""
        await await_to_end(self._remove())

    async def _remove(self) -> None:
        self.provisioner.spared = ()
        await self.provisioner.cleanup()
        await anyio.to_thread.run_sync(self.runtime.remove)


class ReuseSlot:
    """The reusable container for the next kernel, kept until the session closes."""

    def __init__(self) -> None:
        self._host: ReusableKernelHost | None = None
        self._closed = False

    @property
    def is_empty(self) -> bool:
        """Whether the slot has no container for the next kernel."""
        return self._host is None

    def take(self) -> ReusableKernelHost | None:
        """Give away the container; return None if the slot is empty."""
        host, self._host = self._host, None
        return host

    async def put(self, host: ReusableKernelHost | None) -> None:
        """Replace the container; remove the new container at once if the slot is closed."""
        await self.drop()
        self._host = host
        if self._closed:  # also if it was closed during the drop
            await self.drop()

    async def close(self) -> None:
        """Remove the container now, and every later container on arrival."""
        self._closed = True
        await self.drop()

    async def drop(self) -> None:
        """Remove the container now, since the next kernel may come late."""
        if (host := self.take()) is not None:
            await host.remove()


class KernelProcess:
    """A process from before the launch until after the death; see ``KernelStarter`` for the start."""

    checkpoints_max, checkpoints_bytes = 10, 1024 * 1024 * 1024
    """The limits of the checkpoints: their number, and their total memory in bytes, in pages shared with no other process.
    Automatic checkpoints (made after cells) are dropped first, except the newest, then the oldest. The newest automatic
    checkpoint does not count in the number if all others were requested."""

    def __init__(
        self,
        config: Config,
        runtime: RuntimeDirectory,
        backend: Backend,
        installed: InstalledSpec | None,
        host: ReusableKernelHost | None,
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.backend = backend
        self.installed = installed
        """The kernelspec of a kernel without our launcher; None for our own."""
        self.secrets = backend.secrets
        self.token = secrets.token_hex(8)
        """Random secret of the process; only its launcher can repeat it."""
        self.variable_names = VariableNames()
        self.usage = Usage(lambda: self.provisioner)
        self.transport: Transport = "ipc"
        self.provisioner: KernelexecProvisioner | None = None
        self._client: KernelClient | None = None
        self.container: KernelContainer | None = None
        """The container of the process; None on this machine."""
        self.launcher_info: dict[str, Any] = {}
        """The launcher's report of itself when it became ready."""
        self.startup_children: StartupChildren | None = None
        """The children of a kernel without our launcher."""
        self.death: Death | None = None
        """How the process ended; None while it lives."""
        self.died = asyncio.Event()
        self.on_death: Callable[[Death], None] | None = None
        """Called once after the end of the process."""
        self.remark: str | None = None
        """A note for the kernel's next result."""
        self.is_stopping = False
        """Whether an end was requested; nothing is started any more."""
        self.checkpoint: CheckpointSocket | None = None
        """The checkpoint from which this process is forked; None for a new process."""
        self.reseeds = False
        """Whether a process forked from a checkpoint has other random numbers than other copies."""
        self.other_checkpoints: Sequence[CheckpointSocket] = ()
        """Checkpoints that stay, with their container, if this copy of another checkpoint does not start."""
        self.earlier_checkpoints: Sequence[CheckpointSocket] = ()
        """The checkpoints of the session's earlier kernels."""
        self.newest_before = 0
        """The number of the newest checkpoint of the session's earlier kernels."""
        self._checkpoints: list[CheckpointSocket] = []
        """The checkpoints that outlive this process."""
        self._host = host
        """The previous kernel's container until this kernel starts; this kernel's own container after its end."""
        self._killing = anyio.Lock()
        self._is_over = False
        """Whether the end is complete: nothing of this kernel is left in the way of the next."""
        self._is_last = False
        """Whether no other kernel follows."""

    @property
    def has_client(self) -> bool:
        """Whether the connection to the kernel was begun."""
        return self._client is not None

    @property
    def client(self) -> KernelClient:
        """The connection to the kernel; raises ``KernelConnectionFailed`` before the kernel's start."""
        if self._client is None:
            raise KernelConnectionFailed("the kernel has no connection yet")
        return self._client

    @client.setter
    def client(self, client: KernelClient) -> None:
        self._client = client

    @property
    def alive(self) -> bool:
        """Whether the process lives and all channels are connected."""
        return self.has_client and self.death is None and not self.client.is_disconnected

    @property
    def label(self) -> str:
        """The kernel at the beginning of a message."""
        return f"The kernel {self.installed.name!r}" if self.installed else "The kernel"

    @property
    def has_ready_pipe(self) -> bool:
        """Whether the process is our launcher, which reports over a pipe when it is ready."""
        return self.installed is None

    @property
    def makes_checkpoints(self) -> bool:
        """Whether copies of the process can live on and become kernels."""
        return self.has_place_for_checkpoints and self.config.checkpoints != "off"

    @property
    def has_place_for_checkpoints(self) -> bool:
        """Whether the kernel and its place allow checkpoints."""
        return self.has_ready_pipe and not self.runtime.is_relayed and self.backend.keeps_checkpoints

    @property
    def can_go_back(self) -> bool:
        """Whether copies can take the place of the running process: not if another process started the container."""
        return self.provisioner is None or self.provisioner.can_go_back

    @property
    def mark(self) -> str:
        """The mark of the kernel's processes; empty without a process."""
        return "" if self.provisioner is None else self.provisioner.mark

    @property
    def uid(self) -> int:
        """The user id of the kernel."""
        return os.getuid() if self.backend.user is None else self.backend.user[0]

    @property
    def adoption_seconds(self) -> float:
        """How long the process waits for a new owner after its owner's death, in seconds; 0 without our launcher."""
        return self.backend.adoption_seconds if self.has_ready_pipe and not self.runtime.is_of_branch else 0.0

    async def record_exit(self, provisioner: KernelexecProvisioner, *, is_killed: bool = False) -> None:
        """Wait for the end of the process, read remaining messages, and record the death.

        A task from the launch on.
        """
        status = await provisioner.wait()
        # Before the death ends the executions: messages in the sockets' buffers outlive their sender.
        if self.has_client:
            await self.client.wait_drained()
        if status == UNKNOWN_STATUS:
            status, self.remark = 1, "How the kernel ended is unknown: the system has reported that to another process."
        self.set_death(Death.of(status, out_of_memory=not is_killed and provisioner.is_oom_killed))

    async def wait_exit(self, patience: float) -> bool:
        """Return whether the process, asked to exit, ends within ``patience`` seconds."""
        with anyio.move_on_after(patience):
            await self.died.wait()
        return self.death is not None

    async def wait_report(self) -> bool:
        """Return whether the process is reported dead. After its end, wait for the report within a bounded time."""
        with anyio.move_on_after(_REPORT_SECONDS):
            if self.death is None and self.provisioner is not None and await self.provisioner.poll() is not None:
                await self.died.wait()
        return self.death is not None

    def set_death(self, death: Death) -> None:
        """Record the death, once: end all executions and call ``on_death``."""
        if self.death is not None:  # a kill and the task of `record_exit` may both come here; the first report counts
            return
        self.death = death
        self.died.set()
        if self.has_client:
            # The crash text must arrive before the end: executions take none afterwards.
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

    def take_host(self) -> ReusableKernelHost | None:
        """Give away the reusable container; return None without a container, or if it was taken."""
        host, self._host = self._host, None
        return host

    async def keep_checkpoints(self) -> list[CheckpointSocket]:
        """Let the checkpoints and the private directory outlive the kernel; return the checkpoints, newest first."""
        self._checkpoints = self._checkpoints or await self.find_checkpoints()
        if self.provisioner is not None:
            self.provisioner.spared = tuple(self._checkpoints)
        return self._checkpoints

    async def find_checkpoints(self, only: int | None = None) -> list[CheckpointSocket]:
        """Return connections to the kernel's checkpoints, newest first; the caller closes them.

        Args:
            only: number of the only checkpoint to return; None returns all.
        """
        sockets: list[CheckpointSocket] = []
        numbers = list_checkpoints(self.runtime.path) if self.has_ready_pipe and self.can_go_back else []
        if only is not None:
            numbers = [only] if only in numbers else []
        try:
            with anyio.move_on_after(_CHECKPOINTS_SECONDS):
                for number in numbers[: self.checkpoints_max + 1]:  # the newest automatic one counts no more
                    with suppress(KernelConnectionFailed):
                        sockets.append(await CheckpointSocket.connect(self.runtime.path, number, uid=self.uid))
        except BaseException:
            for connected in sockets:
                connected.close()
            raise
        return sockets

    def make_branch(self, mark: str) -> ReusableKernelHost:
        """Create the private directory of a branch with this mark, and the provisioner of the branch's kernels.

        Raises:
            KernelConnectionFailed: there is no process.
            OSError: the directory cannot be created.
        """
        if self.provisioner is None:
            raise KernelConnectionFailed("it has ended")
        runtime = self.runtime.add_branch(self.backend.user)
        try:
            return ReusableKernelHost(self.provisioner.make_branch(mark), runtime)
        except BaseException:
            runtime.remove()
            raise

    def leave_checkpoints(self) -> None:
        """Close the connections to the checkpoints. Another kernel has taken them over, or they end with this kernel."""
        checkpoints, self._checkpoints = self._checkpoints, []
        for checkpoint in checkpoints:
            checkpoint.close()
        if self.provisioner is not None:
            self.provisioner.spared = ()

    async def kill(self) -> None:
        """Kill the process and all its descendants, and wait for their end.

        Afterwards ``take_host`` returns the container if another kernel can use it.
        """
        self.is_stopping = True
        await await_to_end(self._kill_once())  # a cancelled caller must leave no half-killed process behind

    async def _kill_once(self) -> None:
        async with self._killing:
            if not self._is_over:
                await self._kill()

    async def _kill(self) -> None:
        provisioner, restart = self.provisioner, not self._is_last
        if provisioner is not None and self.death is None:
            await provisioner.kill(restart=restart)
            await self.record_exit(provisioner, is_killed=True)
        if self.has_client:
            self.client.close()
        if provisioner is not None:
            self.provisioner = None
            await provisioner.cleanup(restart=restart)
            if self._checkpoints or provisioner.is_reusable:
                self._host = ReusableKernelHost(provisioner, self.runtime)
            elif restart and self._is_last:  # `stop` was called during the awaits above: now nothing may stay
                provisioner.spared = ()
                await provisioner.cleanup()
        numbers = {checkpoint.number for checkpoint in self._checkpoints}
        clear = partial(self.runtime.clear_for_checkpoint, numbers) if numbers else self.runtime.clear
        # A directory that cannot be cleared may hold sockets of the old kernel: the next one gets a new container instead.
        if self._host is not None and not await anyio.to_thread.run_sync(clear):
            await self._host.provisioner.cleanup()
            self._host = None
        if self._host is None:
            await anyio.to_thread.run_sync(self.runtime.remove)
        if self.adoption_seconds:
            remove_handover(self.runtime.session)
        self._is_over = True

    async def give_up(self) -> None:
        """End a process whose start failed; remove container and directory unless other checkpoints need them."""
        if self._is_last or not self.other_checkpoints:
            await self.stop(0.0)
            return
        self._checkpoints = list(self.other_checkpoints)
        if self.provisioner is not None:
            self.provisioner.spared = tuple(self._checkpoints)
        elif self._host is not None:
            self._host.runtime.put_owner_pipe(self.runtime.take_owner_pipe())
        await self.kill()

    async def stop(self, patience: float) -> bool:
        """End the kernel for good: by request within ``patience`` seconds, then by kill. Remove the container too.

        Return whether the request was not enough.
        """
        return await await_to_end(self._stop(patience))

    async def ask_exit(self, patience: float) -> bool:
        """Ask an idle kernel to exit, exit handlers included; return whether the kernel ends within ``patience`` seconds."""
        if self.alive and patience:
            self.client.send_nowait("shutdown_request", restart=False)
            await self.wait_exit(patience)
        return not self.alive

    async def _stop(self, patience: float) -> bool:
        is_cut = not await self.ask_exit(patience) and patience > 0
        self._is_last = True
        self.leave_checkpoints()
        await self.kill()
        if (host := self.take_host()) is not None:
            await host.remove()
        return is_cut
