"""The interface of our provisioners: jupyter_client's methods, and optional capabilities for the kernel driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jupyter_client.kernelspec import KernelSpec as KernelSpec  # noqa: PLC0414 - a name of this package
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelexec.errors import EngineRefused
from kernelexec.events import KernelContainer
from kernelexec.provisioning.runtime.processes import is_descendant
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket
from kernelexec.results import Stats


@dataclass(frozen=True, slots=True)
class UserCommand:
    """A shell command, with the account, variables and directory of the process."""

    command: str
    user: str
    env: Mapping[str, str] = field(repr=False)
    cwd: str


class RunningUserCommand(Protocol):
    """A started command. All methods block, so callers use threads."""

    def transfer(self, stdin: bytes, take: Callable[[str, bytes], bool]) -> int:
        """Feed the standard input, pass pieces of ``stdout`` and ``stderr`` to ``take``, and return the exit code.

        Returns once both streams have ended; a stream ends early if ``take`` returns False.
        """

    def kill(self) -> None:
        """End all processes of the command."""

    def disconnect(self) -> None:
        """End ``transfer``, also while the command goes on."""


class KernelexecProvisioner(KernelProvisionerBase):
    """A jupyter_client provisioner with capabilities for the kernel driver, each with a default.

    ``launch_kernel``, ``poll``, ``wait``, ``send_signal``, ``kill``, ``terminate`` and ``cleanup`` are jupyter_client's and
    have no default. The driver calls ``pre_launch``, ``launch_kernel`` and ``post_launch`` once for each start. A call of
    ``wait`` runs until the end of the process; ``cleanup`` follows.
    """

    pid: int | None = None
    """Process id of the kernel or of its guard on this machine; ``Connector`` rejects ports that another process serves."""

    mark: str = ""
    """The mark of the kernel's processes; the session needs the mark to replace a kernel by a copy of another kernel."""

    is_unreachable: bool = False
    """Whether the state of the process is unknown at the moment; the supervisor asks when a connection is lost."""

    checkpoint: CheckpointSocket | None = None
    """The checkpoint from which ``launch_kernel`` forks the next kernel; set by ``KernelStarter``."""

    spared: Collection[CheckpointSocket] = ()
    """The checkpoints whose processes ``kill`` and ``cleanup`` leave alone; set by ``KernelProcess``."""

    @property
    def can_go_back(self) -> bool:
        """Whether a copy can replace the running process; the session asks before copying or ending the kernel."""
        return True

    def make_branch(self, mark: str) -> KernelexecProvisioner:
        """Return the provisioner of a branch: a kernel with that mark, forked from this kernel's memory in the same place.

        Called by the session, if the kernel makes checkpoints.
        """
        raise NotImplementedError

    @property
    def container_info(self) -> KernelContainer | None:
        """Description of the kernel's container for hooks and results; read by ``KernelStarter`` after a launch."""
        return None

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard of a kernel without our launcher; read by ``KernelStarter`` once the kernel is connected.

        None if the processes of the kernel are not visible from here.
        """
        return self.pid

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed for want of memory; read by ``KernelProcess`` when ``wait`` has returned."""
        return False

    @property
    def is_reusable(self) -> bool:
        """Whether ``launch_kernel`` can start another kernel in the same container.

        Read by ``KernelProcess`` after ``cleanup(restart=True)``; if True, this provisioner serves the next kernel too.
        """
        return False

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory limit of all processes of the kernel together, read by ``Usage`` for each cell; None if unknown."""
        return None

    def accepts_peer(self, peer: int, *, guarded: bool) -> bool:
        """Return whether the server of a unix socket belongs to the kernel; called by ``Connector`` for each channel.

        ``guarded`` is True if the kernel is a descendant of the launched process, not that process itself.
        """
        if guarded:  # the guard's child may be a script that starts the kernel
            return is_descendant(peer, self.pid or 0)
        return self.pid in (None, peer)

    def can_reuse(self, spec: KernelSpec) -> bool:  # noqa: ARG002 - of the interface
        """Return whether a kernel of that kernelspec can start here; called by ``KernelStarter`` on a kept provisioner."""
        return False

    def on_ready(self) -> None:
        """Note the readiness of the kernel; called by ``Usage`` once, before the first cell."""

    def on_memory_kills(self, kills: int) -> None:
        """Note how many other processes of the kernel were killed for want of memory; called by ``Usage`` at each increase."""

    async def read_log(self) -> str | None:
        """Return the end of the kernel's own output, which the driver needs for error messages and stacks.

        None if this provisioner keeps no log: the driver then reads the kernel's stderr file.
        """
        return None

    async def stats(self) -> Stats:
        """Return the resource usage of the kernel's processes, or raise ``EngineFailed``; called by ``Usage``."""
        return Stats("local", "idle", 0)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running kernel, called by ``Usage`` for ``set_limits``; None keeps the old value.

        Raises:
            LimitRefused: the limits cannot be changed, and are as before.
            EngineUnavailable: the limits may have changed or not.
        """

    async def start_command(self, command: UserCommand) -> RunningUserCommand:
        """Start a command as another user than the kernel's; called by the runner of cells where the kernel itself cannot.

        Raises:
            EngineFailed: the command cannot be started.
        """
        raise EngineRefused(f"Commands cannot run as the user {command.user} here.")

    async def rename(self, session: str, workspace: str) -> None:
        """Name a pooled kernel's container after the session; called once by ``Kernel`` when the session takes the kernel."""
