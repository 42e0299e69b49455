"""The hook that keeps ``<log_dir>/<session>/docker_container.log``: what it is told is in the file when the call returns."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from kernelexec.cells import Cell, ShellCell
from kernelexec.errors import InvalidConfig
from kernelexec.events import (
    CellAborted,
    CellExecuted,
    CellRefused,
    CellStarted,
    DisplayUpdated,
    Event,
    FilesTouched,
    InContainer,
    KernelChanged,
    MemoryHigh,
    OutputHeard,
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
from kernelexec.records.log.lines import bounded, cost, now, plain, quoted, said
from kernelexec.records.log.throttle import Flow
from kernelexec.results import ExecutionResult, MemoryUse
from kernelexec.text import head_of

#: The name of the file, also where no container is.
NAME = "docker_container.log"
#: What the log and the one put aside may each hold; what is written of a cell's source, of a reason, of a note; in bytes.
LOG_BYTES, SOURCE_BYTES, REASON_BYTES = 64 * 1024 * 1024, 64 * 1024, 4096
#: How much output of cells that have ended is written between two cells, in bytes.
LATE_BYTES = 64 * 1024

logger = logging.getLogger("kernelexec")


class ContainerLog:
    """One session's log. A log that cannot be written is told of once, and is no cell's problem.

    Raises:
        InvalidConfig: something else is in its place, or it is where the session's cells could change it.
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
        self._flows: dict[str, Flow] = {}
        self._late_left = LATE_BYTES
        self._missed = 0
        self._told = False
        try:
            self._file.open()
        except OSError as exc:
            self._fail(exc)

    def __call__(self, event: Event, /) -> None:
        """Write what is to be said of the event."""
        time = now(self._pid)
        self._write(time, self._lines(time, event))
        if isinstance(event, SessionClosed):
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _lines(self, time: str, event: Event) -> Iterable[str]:
        match event:
            case OutputHeard():
                yield from self._output(time, event)
            case CellStarted():
                yield from self._started(time, event)
            case CellExecuted():
                about = _about(time, event.result.execution_id)
                flow = self._flows.pop(event.result.execution_id, None)
                yield from flow.rest(about) if flow else ()
                yield from _ended(about, event.result)
            case CellAborted():
                self._flows.pop(event.result.execution_id, None)
                about = _about(time, event.result.execution_id)
                yield f"{about} never ran: {plain(' '.join(event.result.notes)[:REASON_BYTES])}"
                yield from bounded(about, "in", event.cell.source, REASON_BYTES)
            case CellRefused():
                yield f"{time} refused {event.kind}: {plain(str(event.error)[:REASON_BYTES])}"
                source = event.source if isinstance(event.source, str) else f"({type(event.source).__name__})"
                yield from bounded(f"{time} refused", "in", source, REASON_BYTES)
            case KernelChanged():
                yield from _kernel(time, event)
            case DisplayUpdated():
                pass
            case MemoryHigh() | FilesTouched():
                yield f"{time} {plain(_said_of(event))}"
            case SessionAdopted(execution_id=str() as running):
                yield f"{time} session {_session(event)}"
                self._flow(running)
                yield f"{_about(time, running)} goes on: its output so far comes again, execution {running}"
            case _:
                yield f"{time} session {_session(event)}"

    def _flow(self, execution_id: str) -> None:
        self._flows[execution_id] = Flow()
        self._late_left = LATE_BYTES

    def _started(self, time: str, event: CellStarted) -> Iterable[str]:
        self._flow(event.execution_id)
        about = _about(time, event.execution_id)
        yield f"{about} started: {_kind(event.cell)}, kernel {event.kernel_epoch}, execution {event.execution_id}"
        yield from bounded(about, "in", event.cell.source, SOURCE_BYTES)

    def _output(self, time: str, event: OutputHeard) -> Iterable[str]:
        mark, text = said(event.output)
        about = _about(time, event.execution_id)
        flow = self._flows.get(event.execution_id)
        if flow is not None:
            return flow.lines(about, mark, text)
        room, self._late_left = self._late_left, self._late_left - cost(text)
        if room <= 0:
            return ()
        if self._late_left > 0:
            return quoted(about, "late", text)
        return [*quoted(about, "late", head_of(text, room)), f"{about} left out: further late output, up to the next cell"]

    def _write(self, time: str, lines: Iterable[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        if not content:
            return
        if self._missed:
            content = f"{time} left out: {self._missed} events, which could not be written\n".encode() + content
        try:
            self._file.append(content)
            self._missed = 0
        except OSError as exc:
            self._missed += 1
            self._fail(exc)

    def _fail(self, exc: OSError) -> None:
        if not self._told:
            self._told = True
            reason = exc.strerror or str(exc)
            logger.error(
                "kernelexec.log_not_written", extra={"session": self._session, "log": str(self.path), "reason": reason}
            )


def check(log_dir: Path, workspaces: Path) -> None:
    """Refuse what can be no directory for logs, before anything runs; ``workspaces`` is where sessions work by default.

    Raises:
        InvalidConfig: it is a file, would be in one, or is where sessions' cells could change it.
    """
    path, place = log_dir.expanduser().absolute(), workspaces.expanduser().resolve()
    if path.resolve().is_relative_to(place):
        message = (
            f"log_dir: {path} lies in {place}, where sessions work and their cells can change it: "
            f"name a directory outside of it, such as {place.with_name('logs')}."
        )
        raise InvalidConfig(message)
    for found in (path, *path.parents):
        if os.path.lexists(found):
            if not found.is_dir():
                message = f"log_dir: {found} is no directory: choose another one."
                raise InvalidConfig(message)
            return


def _about(time: str, execution_id: str) -> str:
    return f"{time} cell {execution_id[:8]}"


def _kind(cell: Cell) -> str:
    if not isinstance(cell, ShellCell):
        return cell.language
    return "command" if cell.work_dir is None else f"command in {plain(cell.work_dir)}"


def _ended(about: str, result: ExecutionResult) -> Iterable[str]:
    told = [result.status, f"exit code {result.exit_code}", f"{result.timing.run:.3f} s", f"state {result.state}"]
    if result.interrupted:
        told.append(f"interrupted by {result.interrupted}, rung {result.rung}")
    if result.cause:
        told.append(f"cause {result.cause}")
    yield f"{about} ended: {', '.join(told)}"
    if result.notes:
        yield from bounded(about, "note", "\n".join(result.notes), REASON_BYTES)


def _kernel(time: str, event: KernelChanged) -> Iterable[str]:
    language = "" if event.language == "python" else f" ({plain(event.language)})"
    about = f"{time} kernel {event.kernel_epoch}{language}"
    match event.change:
        case "started":
            again = " in place of the one before" if event.kernel_epoch > 1 else ""
            yield f"{about} started{again}: {_where(event.container)}"
        case "failed":
            yield f"{about} did not start"
            yield from bounded(about, "note", event.cause or "", REASON_BYTES)
        case "died":
            yield f"{about} died: {event.cause}"


def _where(container: InContainer | None) -> str:
    if container is None:
        return "on this machine"
    mounts = [f"{source} -> {target} ({'ro' if only else 'rw'})" for source, target, only in container.mounts]
    told = f"container {container.name} ({container.id}), image {container.image}, network {container.connected}"
    told += ", with sudo" if container.sudo else ""
    return plain(f"{told}, mounts {', '.join(mounts) or 'none'}")


def _said_of(event: MemoryHigh | FilesTouched) -> str:
    if isinstance(event, FilesTouched):
        return f"files, {event.operation}: {' '.join((*event.paths, *event.refused))[:REASON_BYTES]}"
    return str(MemoryUse(event.used_bytes, event.limit_bytes, biggest=event.biggest))


def _session(event: SessionEvent) -> str:
    match event:
        case SessionOpened():
            replays = "" if event.replays is None else f", which replays {event.replays}"
            return plain(f"opened: workspace {event.workspace}{replays}")
        case SessionAdopted():
            return f"adopted from an owner that died: kernel {event.kernel_epoch} lives, {_where(event.container)}"
        case SessionReplayed():
            return plain(f"replayed {event.replay.source}: {len(event.replay.cells)} cells")
        case SnapshotTaken():
            return f"snapshot {plain(event.snapshot.snapshot_id)}: {len(event.snapshot.variables)} variables"
        case TestsRun():
            return f"tested: {event.report.summary}"
        case SessionClosing() | SessionClosed():
            return "closing" if isinstance(event, SessionClosing) else "closed"
