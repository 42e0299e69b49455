"""The starts of kernels: anew, with a warm kernel of the pool, or from a checkpoint.

The way back to a checkpoint says which cells run again there, and which checkpoints count then.
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


@dataclass(slots=True)
class WayBack:
    """A requested way back to the checkpoint with a ``number``, and what has become of it."""

    number: int
    until: float = 0
    """The number of the cell at which the cells since the checkpoint run again no more."""
    change_files: Callable[[], Awaitable[CopiedFiles]] | None = None
    """Changes files when the processes of the state before have ended."""
    effect: str = ""
    """What there is if that fails, as the beginning of a sentence."""
    changed: CopiedFiles | None = None
    """The files that were changed."""
    repeated: RepeatedCells | None = None
    """The cells that have run again on it."""

    async def bring_files(self) -> KernelError | None:
        """Change files; return the error, which is raised once the copy of the kernel runs, if that fails."""
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
    """The execution id of the last one that has run again, or of the last one before the checkpoint."""
    count: int = 0
    obstacle: str = ""
    """Why the next one has not run again, as a clause; empty if there is no other one."""
    older_names: tuple[str, ...] = ()
    """The variables that may be older than they were, as far as the text of the other cells shows."""
    has_failed: bool = False
    """Whether the next one has run again and ended otherwise than before, so that its effects are there in part."""

    @property
    def undone(self) -> int:
        """The number of the first cell that has not run again."""
        return self.first + self.count


NO_REPEATED_CELLS = RepeatedCells(0, "")


class CellRepeater(Protocol):
    """Runs the cells since a checkpoint again, as far as that is safe."""

    def note_change(self) -> None:
        """Note that something else than a cell changes variables now."""

    def forget_state(self) -> None:
        """Note that a new kernel begins, without the variables of the one before."""

    async def can_begin(self, *, is_accused: bool) -> bool:
        """Return whether the first cell of a session can run again, in a new kernel."""

    async def repeat(self, kernel: Kernel, cell: int, after: str, until: float, *, is_accused: bool) -> RepeatedCells:
        """Run cells in a kernel that is a copy of a checkpoint before ``cell``, which the cell with the id ``after`` precedes.

        The first cell that is not repeated is the one with the number ``until``, or an earlier one that has an obstacle. If
        ``is_accused``, one of them may have ended the kernel, so that none runs again twice.
        """


class Lineage:
    """The checkpoints from which the present state has come, by their numbers, which grow with time.

    After a way back those of the state that was left are none of them.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        """The name of all states that begin with one fresh kernel: numbers of checkpoints are unique in them."""
        self._states = [(0, -1)]
        """The number of the first checkpoint of each state, and of the one that it has come from; the present state is last."""

    def has(self, number: int) -> bool:
        """Return whether a checkpoint is of the present state's past."""
        first, origin = self._states[-1]
        while number < first:
            if number > origin:
                return False
            first, origin = next(state for state in reversed(self._states) if state[0] <= origin)
        return True

    def go_to(self, number: int, newest: int) -> None:
        """Note that the state is that of a checkpoint; ``newest`` is the last one of the states before."""
        self._states.append((newest + 1, number))
