"""The cell that was running in a session when its owner died, from its journal."""

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

#: The timeout of a running cell whose record names none, in seconds.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class RunningCell:
    """A cell that was sent to a kernel, and whose end is not recorded."""

    execution_id: str
    cell: Cell
    kernel_epoch: int
    request_id: str | None
    timeout: float
    """The timeout from its start, in seconds."""
    began: float
    """The time when it was sent, in seconds of ``time.monotonic``."""


def running_cell(path: Path) -> RunningCell | None:
    """Return the cell that is running in the newest life of a session, if any. For a thread: a journal may be long."""
    running: dict[str, Any] | None = None
    for fields in read(path):
        match fields.get("event"):
            case "opened" | "closed":
                running = None
            case "started":
                running = fields
            case "finished" | "aborted" if running and running.get("execution_id") == fields.get("execution_id"):
                running = None
    with suppress(LookupError, TypeError, ValueError, InvalidCode):
        return None if running is None else _restore_running(running)
    return None


def _restore_running(fields: dict[str, Any]) -> RunningCell | None:
    """Return the cell of a record; None if it cannot be restored."""
    timeout, epoch, request_id, execution_id = (
        fields.get(name) for name in ("timeout", "kernel_epoch", "request_id", "execution_id")
    )
    cell = cells.from_record(fields)
    if not isinstance(execution_id, str) or not isinstance(epoch, int) or cells.source_digest(cell) != fields["sha256"]:
        return None
    if request_id is not None and (not isinstance(request_id, str) or cells.fingerprint(cell) != fields["fingerprint"]):
        return None
    elapsed = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(fields["time"])).total_seconds())
    budget = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else _TIMEOUT
    return RunningCell(execution_id, cell, epoch, request_id, budget, time.monotonic() - elapsed)
