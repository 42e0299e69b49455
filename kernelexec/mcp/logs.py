"""Log lines as JSON about calls, cells, kernels, sessions and errors of a server, and OpenTelemetry spans.

A line has ``time`` (UTC), ``level``, ``event``, the event's fields, and ``client`` for the caller. Code and output are only
in the sessions' journals.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from kernelexec import events
from kernelexec.adapters.tracing import Tracing
from kernelexec.cells import ShellCell
from kernelexec.errors import InvalidConfig
from kernelexec.text import clean

logger = logging.getLogger("kernelexec")

#: Form of a session's handle.
HANDLE = re.compile(r"ks-[0-9a-f]{32}", re.ASCII)
_TEXT_CHARS, _TARGET_CHARS = 2000, 200
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLinesFormatter(logging.Formatter):
    """Formatter of records as lines of JSON, with their extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage().removeprefix("kernelexec."),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS and value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-_TEXT_CHARS:]
        return json.dumps(clean(line), ensure_ascii=False, default=lambda value: str(value)[:_TEXT_CHARS])


@contextmanager
def log_to_file(path: Path | None) -> Iterator[None]:
    """Append the log to a file while the block runs, created again after log rotation; without a path do nothing.

    Raises:
        InvalidConfig: the file cannot be written.
    """
    if path is None:
        yield
        return
    try:
        # Created first, for this user only: the handler would create the file with the permissions of the umask.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as exc:
        raise InvalidConfig(f"--log-file {path} cannot be written: {exc.strerror}.") from exc
    handler.setFormatter(JsonLinesFormatter())
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
    """Log an event of a session, cell or kernel."""
    if not logger.isEnabledFor(logging.INFO):
        return
    match event:
        case events.CellStarted():
            fields: dict[str, Any] = {"execution_id": event.execution_id, "kernel_epoch": event.kernel_epoch}
            kind = "command" if isinstance(event.cell, ShellCell) else "code"
            _log("cell_started", event.session, kind=kind, code_chars=len(event.cell.source), timeout=event.timeout, **fields)
        case events.CellExecuted() | events.CellAborted():
            result = event.result
            fields = {name: getattr(result, name) for name in ("status", "state", "exit_code", "interrupted", "cause")}
            fields |= {"error": result.error and result.error.ename, "seconds": round(result.timing.run, 6)}
            fields |= {"queue_seconds": round(result.timing.queue, 6), "output_bytes": result.total_bytes}
            _log("cell_ended", event.session, execution_id=result.execution_id, **fields)
        case events.CellRefused():
            _log("cell_refused", event.session, kind=event.kind, error=type(event.error).__name__)
        case events.KernelChanged():
            container = event.container and event.container.name
            fields = {"kernel_epoch": event.kernel_epoch, "language": event.language, "container": container}
            _log(f"kernel_{event.change}", event.session, cause=event.cause, **fields)
        case events.MemoryHigh():
            _log("memory_high", event.session, used_bytes=event.used_bytes, limit_bytes=event.limit_bytes)
        case events.SessionOpened() | events.SessionAdopted():
            adopted = isinstance(event, events.SessionAdopted)
            _log("session_adopted" if adopted else "session_opened", event.session, workspace=str(event.workspace))
        case events.SessionClosed():
            _log("session_closed", event.session, **({"cut": ", ".join(event.cut)} if event.cut else {}))
        case events.FilesTouched():
            _log("files", event.session, operation=event.operation, paths=len(event.paths), refused=len(event.refused))


def log_call(method: str, target: str, outcome: str, seconds: float) -> None:
    """Log a client's call of a tool, prompt or resource."""
    if logger.isEnabledFor(logging.INFO):
        masked = HANDLE.sub("ks-...", target)[:_TARGET_CHARS]  # a handle gives access to its session
        fields = {"method": method, "target": masked, "outcome": outcome, "seconds": round(seconds, 6)}
        logger.info("kernelexec.call", extra={**fields, **get_current_client()})


def _log(event: str, session: str, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
    logger.info("kernelexec.%s", event, extra={"session": session, **fields, **get_current_client()})


def get_current_client() -> dict[str, str]:
    """Return the client of the current request, named as for quotas; empty for a server with a single client."""
    callers = sys.modules.get("kernelexec.mcp.callers")  # importing it takes a second; a server has imported it
    client_name = callers.CALLER.get().client if callers is not None else ""
    return {"client": client_name} if client_name else {}


def make_observers() -> list[events.Hook]:
    """Return the hooks of every server."""
    if importlib.util.find_spec("opentelemetry") is None:
        return [log_event]
    # Its spans are below those of the clients.
    return [
        log_event,
        Tracing(attributes=lambda: {f"kernelexec.{name}": value for name, value in get_current_client().items()}),
    ]
