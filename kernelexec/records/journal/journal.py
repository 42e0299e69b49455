"""The hook of a journal: a locked, bounded file with complete JSON lines at every moment."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelexec.errors import Refused
from kernelexec.events import Event
from kernelexec.provisioning.platform import lock
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd
from kernelexec.records.journal.records import (
    JournaledRequest,
    line,
    next_part,
    parse_record,
    parts,
    record,
    requests,
    requests_of_life,
    sibling_path,
)
from kernelexec.workspace.safe_files import DIRECTORY, closing_fd

#: Number of files of a journal at most; the newest has the journal's name, the others are numbered.
PARTS = 4
#: How long to wait for the end of a closing owner, and the pause between two tries, in seconds.
PATIENCE, _PAUSE = 10.0, 0.02
_KEEPERS = 1000
_TAIL_BYTES = 64 * 1024
#: Records that begin and end a session's life, and records of cells in it.
_BEGINS, _ENDS, _CELLS = ("opened", "adopted"), ("closing", "closed"), ("started", "finished")
#: Paths of files in a held directory begin here, and stay valid when the directory is moved.
_HELD = Path("/proc/self/fd")
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

logger = logging.getLogger("kernelexec")


class Journal:
    """The journal of a session. An event is in the file when the call returns; otherwise ``failure`` has the reason.

    A line is written completely or not at all. After a failure, the next successful line is preceded by the number of missing
    lines. Cells may be able to move the directory, so the directory is held open, and links in its place are not followed.

    Args:
        path: name of the file; while another process writes this file, the first free numbered file beside it is used.
        limit_bytes: the bound of all parts of the journal together; above this the oldest part is removed.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self.failure: str | None = None
        self.owner_was_killed = False
        """Whether the previous owner was killed, with the session and the state of its cells."""
        self.owner_was_closed = False
        """Whether an earlier session of this name ran cells and was closed; its variables were ``owner_names``."""
        self.owner_names: tuple[str, ...] = ()
        self._name = path
        self._limit = max(1, limit_bytes // PARTS)
        self._fd: int | None = None
        self._directory: int | None = None
        self._missed = 0
        self._reading = threading.Lock()
        self._read = False
        self._sent: dict[str, JournaledRequest] = {}
        self._here: set[str] = set()
        self._adopted = False
        self._closed = False
        self._claim(PATIENCE)

    def __call__(self, event: Event, /) -> None:
        """Write the line of an event; nothing for an event without a record."""
        fields = record(event)
        if fields is None or self._closed:
            return
        try:
            if self._missed:
                missed = {"time": fields["time"], "session": fields["session"], "event": "gap", "missed": self._missed}
                self._append(line(missed))
                self._missed = 0
            self._append(line(fields))
            self.failure = None
        except OSError as exc:
            self._missed += 1
            self._fail(exc)
        self._remember(fields)

    def flush_to_disk(self) -> None:
        """Write the journal through to the disk, to survive a failure of the machine.

        Raises:
            OSError: the disk did not confirm the write.
        """
        if self._fd is not None:
            os.fdatasync(self._fd)  # the length of the file included, which readers need

    def find_request(self, request_id: str) -> JournaledRequest | None:
        """Return the request as known to this journal, from any of its owners; None for an unknown request.

        Raises:
            Refused: another process writes the journal, so the answer is unknown here.
        """
        if self.path != self._name:
            message = (
                f"request_id={request_id!r}: another process has this session open and keeps its journal {self._name}: "
                "send the request there, or take another session name."
            )
            raise Refused(message)
        # The file is read once, and `_remember` adds all later requests. Those of this process win: their records may be gone.
        with self._reading:
            if not self._read:
                for name, sent in requests(self._held(self.path)).items():
                    self._sent.setdefault(name, sent)
                if self._adopted:
                    self._here |= requests_of_life(self._held(self.path))
                self._read = True
        sent_before = self._sent.get(request_id)
        if sent_before is None:
            return None
        recorded = requests(self._held(self.path), request_id).get(request_id)
        return replace(recorded or sent_before, in_this_run=request_id in self._here)

    def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        for fd in (self._fd, self._directory):
            if fd is not None:
                close_fd(fd)
        self._fd = self._directory = None

    def _hold_directory(self) -> None:
        """Open the directory, created if missing; a link in its place is an error."""
        path = self._name.parent
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing_fd(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
            with suppress(FileExistsError):
                os.mkdir(path.name, 0o700, dir_fd=above)
            self._directory = track_fd(os.open(path.name, DIRECTORY, dir_fd=above))

    def _held(self, path: Path) -> Path:
        """Return the path of a file through the held directory's descriptor, where the system has such paths."""
        return _HELD / str(self._directory) / path.name if _HELD.is_dir() else path

    def _claim(self, patience: float) -> None:
        """Lock the first free file, and cut off the unfinished line of an earlier owner.

        A closing owner is waited for, at most ``patience`` seconds each.
        """
        try:
            self._hold_directory()
            for path in (self._name, *(sibling_path(self._name, number) for number in range(2, _KEEPERS))):
                fd = os.open(self._held(path), _FLAGS, 0o600)
                if _lock(fd, self._held(path), patience):
                    self._fd, self.path = track_fd(fd), path
                    self._repair(fd)
                    life, has_cells = _newest(fd)
                    self.owner_was_killed = has_cells and life not in _ENDS
                    if life in _ENDS:
                        self.owner_was_closed, self.owner_names = _read_end(fd)
                    return
                os.close(fd)
        except OSError as exc:
            self._release()
            self._fail(exc)

    def _repair(self, fd: int) -> None:
        """Cut off an incomplete last line, whose writer was killed."""
        # In steps from the end: a line may be longer than the part that is read.
        size = os.fstat(fd).st_size
        while size and (tail := os.pread(fd, min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))):
            end = tail.rfind(b"\n") + 1
            if end == len(tail):
                return
            size = size - len(tail) + end
            os.ftruncate(fd, size)
            self._missed = 1
            if end:
                return

    def _append(self, content: bytes) -> None:
        fd = self._current()
        size = os.fstat(fd).st_size
        if size and size + len(content) > self._limit:
            fd, size = self._turn_over(fd), 0
        left = memoryview(content)
        try:
            while left:  # a disk that fills up takes a part, and reports the error at the next write
                left = left[os.write(fd, left) :]
        except OSError:  # the part is taken back; the lock makes this process the only writer, so nothing else stands behind
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise

    def _current(self) -> int:
        """Return the open file; begin a new file if this was removed or moved."""
        if self._fd is None or not self._is_in_place(self._fd):
            self._release()
            self._claim(0.0)  # in the event loop, and a cell may have put a locked file there
        if self._fd is None:
            raise OSError(0, self.failure or "it cannot be opened", str(self.path))
        return self._fd

    def _is_in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False))  # noqa: PTH116 - the quicker one
        except FileNotFoundError:
            return False

    def _turn_over(self, fd: int) -> int:
        """Begin a new part. At every moment the name exists and names a locked file."""
        path = self._held(self.path)
        # A second name for the old part, then one rename over the first: a rename of the old part would leave a moment without
        # the name, in which another process could create and lock a journal of its own.
        part = next_part(path)
        part.hardlink_to(path)
        try:
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            new = track_fd(os.open(fresh, _FLAGS | os.O_EXCL, 0o600))
            try:
                if not _lock(new, fresh, 0.0):
                    raise BlockingIOError(errno.EAGAIN, "it is locked by another process", str(fresh))
                fresh.replace(path)
            except OSError:
                close_fd(new)
                raise
        except OSError:  # else each of the next records would leave one more name of the same part
            part.unlink(missing_ok=True)
            raise
        self._fd = new
        close_fd(fd)
        for old in parts(path)[:-PARTS]:
            old.unlink(missing_ok=True)
        return new

    def _remember(self, fields: dict[str, Any]) -> None:
        """Remember a sent request, even if its record was not written or is gone."""
        name = fields.get("request_id")
        self._adopted |= fields["event"] == "adopted"
        if name is not None and fields["event"] == "started":
            self._here.add(name)
        if name is not None and fields["event"] in ("started", "finished"):
            self._sent[name] = JournaledRequest(fields["execution_id"], fields["fingerprint"], None)
        elif name in self._sent and fields["event"] == "aborted" and self._sent[name].execution_id == fields["execution_id"]:
            del self._sent[name]  # it was not sent

    def _fail(self, exc: OSError) -> None:
        if self.failure is None:
            logger.error("kernelexec.journal_not_written", extra={"journal": str(self.path), "reason": str(exc)})
        self.failure = exc.strerror or str(exc)


