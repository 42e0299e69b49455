"""What observers are told, as frozen values, and the one-call protocol that they fulfil."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from kernelexec.cells import Cell
from kernelexec.results import ExecutionResult


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session has its workspace; its first kernel is about to start."""

    session: str


@dataclass(frozen=True, slots=True)
class KernelChanged:
    """A kernel process came or went."""

    session: str
    kernel_epoch: int
    change: Literal["started", "died", "killed", "restarted"]
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CellExecuted:
    """A cell has its result."""

    session: str
    cell: Cell
    result: ExecutionResult


@dataclass(frozen=True, slots=True)
class DisplayUpdated:
    """A display of an earlier cell has new content."""

    session: str
    display_id: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session ended; its kernel is gone."""

    session: str


Event = SessionOpened | KernelChanged | CellExecuted | DisplayUpdated | SessionClosed


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
