"""What a kernel begins with: a warm kernel of the pool, the checkpoint of another session's kernel, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio.abc import TaskGroup

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.kernel.process import ReusableKernelHost
from kernelexec.provisioning import Backend
from kernelexec.provisioning.runtime.owned_directory import SessionDirectories
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket

if TYPE_CHECKING:
    from kernelexec.workspace.workspace_copies import CopiedFiles


#: The number of the first checkpoint of a branch, which is where it branched off.
FIRST_CHECKPOINT = 1
#: The seconds that a warm kernel may take to answer before a new kernel is started.
_ANSWER_SECONDS = 2.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class BranchFamily:
    """What a session and its branches share."""

    directories: SessionDirectories
    """Those of the session, in which the kernels of all have their private directories."""
    workspace: Path
    """The workspace of the session, in which the branches have theirs."""


@dataclass(frozen=True, slots=True)
class BranchStart:
    """The beginning of a branch."""

    parent: str
    """The name of the session of which it is a branch."""
    host: ReusableKernelHost
    uid: int
    """The user id of its kernel."""
    copy_options: Mapping[str, Any]
    """Launch options of its first kernel."""
    family: BranchFamily
    workspace: Path
    within: Path
    """The workspace that contains this one, or the same."""
    files: CopiedFiles | None
    """The files that were copied; None if the workspace is the parent's."""
    notebook: Path | None
    """The copy of the parent's notebook, if there is one."""
    temporary: Path | None
    """Its directory for temporary files, if it has one of its own."""
    after: str
    """The execution id of the parent's last cell before."""
    cell: int
    """The execution count of its first cell."""
    notes: tuple[str, ...] = ()
    """Notes for its first result."""

    async def connect(self) -> CheckpointSocket:
        """Return a connection to its first checkpoint.

        Raises:
            KernelConnectionFailed: it is gone.
        """
        return await CheckpointSocket.connect(self.host.runtime.path, FIRST_CHECKPOINT, uid=self.uid)


@dataclass(frozen=True, slots=True)
class WarmKernel:
    """A warm kernel for a session, and the changes of the environment since its start; or notes about its absence."""

    kernel: Kernel | None = None
    environment_changes: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    async def claim(self, cwd: str, backend: Backend) -> Kernel | None:
        """Move the kernel to a directory, and send it the secrets; end it and return None if it does not answer."""
        if self.kernel is None:
            return None
        has_moved = False
        try:
            changes = self.environment_changes
            if backend.secrets is not None:
                changes = {**changes, **await backend.secrets.read()}
                self.kernel.mask(backend.secrets)
            has_moved = await self.kernel.client.enter(cwd, changes, patience=_ANSWER_SECONDS)
        finally:
            if not has_moved:
                await self.kernel.stop(0.0)
        return self.kernel if has_moved else None


NO_WARM_KERNEL = WarmKernel()


async def start_with_retry(
    make_kernel: Callable[[], Kernel], backend: Backend, tasks: TaskGroup, check_open: Callable[[], None]
) -> Kernel:
    """Start a kernel; retry twice if the backend's Python has changed meanwhile, or the failure is transient."""
    await backend.prepare()
    check_open()
    for remaining_tries in reversed(range(_TRIES)):
        python, kernel = backend.python, make_kernel()
        try:
            await kernel.start(tasks)
        except KernelStartFailed as failure:
            check_open()
            if not remaining_tries:
                raise
            await backend.prepare(failure)
            check_open()
            if backend.python == python and not backend.is_transient(str(failure)):
                raise
        else:
            return kernel
    raise AssertionError
