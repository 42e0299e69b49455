"""The log of a session for people, ``<log_dir>/<session>/docker_container.log``: events as lines of text.

An event is in the file when the call returns. Each line begins with the time, the process and the subject, whatever a text
contains. A cell's own text stands behind ``in |`` (the source), ``out |``, ``err |`` or ``late |``. ``out +`` continues the
cell's previous line, which had no end yet. Unprintable characters are written as escapes.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Literal

from kernelexec import events
from kernelexec.cells import Cell, ShellCell
from kernelexec.errors import InvalidConfig
from kernelexec.provisioning.platform import lock
from kernelexec.results import Error, MemoryUse, Stream, output_text
from kernelexec.results.outputs import strip_ansi
from kernelexec.text import head_within, tail_within, utf8_size

Mark = Literal["in", "out", "err", "late", "note"]
#: The name of the file, also where kernels are not in containers.
NAME = "docker_container.log"
#: Bounds in bytes: of the log and of the rotated log, of a cell's source, of a reason or note.
LOG_BYTES, SOURCE_BYTES, REASON_BYTES = 64 * 1024 * 1024, 64 * 1024, 4096
#: The bound of a cell's output, and of the output of ended cells between two cells, in bytes of the log; and of its errors
#: after that.
OUTPUT_BYTES, ERROR_BYTES = 256 * 1024, 64 * 1024
#: About the size of a line without its text, in bytes.
_LINE_BYTES = 48
# O_APPEND: Linux moves to the end and writes in one step, so lines of several processes do not overwrite each other.
# O_NONBLOCK: opening a pipe in the log's place fails (ENXIO) instead of waiting for a reader.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The errors of a path that cannot become a log.
_UNFIT = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})

logger = logging.getLogger("kernelexec")


class ContainerLog:
    """The hook for one session's log. A write error is reported once, and fails no cell.

    Each event is one append to the file. So several processes can share the log, and the file may be moved or removed at any
    time. Above its bound the file is renamed to ``<name>.1``, in place of an earlier file of this name. `logging`'s rotating
    handlers follow links, and lose lines when two processes rotate the same file.

    Raises:
        InvalidConfig: there is something else in the log's place, or the session's cells could change the log.
    """

    hears_output = True

    def __init__(self, log_dir: Path, session: str, workspace: Path, *, limit_bytes: int = LOG_BYTES) -> None:
        directory = log_dir.expanduser().resolve() / session
        if directory.is_relative_to(workspace):
            message = f"log_dir: {directory} lies in the workspace {workspace}, where cells can change it: choose another one."
            raise InvalidConfig(message)
        self.path = directory / NAME
        self._session = session
        self._limit = limit_bytes
        self._pid = os.getpid()
        self._running = ""
        """The id of the running execution."""
        self._room = OUTPUT_BYTES
        """Remaining bytes for the output of the running cell, or of ended cells while none runs."""
        self._is_full = False
        """Whether output was left out since the bound began anew."""
        self._unended: set[tuple[str, Mark]] = set()
        """The cells and marks of lines without an end."""
        self._missed = 0
        self._torn = self._has_reported = False
        try:  # an unfit place is an error of the caller now; a full disk must not keep the session from its start
            self._open().close()
        except OSError as exc:
            self._report(exc)

    def __call__(self, event: events.Event, /) -> None:
        """Write the lines of the event."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        lines = list(self._lines(event))
        if not lines:
            return
        if self._missed:
            lines.insert(0, f"left out: {self._missed} events, which could not be written")
        try:
            self._append("".join(f"{now}Z {self._pid} {line}\n" for line in lines).encode("utf-8", "backslashreplace"))
            self._missed = 0
        except (OSError, InvalidConfig) as exc:
            self._missed += 1
            self._report(exc)

    def _lines(self, event: events.Event) -> Iterator[str]:
        match event:
            case events.OutputReceived():
                yield from self._output_lines(event)
            case events.CellStarted(execution_id=execution_id) | events.SessionAdopted(execution_id=str() as execution_id):
                self._begin(execution_id)
            case events.CellExecuted(result=result) | events.CellAborted(result=result):
                if result.execution_id == self._running:
                    self._begin("")
        yield from _cell_lines(event) if isinstance(event, events.CellEvent) else _other_lines(event)

    def _begin(self, execution_id: str) -> None:
        self._running, self._room, self._is_full = execution_id, OUTPUT_BYTES, False
        self._unended.clear()

    def _output_lines(self, event: events.OutputReceived) -> Iterator[str]:
        output, about = event.output, _about(event.execution_id)
        text = output.text if isinstance(output, Stream) else output_text((output,), is_part=True)
        is_running, is_error = event.execution_id == self._running, isinstance(output, Error)
        is_stderr = is_error or (isinstance(output, Stream) and output.name == "stderr")
        mark: Mark = "late" if not is_running else "err" if is_stderr else "out"
        has_more_room = is_error and is_running  # the reason of a failure stands behind a flood of output
        head = _cut(text, max(self._room, min(REASON_BYTES, self._room + ERROR_BYTES)) if has_more_room else self._room)
        continues = (about, mark) in self._unended
        if head:
            self._room -= _log_size(head)
            (self._unended.discard if text.endswith("\n") else self._unended.add)((about, mark))
            if not (continues and head == "\n"):
                yield from _quote(about, mark, head, continues=continues)
        if len(head) < len(text) and not self._is_full:
            self._is_full, self._room = True, min(self._room, 0)
            self._unended.clear()
            yield f"{about} left out: further output{'' if is_running else ' of ended cells, up to the next cell'}"

    def _append(self, content: bytes) -> None:
        """Append complete lines.

        Raises:
            OSError, InvalidConfig: the file does not have all lines.
        """
        while True:
            with self._open() as file:
                size = os.fstat(file.fileno()).st_size
                if size and size + len(content) > self._limit and self._rotate(file.fileno()):
                    continue
                # One write for all lines: another process's lines come before or after them. The disk may cut a write, and
                # then the next one ends the torn line first.
                content = b"\n" + content if self._torn else content
                written = os.write(file.fileno(), content)
            self._torn = bool(written) and not content[:written].endswith(b"\n")
            if written < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            return

    def _open(self) -> BinaryIO:
        """Open the file, readable by its user only; create missing directories and the file.

        Raises:
            InvalidConfig: something else is in the place of the file or of a directory.
            OSError: the file cannot be written.
        """
        try:
            if not self.path.parent.exists():
                self.path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.parent.mkdir(mode=0o700, exist_ok=True)
            file = os.fdopen(os.open(self.path, _FLAGS, 0o600), "wb", buffering=0)
        except OSError as exc:
            if exc.errno in _UNFIT:
                raise InvalidConfig(_unfit(self.path, exc.strerror or "")) from exc
            raise
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise InvalidConfig(_unfit(self.path, "It is not a regular file"))
        return file

    def _rotate(self, fd: int) -> bool:
        """Rename the full file; return whether the caller must open the log again.

        False means that another process has the lock, and renames the file now.
        """
        try:
            lock(fd)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
        # Under the lock, the open file may already be the renamed one: a second rename would replace it by a fresh log.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), self.path.stat(follow_symlinks=False)):
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        return True

    def _report(self, exc: OSError | InvalidConfig) -> None:
        if not self._has_reported:
            self._has_reported = True
            details = {"session": self._session, "log": str(self.path), "reason": getattr(exc, "strerror", None) or str(exc)}
            logger.error("kernelexec.log_not_written", extra=details)