def _lock(fd: int, path: Path, patience: float) -> bool:
    """Lock a file; return whether this worked. Wait for a closing owner, at most ``patience`` seconds."""
    deadline = time.monotonic() + patience
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return False
    while True:
        try:
            lock(fd)
            # Between our open and the lock its owner may have begun a new part: then the name is another file's.
            return os.path.samestat(os.fstat(fd), path.stat())
        except BlockingIOError:
            if _newest(fd)[0] not in _ENDS or time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)  # in a thread: a lock cannot be waited for with a bound
        except OSError:  # a file system without locks
            return True


def _read_end(fd: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether there are records of cells near the end, and the variable names of the last closed session."""
    tail = os.pread(fd, _TAIL_BYTES, max(0, os.fstat(fd).st_size - _TAIL_BYTES))
    has_cells, names = False, list[object]()
    for raw in tail.splitlines():
        fields = parse_record(raw) or {}
        has_cells |= fields.get("event") in _CELLS
        if fields.get("event") == "closing":
            names = value if isinstance(value := fields.get("names"), list) else []
    return has_cells, tuple(name for name in names if isinstance(name, str))


def _newest(fd: int) -> tuple[str | None, bool]:
    """Return the newest event of the session's life near the end, and whether records of cells follow.

    The event is None if the last 64 KiB have none; cells are assumed then if the file is longer.
    """
    size, ran = os.fstat(fd).st_size, False
    for raw in reversed(os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).splitlines()):
        event = (parse_record(raw) or {}).get("event")
        if event in (*_BEGINS, *_ENDS):
            return event, ran
        ran |= event in _CELLS
    return None, ran or size > _TAIL_BYTES
