"""The hook that writes ``<log_dir>/<session>/docker_container.log``: an event is in the file when the call returns."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from kernelexec.cells import ShellCell
from kernelexec.errors import InvalidConfig
from kernelexec.events import (
    CellAborted,
    CellExecuted,
    CellRefused,
    CellStarted,
    DisplayUpdated,
    Event,
    FilesTouched,
    KernelChanged,
    KernelContainer,
    MemoryHigh,
    OutputReceived,
    SessionAdopted,
    SessionClosed,
    SessionClosing,
    SessionEvent,
    SessionOpened,
    SessionReplayed,
    SnapshotTaken,
    TestsRun,
)
from kernelexec.records.log.file import LogFile
from kernelexec.records.log.lines import Mark, OutputThrottle, log_size, printable, quote_lines, quote_within
from kernelexec.results import Error, MemoryUse, Stream, output_text
from kernelexec.text import head_within

#: The name of the file, also where kernels are not in containers.
NAME = "docker_container.log"
#: Bounds in bytes: of the log and of the one before it, of a cell's source, of a reason or note.
LOG_BYTES, SOURCE_BYTES, REASON_BYTES = 64 * 1024 * 1024, 64 * 1024, 4096
#: How much output of ended cells is written between two cells, in bytes.
LATE_BYTES = 64 * 1024

logger = logging.getLogger("kernelexec")


class ContainerLog:
    """One session's log. A log that cannot be written is reported once, and fails no cell.

    Raises:
        InvalidConfig: there is something else in its place, or the session's cells could change it.
    """

    hears_output = True

    def __init__(self, log_dir: Path, session: str, workspace: Path, *, limit_bytes: int = LOG_BYTES) -> None:
        directory = log_dir.expanduser().resolve() / session
        if directory.is_relative_to(workspace):
            message = f"log_dir: {directory} lies in the workspace {workspace}, where cells can change it: choose another one."
            raise InvalidConfig(message)
        self.path = directory / NAME
        self._file = LogFile(self.path, limit_bytes=limit_bytes)
        self._session = session
        self._pid = os.getpid()
        self._running: dict[str, OutputThrottle] = {}
        self._late_left = LATE_BYTES
        self._missed = 0
        self._has_reported = False
        try:
            self._file.open()
        except OSError as exc:
            self._report(exc)

    def __call__(self, event: Event, /) -> None:
        """Write the lines of the event."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        self._write(f"{now}Z {self._pid}", event)
        if isinstance(event, SessionClosed):
            self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lines(self, time: str, event: Event) -> Iterator[str]:
        match event:
            case OutputReceived():
                yield from self._output(_about(time, event.execution_id), event)
            case CellStarted():
                self._begin(event.execution_id)
                yield from _start_lines(_about(time, event.execution_id), event)
            case CellExecuted() | CellAborted():
                yield from self._end_lines(_about(time, event.result.execution_id), event)
            case CellRefused():
                yield from _refusal_lines(f"{time} refused", event)
            case KernelChanged():
                yield from _kernel(time, event)
            case DisplayUpdated():
                pass
            case FilesTouched():
                names = " ".join((*event.paths, *event.refused))[:REASON_BYTES]
                yield f"{time} files, {event.operation}: {printable(names)}"
            case MemoryHigh():
                yield f"{time} {printable(str(MemoryUse(event.used_bytes, event.limit_bytes, biggest=event.biggest)))}"
            case SessionAdopted(execution_id=str() as running):
                self._begin(running)
                yield f"{time} session {_session(event)}"
                yield f"{_about(time, running)} goes on: its output so far comes again, execution {running}"
            case _:
                yield f"{time} session {_session(event)}"

    def _begin(self, execution_id: str) -> None:
        self._running[execution_id] = OutputThrottle()
        self._late_left = LATE_BYTES

    def _output(self, about: str, event: OutputReceived) -> Iterable[str]:
        output = event.output
        text = output.text if isinstance(output, Stream) else output_text((output,))
        is_error = isinstance(output, Error) or (isinstance(output, Stream) and output.name == "stderr")
        mark: Mark = "err" if is_error else "out"
        if (throttle := self._running.get(event.execution_id)) is not None:
            return throttle.lines(about, mark, text)
        room, self._late_left = self._late_left, self._late_left - log_size(text)
        if room <= 0:
            return ()
        if self._late_left > 0:
            return quote_lines(about, "late", text)
        return [
            *quote_lines(about, "late", head_within(text, room)),
            f"{about} left out: further late output, up to the next cell",
        ]

    def _end_lines(self, about: str, event: CellExecuted | CellAborted) -> Iterator[str]:
        result = event.result
        throttle = self._running.pop(result.execution_id, None)
        if isinstance(event, CellAborted):
            yield f"{about} never ran: {printable(' '.join(result.notes)[:REASON_BYTES])}"
            yield from quote_within(about, "in", event.cell.source, REASON_BYTES)
            return
        if throttle is not None:
            yield from throttle.rest(about)
        interrupted = f", interrupted by {result.interrupted}, ended by {result.ended_by}" if result.interrupted else ""
        cause = f", cause {result.cause}" if result.cause else ""
        yield (
            f"{about} ended: {result.status}, exit code {result.exit_code}, {result.timing.run:.3f} s, state {result.state}"
            f"{interrupted}{cause}"
        )
        if result.notes:
            yield from quote_within(about, "note", "\n".join(result.notes), REASON_BYTES)

    def _write(self, time: str, event: Event) -> None:
        content = "".join(f"{line}\n" for line in self._lines(time, event)).encode("utf-8", "backslashreplace")
        if not content:
            return
        if self._missed:
            content = f"{time} left out: {self._missed} events, which could not be written\n".encode() + content
        try:
            self._file.append(content)
            self._missed = 0
        except OSError as exc:
            self._missed += 1
            self._report(exc)

    def _report(self, exc: OSError) -> None:
        if not self._has_reported:
            self._has_reported = True
            details = {"session": self._session, "log": str(self.path), "reason": exc.strerror or str(exc)}
            logger.error("kernelexec.log_not_written", extra=details)


