"""The interface of our provisioners: jupyter_client's, and optional capabilities that the kernel driver calls."""

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
    """A shell command, and how its process differs from the kernel's."""

    command: str
    user: str
    env: Mapping[str, str] = field(repr=False)
    cwd: str


class RunningUserCommand(Protocol):
    """A started command. Its calls block: they are made in threads."""

    def transfer(self, stdin: bytes, take: Callable[[str, bytes], bool]) -> int:
        """Feed the standard input, pass on pieces of ``stdout`` and ``stderr`` until both have ended; return the exit code.

        A stream ends early once ``take`` returns False.
        """

    def kill(self) -> None:
        """End all processes of the command."""

    def disconnect(self) -> None:
        """End ``transfer``, whatever the command does."""


class KernelexecProvisioner(KernelProvisionerBase):
    """A jupyter_client provisioner with the capabilities of the kernel driver, each with a default.

    ``launch_kernel``, ``poll``, ``wait``, ``send_signal``, ``kill``, ``terminate`` and ``cleanup`` are jupyter_client's and
    have no default. The driver calls ``pre_launch``, ``launch_kernel`` and ``post_launch`` once for each start, keeps one call
    of ``wait`` running until the process has ended, and calls ``cleanup`` after that.
    """

    pid: int | None = None
    """Process id of the kernel or of its guard on this machine; ``Connector`` rejects ports that another process serves."""

    mark: str = ""
    """The mark of the kernel's processes; the session reads it to have a copy of another kernel take its place."""

    is_unreachable: bool = False
    """Whether the state of the process is unknown at the moment; the supervisor reads it when a connection is lost."""

    checkpoint: CheckpointSocket | None = None
    """The checkpoint from which ``launch_kernel`` forks the next kernel; ``KernelStarter`` sets it."""

    spared: Collection[CheckpointSocket] = ()
    """The checkpoints, whose processes ``kill`` and ``cleanup`` leave alone; ``KernelProcess`` sets it."""

    @property
    def can_go_back(self) -> bool:
        """Whether a copy of the running process can take its place; the session asks before it makes one or ends the kernel."""
        return True

    def make_branch(self, mark: str) -> KernelexecProvisioner:
        """Return the provisioner of a kernel with that mark, which is to be forked of this one's memory, in the same place.

        The session calls it to make a branch, if the kernel makes checkpoints.
        """
        raise NotImplementedError

    @property
    def container_info(self) -> KernelContainer | None:
        """Description of the kernel's container for hooks and results; ``KernelStarter`` reads it after a launch."""
        return None

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard of a kernel without our launcher; ``KernelStarter`` reads it once the kernel is connected.

        None means that the processes of the kernel cannot be seen from here.
        """
        return self.pid

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed for want of memory; ``KernelProcess`` reads it when ``wait`` has returned."""
        return False

    @property
    def is_reusable(self) -> bool:
        """Whether ``launch_kernel`` can start another kernel in the same container.

        ``KernelProcess`` reads it after ``cleanup(restart=True)``, and then keeps this provisioner for the next kernel.
        """
        return False

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory that all processes of the kernel may use together; ``Usage`` reads it for each cell. None means unknown."""
        return None

    def accepts_peer(self, peer: int, *, guarded: bool) -> bool:
        """Return whether a process that serves a unix socket belongs to the kernel; ``Connector`` calls it for each channel.

        ``guarded`` means that the kernel is not the launched process itself, but one of its descendants.
        """
        if guarded:
            return is_descendant(peer, self.pid or 0)
        return self.pid in (None, peer)

    def can_reuse(self, spec: KernelSpec) -> bool:  # noqa: ARG002 - of the interface
        """Return whether a kernel of that kernelspec can start here; ``KernelStarter`` calls it on a kept provisioner."""
        return False

    def on_ready(self) -> None:
        """Note that the kernel serves; ``Usage`` calls it once, before the first cell."""

    def on_memory_kills(self, kills: int) -> None:
        """Note how many other processes of the kernel were killed for want of memory; ``Usage`` calls it when they are more."""

    async def read_log(self) -> str | None:
        """Return the end of the kernel's own output; the driver calls it for error messages and for stacks.

        None means that this provisioner keeps no log: then the driver reads the file that it gave as stderr.
        """
        return None

    async def stats(self) -> Stats:
        """Return the use of the processes of the kernel, or raise ``EngineFailed``; ``Usage`` calls it for statistics."""
        return Stats("local", "idle", 0)

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running kernel, where None keeps one; ``Usage`` calls it for ``set_limits``.

        Raises:
            LimitRefused: the limits cannot be changed, and are as before.
            EngineUnavailable: it is unknown whether they have changed.
        """

    async def start_command(self, command: UserCommand) -> RunningUserCommand:
        """Start a command as another user than the kernel's; the runner of cells calls it where the kernel itself cannot.

        Raises:
            EngineFailed: the command cannot be started.
        """
        raise EngineRefused(f"Commands cannot run as the user {command.user} here.")

    async def rename(self, session: str, workspace: str) -> None:
        """Name the kernel's container after the session that takes it from the pool; ``Kernel`` calls it once, then."""
