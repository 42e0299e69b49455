"""The events of sessions, as frozen values, and the protocols of the hooks that receive them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from kernelexec.cells import Cell
from kernelexec.errors import InvalidRequest, KernelexecError
from kernelexec.results import ExecutionResult, LargeVariable, Output, Replay, Snapshot, TestReport

if TYPE_CHECKING:
    from kernelexec.rules.recorded_history import History


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Where a branch began in another session."""

    session: str
    """The other session's name."""
    after: str
    """The execution id of the other session's last cell before; empty without a cell."""
    journal: Path | None = None
    """The other session's journal."""


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session was opened: the workspace exists, and the first kernel is about to start."""

    session: str
    workspace: Path
    replays: str | None = None
    """The notebook or journal that the session is about to replay."""
    branch: BranchPoint | None = None
    """Where the session began in another session; the first kernel is a copy of the other's kernel."""


@dataclass(frozen=True, slots=True)
class KernelContainer:
    """The container of a kernel."""

    name: str
    id: str
    image: str
    network: str
    mounts: tuple[tuple[str, str, bool], ...]
    """The mounted directories of this machine: path here, path in the container, whether the mount is read-only."""
    sudo: bool = False
    """Whether code can become root in the container by ``sudo``."""


@dataclass(frozen=True, slots=True)
class SessionAdopted:
    """A session of a dead owner continues in this process: the kernel is alive, with all state."""

    session: str
    workspace: Path
    kernel_epoch: int
    container: KernelContainer | None = None
    execution_id: str | None = None
    """The dead owner's running cell: all outputs follow, then the result."""


@dataclass(frozen=True, slots=True)
class SessionReplayed:
    """A replay in a new session has ended; the report says how far the replay came."""

    session: str
    replay: Replay
    past: History


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of a session's variables was saved."""

    session: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TestsRun:
    """Test cases of a session's code were run, outside of the session's kernel."""

    __test__ = False  # pytest looks for classes of such a name

    session: str
    report: TestReport


@dataclass(frozen=True, slots=True)
class FilesTouched:
    """A file operation read, wrote or deleted files of a session, or was refused and changed nothing."""

    session: str
    operation: Literal["read", "write", "delete"]
    paths: tuple[str, ...]
    """Relative to the workspace, or absolute as kernels see them."""
    refused: tuple[str, ...] = ()
    """The reasons of refusals, a sentence each."""


@dataclass(frozen=True, slots=True)
class KernelChanged:
    """A kernel process started, died, or failed to start."""

    session: str
    kernel_epoch: int
    change: Literal["started", "died", "failed"]
    cause: str | None = None
    language: str = "python"
    container: KernelContainer | None = None


@dataclass(frozen=True, slots=True)
class StateRestored:
    """The Python kernel is back at a checkpoint, on request or after a death; see ``CellLineage`` for what counts."""

    session: str
    kernel_epoch: int
    checkpoint: int
    """The checkpoint's number; 0 if all cells have run again in a new kernel."""
    after: str
    """The execution id of the last cell before the checkpoint, as reported by the checkpoint's process, or of the last repeated
    cell; empty without a cell."""


@dataclass(frozen=True, slots=True)
class BranchPromoted:
    """A branch is about to replace the parent session: the branch's cells follow the parent's cells until the branch point."""

    session: str
    branch: str
    """The name of the branch."""
    after: str
    """The execution id of the session's last cell before the branch began; empty without a cell."""
    journal: Path | None = None
    """The branch's journal."""


@dataclass(frozen=True, slots=True)
class CellRefused:
    """A cell was refused: the request is invalid, or a limit was reached. Nothing ran."""

    session: str
    kind: Literal["code", "command"]
    source: object
    error: KernelexecError
    request_id: object = None


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A cell is about to be sent to the kernel."""

    session: str
    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class OutputReceived:
    """An output of a cell arrived, during the run or late. Only some hooks receive this event; see ``wants_output``."""

    session: str
    execution_id: str
    output: Output


@dataclass(frozen=True, slots=True)
class RecordedOutputs:
    """The outputs of a cell for notebooks only, not for the result: displays without cuts, and the state of widgets.

    ``widgets`` is a notebook's metadata of this name; ``captured`` has the outputs of output widgets by their models.
    """

    outputs: tuple[Output, ...]
    widgets: Mapping[str, Any]
    captured: Mapping[str, tuple[Output, ...]]


@dataclass(frozen=True, slots=True)
class CellExecuted:
    """A cell has a result. ``recorded`` is None if a notebook has the same outputs."""

    session: str
    cell: Cell
    result: ExecutionResult
    request_id: str | None = None
    recorded: RecordedOutputs | None = None


@dataclass(frozen=True, slots=True)
class CellAborted:
    """A queued cell never ran: the cell was cancelled, the session was closed, or no kernel started."""

    session: str
    cell: Cell
    result: ExecutionResult
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class DisplayUpdated:
    """A display of an earlier cell has new content."""

    session: str
    display_id: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LateOutputReported:
    """New output of an ended cell: since the end, or since the last such event. Notebooks show this output below the cell."""

    session: str
    execution_id: str
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class MemoryHigh:
    """A kernel uses 80 % of the memory or more. The event comes once, and again after the use had dropped below."""

    session: str
    used_bytes: int
    limit_bytes: int
    biggest: tuple[LargeVariable, ...]
    """The biggest known variables."""


@dataclass(frozen=True, slots=True)
class SessionClosing:
    """A session is about to end: no further cell starts, and the running cell is ended.

    ``names`` are the first variables of the Python kernel; a later session of this name reports them as gone.
    """

    session: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session ended; the kernel is gone."""

    session: str
    cut: tuple[str, ...] = ()
    """The languages of idle kernels that were killed: threads or exit handlers had not ended after ``budgets.grace``."""


CellEvent = CellRefused | CellStarted | CellExecuted | CellAborted
OutputEvent = OutputReceived | DisplayUpdated | LateOutputReported
SessionEvent = SessionOpened | SessionAdopted | SessionReplayed | SnapshotTaken | TestsRun | SessionClosing | SessionClosed
KernelEvent = KernelChanged | StateRestored | MemoryHigh
Event = SessionEvent | BranchPromoted | FilesTouched | KernelEvent | CellEvent | OutputEvent


@runtime_checkable
class Hook(Protocol):
    """An observer of sessions. The session calls it in its own task; exceptions are logged and do not affect the cell."""

    def __call__(self, event: Event, /) -> None:
        """Handle an event."""


def wants_output(hook: Hook) -> bool:
    """Return whether a hook has ``hears_output = True`` and receives each output on arrival, which costs a call per output."""
    return getattr(hook, "hears_output", False) is True


def check_hooks(hooks: object) -> tuple[Hook, ...]:
    """Return the hooks as a tuple.

    Raises:
        InvalidRequest: a hook is not callable, or is a coroutine function.
    """
    observers = tuple(hooks) if isinstance(hooks, Iterable) else ()
    # A coroutine function would only be called, never awaited: its hook would see nothing, without an error.
    unfit = [hook for hook in observers if not callable(hook) or inspect.iscoroutinefunction(hook)]
    if unfit or not isinstance(hooks, Iterable):
        message = (
            f"hooks={unfit or hooks!r:.200}: must be a list of plain functions of one event; a coroutine function is not one."
        )
        raise InvalidRequest(message)
    return observers
