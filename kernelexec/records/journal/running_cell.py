"""The cell that ran in a session when its owner died, as the journal tells of it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelexec import cells
from kernelexec.cells import Cell
from kernelexec.errors import InvalidCode
from kernelexec.records.journal.reader import read

#: What cells that were begun before timeouts were recorded may take, in seconds.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Flight:
    """A cell that was sent to a kernel, and of whose end nothing is recorded."""

    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None
    timeout: float
    """How long it may run from its start, in seconds."""
    began: float
    """When it was sent, in seconds of ``time.monotonic``."""


def in_flight(path: Path) -> Flight | None:
    """The cell that ran in the newest life of a session, if one did. For a thread: a journal may be long."""
    running: dict[str, Any] | None = None
    for said in read(path):
        match said.get("event"):
            case "opened" | "closed":
                running = None
            case "started":
                running = said
            case "finished" | "aborted" if running and running.get("execution_id") == said.get("execution_id"):
                running = None
    with suppress(LookupError, TypeError, ValueError, InvalidCode):
        return None if running is None else _flight(running)
    return None


def _flight(said: dict[str, Any]) -> Flight | None:
    """A record of a beginning; None where the cell cannot be made again as it was."""
    timeout, epoch, request_id, execution_id = (
        said.get(name) for name in ("timeout", "kernel_epoch", "request_id", "execution_id")
    )
    cell = cells.recorded(said)
    if not isinstance(execution_id, str) or not isinstance(epoch, int) or cells.digest(cell) != said["sha256"]:
        return None
    if request_id is not None and (not isinstance(request_id, str) or cells.fingerprint(cell) != said["fingerprint"]):
        return None
    elapsed = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(said["time"])).total_seconds())
    budget = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else _TIMEOUT
    return Flight(execution_id, cell, epoch, request_id, budget, time.monotonic() - elapsed)
