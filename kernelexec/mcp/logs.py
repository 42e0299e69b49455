"""What a server does, one line of JSON for each thing that happens: calls, cells, kernels, sessions, and what went wrong.

A line has ``time`` (UTC), ``level``, ``event``, and what belongs to the event; ``client`` is who asked. Code and output are in
none of them: these are in the sessions' journals.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from kernelexec import events
from kernelexec.cells import ShellCell
from kernelexec.errors import InvalidConfig
from kernelexec.mcp.current_client import HANDLE, client
from kernelexec.text import clean

logger = logging.getLogger("kernelexec")

_TEXT_CHARS, _TARGET_CHARS = 2000, 200
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON, with all that it was given besides its text."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage().removeprefix("kernelexec."),
        }
        said |= {name: value for name, value in vars(record).items() if name not in _OWN and value is not None}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)[-_TEXT_CHARS:]
        return json.dumps(clean(said), ensure_ascii=False, default=lambda value: str(value)[:_TEXT_CHARS])


@contextmanager
def logged_to(path: Path | None) -> Iterator[None]:
    """Have all that is logged written to a file, at its end; one that was moved away is made anew. None changes nothing.

    Raises:
        InvalidConfig: it cannot be written.
    """
    if path is None:
        yield
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as exc:
        raise InvalidConfig(f"--log-file {path}: it cannot be written: {exc.strerror}.") from exc
    handler.setFormatter(JsonLines())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


def log_event(event: events.Event) -> None:
    """A hook: log what happens to sessions, their cells and kernels."""
    if not logger.isEnabledFor(logging.INFO):
        return
    match event:
        case events.CellStarted():
            about: dict[str, Any] = {"execution_id": event.execution_id, "kernel_epoch": event.kernel_epoch}
            kind = "command" if isinstance(event.cell, ShellCell) else "code"
            _log("cell_started", event.session, kind=kind, code_chars=len(event.cell.source), timeout=event.timeout, **about)
        case events.CellExecuted() | events.CellAborted():
            result = event.result
            about = {name: getattr(result, name) for name in ("status", "state", "exit_code", "interrupted", "cause")}
            about |= {"error": result.error and result.error.ename, "seconds": round(result.timing.run, 6)}
            about |= {"queue_seconds": round(result.timing.queue, 6), "output_bytes": result.total_bytes}
            _log("cell_ended", event.session, execution_id=result.execution_id, **about)
        case events.CellRefused():
            _log("cell_refused", event.session, kind=event.kind, error=type(event.error).__name__)
        case events.KernelChanged():
            container = event.container and event.container.name
            about = {"kernel_epoch": event.kernel_epoch, "language": event.language, "container": container}
            _log(f"kernel_{event.change}", event.session, cause=event.cause, **about)
        case events.MemoryHigh():
            _log("memory_high", event.session, used_bytes=event.used_bytes, limit_bytes=event.limit_bytes)
        case events.SessionOpened() | events.SessionAdopted():
            adopted = isinstance(event, events.SessionAdopted)
            _log("session_adopted" if adopted else "session_opened", event.session, workspace=str(event.workspace))
        case events.SessionClosed():
            _log("session_closed", event.session)
        case events.FilesTouched():
            _log("files", event.session, operation=event.operation, paths=len(event.paths), refused=len(event.refused))
        case _:
            pass


def log_call(method: str, target: str, outcome: str, seconds: float) -> None:
    """Log a call of a client's: of a tool, a prompt or a resource, by its name."""
    if logger.isEnabledFor(logging.INFO):
        shown = HANDLE.sub("ks-...", target)[:_TARGET_CHARS]  # who has a handle has its session
        about = {"method": method, "target": shown, "outcome": outcome, "seconds": round(seconds, 6)}
        logger.info("kernelexec.call", extra={**about, **client()})


def _log(what: str, session: str, **about: Any) -> None:  # noqa: ANN401 - what JSON can hold
    logger.info("kernelexec.%s", what, extra={"session": session, **about, **client()})