def check(log_dir: Path, workspaces: Path) -> None:
    """Refuse a directory that is unfit for logs, before anything runs; ``workspaces`` is where sessions work by default.

    Raises:
        InvalidConfig: the path is a file, lies in a file, or is where cells of sessions could change it.
    """
    path, workspace = log_dir.expanduser().absolute(), workspaces.expanduser().resolve()
    if path.resolve().is_relative_to(workspace):
        message = (
            f"log_dir: {path} lies in {workspace}, where sessions work and their cells can change it: "
            f"name a directory outside of it, such as {workspace.with_name('logs')}."
        )
        raise InvalidConfig(message)
    existing = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    if not existing.is_dir():
        message = f"log_dir: {existing} is no directory: choose another one."
        raise InvalidConfig(message)


def _about(time: str, execution_id: str) -> str:
    return f"{time} cell {execution_id[:8]}"


def _start_lines(about: str, event: CellStarted) -> Iterator[str]:
    cell = event.cell
    kind = cell.language
    if isinstance(cell, ShellCell):
        kind = "command" if cell.work_dir is None else f"command in {printable(cell.work_dir)}"
    yield f"{about} started: {kind}, kernel {event.kernel_epoch}, execution {event.execution_id}"
    yield from quote_within(about, "in", cell.source, SOURCE_BYTES)


def _refusal_lines(about: str, event: CellRefused) -> Iterator[str]:
    yield f"{about} {event.kind}: {printable(str(event.error)[:REASON_BYTES])}"
    source = event.source if isinstance(event.source, str) else f"({type(event.source).__name__})"
    yield from quote_within(about, "in", source, REASON_BYTES)


def _kernel(time: str, event: KernelChanged) -> Iterator[str]:
    language = "" if event.language == "python" else f" ({printable(event.language)})"
    about = f"{time} kernel {event.kernel_epoch}{language}"
    match event.change:
        case "started":
            again = " in place of the one before" if event.kernel_epoch > 1 else ""
            yield f"{about} started{again}: {_location(event.container)}"
        case "failed":
            yield f"{about} did not start"
            yield from quote_within(about, "note", event.cause or "", REASON_BYTES)
        case "died":
            yield f"{about} died: {event.cause}"


def _location(container: KernelContainer | None) -> str:
    if container is None:
        return "on this machine"
    mounts = ", ".join(f"{source} -> {target} ({'ro' if only else 'rw'})" for source, target, only in container.mounts)
    text = f"container {container.name} ({container.id}), image {container.image}, network {container.network_text}"
    return printable(f"{text}{', with sudo' if container.sudo else ''}, mounts {mounts or 'none'}")


def _session(event: SessionEvent) -> str:
    match event:
        case SessionOpened():
            text = f"opened: workspace {event.workspace}"
            text += "" if event.replays is None else f", which replays {event.replays}"
        case SessionAdopted():
            text = f"adopted from an owner that died: kernel {event.kernel_epoch} lives, {_location(event.container)}"
        case SessionReplayed():
            text = f"replayed {event.replay.source}: {len(event.replay.cells)} cells"
        case SnapshotTaken():
            text = f"snapshot {event.snapshot.snapshot_id}: {len(event.snapshot.variables)} variables"
        case TestsRun():
            text = f"tested: {event.report.summary}"
        case SessionClosing() | SessionClosed():
            text = "closing" if isinstance(event, SessionClosing) else "closed"
    return printable(text)
