"""The starts of kernels: a new kernel, a warm kernel of the pool, or a copy of a checkpoint.

A way back to a checkpoint names the cells to run again and the checkpoints of the new state.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from anyio.abc import TaskGroup

from kernelexec.errors import KernelError, KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Backend

if TYPE_CHECKING:
    from kernelexec.workspace.workspace_copies import CopiedFiles


#: The seconds that a warm kernel may take to answer before a new kernel is started.
_ANSWER_SECONDS = 2.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class WarmKernel:
    """A warm kernel for a session, and the changes of the environment since its start; or notes about its absence."""

    kernel: Kernel | None = None
    environment_changes: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    async def claim(self, cwd: str, backend: Backend) -> Kernel | None:
        """Move the kernel to a directory, and send the secrets; end the kernel and return None if no answer comes."""
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
            # also when the caller is cancelled: the pool has given the kernel away, so nothing else would end it
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
            check_open()  # a session that closed during the start raises Closed, not the failure that its end caused
            if not remaining_tries:
                raise
            await backend.prepare(failure)
            check_open()
            if backend.python == python and not backend.is_transient(str(failure)):
                raise
        else:
            return kernel
    raise AssertionError


@dataclass(slots=True)
class WayBack:
    """A requested way back to the checkpoint with a ``number``, and what has become of it."""

    number: int
    until: float = 0
    """The number of the first cell not to run again after the checkpoint."""
    change_files: Callable[[], Awaitable[CopiedFiles]] | None = None
    """Changes files once the processes of the previous state have ended."""
    effect: str = ""
    """The effect of a failed change, as the beginning of a sentence."""
    changed: CopiedFiles | None = None
    """The changed files."""
    repeated: RepeatedCells | None = None
    """The cells since the checkpoint, as far as they have run again."""

    async def bring_files(self) -> KernelError | None:
        """Change files; return the error of a failed change, for the caller to raise once the kernel's copy runs."""
        if self.change_files is not None:
            try:
                self.changed = await self.change_files()
            except OSError as exc:
                return KernelError(explain_failure(self.effect, exc))
        return None


def explain_failure(effect: str, exc: OSError) -> str:
    """Return a sentence on a failed copy of files."""
    return f"{effect}: {exc.filename or 'the workspace'}: {exc.strerror}."


@dataclass(frozen=True, slots=True)
class RepeatedCells:
    """The cells since a checkpoint of which the first ones have run again, or may."""

    first: int
    """The number of the first cell since the checkpoint."""
    after: str
    """The execution id of the last repeated cell, or else of the last cell before the checkpoint."""
    count: int = 0
    obstacle: str = ""
    """The reason for not running the next cell again, as a clause; empty if no cell is left."""
    older_names: tuple[str, ...] = ()
    """The variables with possibly older values, according to the text of the cells that did not run again."""
    has_failed: bool = False
    """Whether the next cell has run again and ended differently, which leaves part of its effects."""

    @property
    def undone(self) -> int:
        """The number of the first cell that has not run again."""
        return self.first + self.count


NO_REPEATED_CELLS = RepeatedCells(0, "")


class CellRepeater(Protocol):
    """A repeater of the cells since a checkpoint, up to the first unsafe cell."""

    def note_change(self) -> None:
        """Note a change of variables from outside of cells."""

    def forget_state(self) -> None:
        """Note the start of a new kernel without the previous variables."""

    async def can_begin(self, *, is_accused: bool) -> bool:
        """Return whether the first cell of a session can run again, in a new kernel."""

    async def repeat(self, kernel: Kernel, cell: int, after: str, until: float, *, is_accused: bool) -> RepeatedCells:
        """Run cells in a copy of a checkpoint, from the number ``cell`` on; the cell with the id ``after`` precedes them.

        Stop before the cell with the number ``until``, or before an earlier cell with an obstacle. If ``is_accused``, a cell
        among them may have ended the kernel, so no cell runs again twice.
        """


class Lineage:
    """The numbers of the checkpoints in the present state's past. Numbers grow with time.

    A way back removes the checkpoints of the abandoned state.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        """The name of all states since the start of a fresh kernel. Checkpoint numbers are unique under a name."""
        # Checkpoints 1 and 2, back to 1, then 3 and 4: [(0, -1), (3, 1)]. Checkpoint 2 is above the origin 1 and below the
        # first number 3, so it belongs to the abandoned state.
        self._states = [(0, -1)]
        """The first checkpoint number of each state and the number of its origin; the present state is last."""

    def has(self, number: int) -> bool:
        """Return whether a checkpoint is in the present state's past."""
        first, origin = self._states[-1]
        while number < first:  # the checkpoint is older than this state: follow the states back to their origins
            if number > origin:
                return False
            first, origin = next(state for state in reversed(self._states) if state[0] <= origin)
        return True

    def go_to(self, number: int, newest: int) -> None:
        """Note a way back to a checkpoint; ``newest`` is the last checkpoint number in use before."""
        self._states.append((newest + 1, number))
