"""What a branch begins with: a checkpoint of another session's kernel, and what both sessions use together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelexec.kernel.process import ReusableKernelHost
from kernelexec.provisioning.runtime.checkpoint_socket import CheckpointSocket
from kernelexec.provisioning.runtime.locations import SessionDirectories

if TYPE_CHECKING:
    from kernelexec.workspace.workspace_copies import CopiedFiles

#: The number of the first checkpoint of a branch, which is where it branched off.
FIRST_CHECKPOINT = 1


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