def check(log_dir: Path, workspaces: Path) -> None:
    """Refuse a directory unfit for logs, before anything runs; ``workspaces`` is the default place of workspaces.

    Raises:
        InvalidConfig: the path is a file, lies in a file, or lies where cells could change the log.
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


def _unfit(path: Path, reason: str) -> str:
    return f"log_dir: {path} cannot be a log. {reason.rstrip('.')}: move it away, or choose another log_dir."


def _about(execution_id: str) -> str:
    return f"cell {execution_id[:8]}"


def _cell_lines(event: events.CellEvent) -> Iterator[str]:
    match event:
        case events.CellStarted():
            about = _about(event.execution_id)
            yield f"{about} started: {_kind(event.cell)}, kernel {event.kernel_epoch}, execution {event.execution_id}"
            yield from _quote(about, "in", event.cell.source, SOURCE_BYTES)
        case events.CellExecuted(result=result):
            interrupted = f", interrupted by {result.interrupted}, ended by {result.ended_by}" if result.interrupted else ""
            state = f"state {result.state}{interrupted}{f', cause {result.cause}' if result.cause else ''}"
            about = _about(result.execution_id)
            yield f"{about} ended: {result.status}, exit code {result.exit_code}, {result.timing.run:.3f} s, {state}"
            if result.notes:
                yield from _quote(about, "note", "\n".join(result.notes), REASON_BYTES)
        case events.CellAborted():
            about = _about(event.result.execution_id)
            yield f"{about} never ran: {_printable(' '.join(event.result.notes)[:REASON_BYTES])}"
            yield from _quote(about, "in", event.cell.source, REASON_BYTES)
        case events.CellRefused():
            yield f"refused {event.kind}: {_printable(str(event.error)[:REASON_BYTES])}"
            source = event.source if isinstance(event.source, str) else f"({type(event.source).__name__})"
            yield from _quote("refused", "in", source, REASON_BYTES)


def _kind(cell: Cell) -> str:
    if not isinstance(cell, ShellCell):
        return cell.language
    return "command" if cell.work_dir is None else f"command in {_printable(cell.work_dir)}"


def _other_lines(event: events.Event) -> Iterator[str]:
    """Yield the lines of an event other than cells and outputs."""
    match event:
        case events.KernelChanged():
            yield from _kernel_lines(event)
        case events.StateRestored():
            start = f"goes on from checkpoint {event.checkpoint}" if event.checkpoint else "runs earlier cells again"
            yield f"kernel {event.kernel_epoch} {start}"
        case events.BranchPromoted():
            yield f"branch {_printable(event.branch)} takes the place of this session"
        case events.FilesTouched():
            yield f"files, {event.operation}: {_printable(' '.join((*event.paths, *event.refused))[:REASON_BYTES])}"
        case events.MemoryHigh():
            yield _printable(str(MemoryUse(event.used_bytes, event.limit_bytes, biggest=event.biggest)))
        case events.SessionAdopted():
            where = _printable(_location(event.container))
            yield f"session adopted from an owner that died: kernel {event.kernel_epoch} lives, {where}"
            if event.execution_id is not None:
                yield f"{_about(event.execution_id)} goes on: its output so far comes again, execution {event.execution_id}"
        case _ if isinstance(event, events.SessionEvent):
            yield _printable(f"session {_session_text(event)}")


def _kernel_lines(event: events.KernelChanged) -> Iterator[str]:
    about = f"kernel {event.kernel_epoch}" + ("" if event.language == "python" else f" ({_printable(event.language)})")
    match event.change:
        case "started":
            again = " in place of the one before" if event.kernel_epoch > 1 else ""
            yield f"{about} started{again}: {_printable(_location(event.container))}"
        case "failed":
            yield f"{about} did not start"
            yield from _quote(about, "note", event.cause or "", REASON_BYTES)
        case "died":
            yield f"{about} died: {event.cause}"


def _location(container: events.KernelContainer | None) -> str:
    if container is None:
        return "on this machine"
    mounts = ", ".join(f"{source} -> {target} ({'ro' if only else 'rw'})" for source, target, only in container.mounts)
    text = f"container {container.name} ({container.id}), image {container.image}, network {container.network}"
    return f"{text}{', with sudo' if container.sudo else ''}, mounts {mounts or 'none'}"


def _session_text(event: events.SessionEvent) -> str:
    match event:
        case events.SessionOpened():
            return f"opened: workspace {event.workspace}" + (f", which replays {event.replays}" if event.replays else "")
        case events.SessionReplayed():
            return f"replayed {event.replay.source}: {len(event.replay.cells)} cells"
        case events.SnapshotTaken():
            return f"snapshot {event.snapshot.snapshot_id}: {len(event.snapshot.variables)} variables"
        case events.TestsRun():
            return f"tested: {event.report.summary}"
        case events.SessionClosed() if event.cut:
            return f"closed, killed before threads or exit handlers had ended: {', '.join(event.cut)}"
    return "closing" if isinstance(event, events.SessionClosing) else "closed"


def _printable(text: str) -> str:
    """Return a line without colours, and with escapes for unprintable characters."""
    text = strip_ansi(text)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\t" else char.encode("unicode_escape").decode("ascii") for char in text
    )


def _quote(about: str, mark: Mark, text: str, limit: int = sys.maxsize, *, continues: bool = False) -> Iterator[str]:
    """Yield the lines of a text behind their mark; above ``limit`` bytes head, number of missing bytes, and tail."""
    if (size := utf8_size(text)) > limit:
        yield from _quote(about, mark, head_within(text, limit // 2))
        yield f"{about} left out: {size - limit} bytes"
        text = tail_within(text, limit // 2)
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        yield f"{about} {mark} {'+' if continues and not number else '|'} {_printable(line.removesuffix(chr(13)))}"


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text, for at most about ``limit`` bytes of a log."""
    head = head_within(text, max(0, limit)) if utf8_size(text) > limit else text
    while head and _log_size(head) > limit:
        head = head[: len(head) // 2]
    return head


def _log_size(text: str) -> int:
    """Return the approximate size of a text in a log, in bytes."""
    return utf8_size(text) + _LINE_BYTES * (text.count("\n") + 1)
