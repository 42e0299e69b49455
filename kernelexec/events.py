"""What observers are told, as frozen values, and the one-call protocol that they fulfil."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from kernelexec.cells import Cell
from kernelexec.errors import InvalidRequest, KernelexecError
from kernelexec.recorded_history import Past
from kernelexec.results import ExecutionResult, Holder, Output, Replay, Snapshot, TestReport


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session has its workspace; its first kernel is about to start."""

    session: str
    workspace: Path
    replays: str | None = None
    """The notebook or journal whose cells are about to be replayed in it."""


@dataclass(frozen=True, slots=True)
class InContainer:
    """The container that a kernel runs in."""

    name: str
    id: str
    image: str
    network: str
    mounts: tuple[tuple[str, str, bool], ...]
    """Of each directory that kernels see of this machine: where it is here, where it is there, whether it can only be read."""
    ports: tuple[int, ...] = ()
    """Where it is reached on 127.0.0.1, if unix sockets do not reach it."""
    sudo: bool = False
    """Whether code becomes root in it by ``sudo``."""

    @property
    def connected(self) -> str:
        """Its network, and whether ports lead in, for a message."""
        return f"{self.network}, with {len(self.ports)} ports open on 127.0.0.1" if self.ports else self.network


@dataclass(frozen=True, slots=True)
class SessionAdopted:
    """A session of an owner that died goes on under this one: its kernel lives, with all its state."""

    session: str
    workspace: Path
    kernel_epoch: int
    container: InContainer | None = None
    execution_id: str | None = None
    """The cell that runs in it, which that owner sent: its outputs follow, those so far included, then its result."""


@dataclass(frozen=True, slots=True)
class SessionReplayed:
    """What was to be replayed in a new session has been, as far as the report says."""

    session: str
    replay: Replay
    past: Past


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Variables of a session were saved."""

    session: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class TestsRun:
    """Code of a session was tested, apart from it."""

    __test__ = False  # pytest looks for classes of such a name

    session: str
    report: TestReport


@dataclass(frozen=True, slots=True)
class FilesTouched:
    """A file operation read, wrote or deleted files of a session; or was refused, with all that it named as it was."""

    session: str
    operation: Literal["read", "write", "delete"]
    paths: tuple[str, ...]
    """Relative to the workspace, or absolute as kernels see them."""
    refused: tuple[str, ...] = ()
    """Why something was not done, in a sentence each."""


@dataclass(frozen=True, slots=True)
class KernelChanged:
    """A kernel process came or went, or did not come up."""

    session: str
    kernel_epoch: int
    change: Literal["started", "died", "failed"]
    cause: str | None = None
    language: str = "python"
    container: InContainer | None = None


@dataclass(frozen=True, slots=True)
class CellRefused:
    """A cell was not taken: what was asked for makes no sense, or a bound was reached. Nothing ran."""

    session: str
    kind: Literal["code", "command"]
    source: object
    error: KernelexecError
    request_id: object = None


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A cell is about to be sent to its kernel."""

    session: str
    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class OutputHeard:
    """A running cell, or one that has ended, made an output. Told to hooks that ask for it only; see ``wants_output``."""

    session: str
    execution_id: str
    output: Output


@dataclass(frozen=True, slots=True)
class CellExecuted:
    """A cell has its result."""

    session: str
    cell: Cell
    result: ExecutionResult
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class CellAborted:
    """A cell that was taken never ran: it was cancelled while it waited, its session closed, or no kernel came up."""

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
class MemoryHigh:
    """A kernel uses 80 % of its memory or more. It is told once, and again when it had been less meanwhile."""

    session: str
    used_bytes: int
    limit_bytes: int
    biggest: tuple[Holder, ...]
    """The biggest variables, as far as they are known."""


@dataclass(frozen=True, slots=True)
class SessionClosing:
    """A session is to end: no cell begins any more, and the one that runs is ended."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session ended; its kernel is gone."""

    session: str


CellEvent = CellRefused | CellStarted | CellExecuted | CellAborted
OutputEvent = OutputHeard | DisplayUpdated
SessionEvent = SessionOpened | SessionAdopted | SessionReplayed | SnapshotTaken | TestsRun | SessionClosing | SessionClosed
Event = SessionEvent | FilesTouched | KernelChanged | MemoryHigh | CellEvent | OutputEvent


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a journal knows of a request: which execution it was, of what cell, and its result if it is known to have ended.

    ``here`` says whether it was sent in the life of the session that the journal is open for.
    """

    execution_id: str
    fingerprint: str
    result: ExecutionResult | None
    here: bool = False


@runtime_checkable
class Hook(Protocol):
    """An observer of sessions. It is called in the session's own turn: what it raises is logged, never the cell's problem."""

    def __call__(self, event: Event, /) -> None:
        """Take notice of one event."""


class Record(Hook, Protocol):
    """A hook that keeps a file. It only takes note when it is told; ``write`` and ``finish``, for a thread, do the work."""

    path: Path

    def write(self) -> None:
        """Write what was taken note of.

        Raises:
            OSError: it could not be written; it is tried again with the next.
        """

    def finish(self) -> None:
        """Write for the last time.

        Raises:
            OSError: see ``write``.
        """


class Ledger(Hook, Protocol):
    """A hook that keeps the journal: it has written what it was told when it returns, or says why not."""

    path: Path
    failure: str | None
    """Why the newest event is not recorded; None if it is."""
    was_left: bool
    """Whether who kept it before was killed, with the session and what its cells had made."""

    def secure(self) -> None:
        """Have what is written outlast a failure of the machine too. For a thread.

        Raises:
            OSError: it may not.
        """

    def look_up(self, request_id: str) -> Earlier | None:
        """What is known of a request. For a thread.

        Raises:
            Refused: another process keeps the journal, so that nobody here can know.
        """

    def close(self) -> None:
        """Let go of the file. For a thread."""


def wants_output(hook: Hook) -> bool:
    """Whether a hook asks, by ``hears_output = True``, to be told of every output as it comes: each of them costs a call."""
    return getattr(hook, "hears_output", False) is True


def checked(hooks: object) -> tuple[Hook, ...]:
    """The hooks, if each is what an event can be told to at once.

    Raises:
        InvalidRequest: one is not callable, or a coroutine function.
    """
    found = tuple(hooks) if isinstance(hooks, Iterable) else ()
    unfit = [hook for hook in found if not callable(hook) or inspect.iscoroutinefunction(hook)]
    if unfit or not isinstance(hooks, Iterable):
        message = (
            f"hooks={unfit or hooks!r:.200}: they are plain functions of one event, in a list; none is a coroutine function."
        )
        raise InvalidRequest(message)
    return found
