"""The private directory of an executor: location, ownership by a living process, and removal of orphaned directories.

The owner holds a lock on the directory itself. The system releases the lock at any end of the process, and the lock is visible
in containers with the same directory. An owner record in the directory names the process and is removed last. The paths of
private directories are short enough for unix sockets; temporary directories are in places with room for large files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.processes import has_ended, read_live_status
from kernelexec.workspace.rmtree import clear, names_in, remove_tree
from kernelexec.workspace.safe_files import DIRECTORY, create_file, read_regular, replace_file

RECORD_FILE, _FRESH = ".owner", ".owner.new"
#: Prefix of the names of private directories, and the names that ``tempfile`` creates with it.
ROOT_PREFIX, ROOT_NAME = "kx-", re.compile(r"kx-[a-z0-9_]{8}")
#: A directory without a record that is younger, in seconds, may be between ``mkdtemp`` and the record: it is no orphan.
_YOUNG_SECONDS = 60.0
_RECORD_BYTES = 4096
#: How long an adopter waits for a sweep that holds the lock, and the interval of its tries, in seconds.
_SWEEP_SECONDS, _PAUSE = 2.0, 0.02
_ENTRIES_MAX = 100_000
_PROC = Path("/proc")

logger = logging.getLogger("kernelexec")
#: Descriptors of locks, pipes and sockets whose lifetime another process reads as that of this one.
_tracked_fds: set[int] = set()
#: Longest path of a unix socket (sockaddr_un.sun_path without the final NUL).
SOCKET_PATH_BYTES = 107
#: The variable that names the directory for private directories of executors.
CHOSEN = "KERNELEXEC_RUNTIME_DIR"
#: In an executor's private directory, a link to another one in the machine's temporary directory.
_TEMP_LINK, _TEMP_NAME = ".tmp", "tmp"


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The identity of a process, unlike a later process of the same id or one on another machine. Unknown parts are empty."""

    pid: int
    started: int
    boot: str
    pid_namespace: str
    machine: str
    locked: bool

    @classmethod
    def of_this_process(cls, *, locked: bool) -> Self:
        """Return the identity of this process."""
        status = read_live_status(os.getpid())
        started = status.born if status else 0
        return cls(os.getpid(), started, _read_boot_id(), _read_pid_namespace(), os.uname().nodename, locked)

    @classmethod
    def read(cls, directory: int) -> Self | None:
        """Read the owner record of a directory; None if missing or invalid."""
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(read_regular(RECORD_FILE, _RECORD_BYTES, dir_fd=directory))
            return cls.parse(record) if isinstance(record, dict) else None
        return None

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Return the owner in a decoded record; raise ``LookupError``, ``TypeError`` or ``ValueError`` if invalid."""
        return cls(**{name: kind(content[name]) for name, kind in _FIELDS.items()})

    @property
    def has_ended(self) -> bool:
        """Whether the process has certainly ended, provided the directory's lock is free."""
        return self.locked if (seen := self.see_end()) is None else seen

    def see_end(self) -> bool | None:
        """Return whether the process has certainly ended; None if only the directory's lock can answer."""
        boot, namespace = _read_boot_id(), _read_pid_namespace()
        if bool(self.boot) > bool(boot) or bool(self.pid_namespace) > bool(namespace):
            return False  # for example without free descriptors nothing can be read
        if self.boot != boot:
            return self.machine == os.uname().nodename  # the machine was rebooted, or it is another machine
        if self.started and self.pid_namespace == namespace:
            return has_ended(self.pid, self.started)
        return None  # a pid of another namespace means nothing here; a lock is seen across namespaces


_FIELDS = {"pid": int, "started": int, "boot": str, "pid_namespace": str, "machine": str, "locked": bool}


class OwnedDirectory:
    """A directory owned by this process until ``remove``."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Become the owner of a new, empty directory.

        Raises:
            KernelStartFailed: the directory is not writable.
        """
        root = cls(path, track_fd(os.open(path, DIRECTORY)))
        try:
            root._write_record()
        except OSError as exc:
            root.remove()
            message = f"{path} is not writable: {exc.strerror or exc}. Free space there, or set TMPDIR to another directory."
            raise KernelStartFailed(message) from exc
        return root

    @classmethod
    def take_over(cls, path: Path) -> Self | None:
        """Become the owner of a dead owner's directory; of several concurrent callers a single caller succeeds.

        None if the owner lives or may live, or if the directory belongs to another user. Blocks, since a sweep may hold the
        lock: for a thread.
        """
        try:
            fd = track_fd(os.open(path, DIRECTORY))
        except OSError:
            return None
        root = cls(path, fd)
        try:
            # In this order: a sweep or another adopter may have removed or taken the directory before the lock was got.
            if is_private(os.fstat(fd)) and _lock_after_sweep(fd) and _is_orphan(fd, path):
                root._write_record()
                return root
        except OSError:
            logger.exception("kernelexec.root_adoption_failed", extra={"root": str(path)})
        close_fd(fd)  # also releases the lock
        return None

    def _write_record(self) -> None:
        """Write or replace the owner record atomically."""
        assert self._fd is not None
        record = json.dumps(asdict(OwnerRecord.of_this_process(locked=_lock(self._fd)))).encode()
        replace_file(RECORD_FILE, record, mode=0o600, dir_fd=self._fd, temporary=_FRESH)

    def remove(self) -> None:
        """Remove the directory with all content; do nothing the second time."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            # The record goes last: if this process is killed here, a later sweep still knows a dead owner's directory by it.
            if clear(fd, keep=RECORD_FILE):
                with suppress(FileNotFoundError):
                    os.unlink(RECORD_FILE, dir_fd=fd)
                with suppress(OSError):
                    self.path.rmdir()
        finally:
            close_fd(fd)


def sweep(bases: Iterable[Path], stop: threading.Event, *, spare: Callable[[Path], bool] = lambda _: False) -> None:
    """Remove the private directories of dead owners in ``bases``, except where ``spare`` returns True.

    Blocks: for a thread; ``stop`` ends the sweep between two files. The lock prevents an adoption during the check.
    """
    for base in dict.fromkeys(bases):
        try:
            fd = os.open(base, DIRECTORY & ~os.O_NOFOLLOW)  # the base itself is the user's choice and may be a link
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                names = [entry.name for entry in islice(entries, _ENTRIES_MAX) if ROOT_NAME.fullmatch(entry.name)]
            for name in names:
                with suppress(OSError):
                    _remove_orphan(fd, base / name, stop, spare)
        finally:
            os.close(fd)


def _remove_orphan(base: int, path: Path, stop: threading.Event, spare: Callable[[Path], bool]) -> None:
    """Remove a directory of this user if the owner is dead and ``spare`` returns False."""
    fd = track_fd(os.open(path.name, DIRECTORY, dir_fd=base))
    try:
        status = os.fstat(fd)
        if not is_private(status):
            return
        owner, names = OwnerRecord.read(fd), set(names_in(fd))
        if owner is None and (names - {RECORD_FILE, _FRESH} or time.time() - status.st_mtime < _YOUNG_SECONDS):
            return  # not ours, or being created
        # An owner without ``locked`` was on a file system without locks: then the record alone decides.
        if not _lock(fd) and (owner is None or owner.locked):
            return
        if owner is not None and (not owner.has_ended or spare(path)):
            return
        if not clear(fd, keep=RECORD_FILE, stop=stop):
            return
        with suppress(FileNotFoundError):
            os.unlink(RECORD_FILE, dir_fd=fd)
        # The base may be /tmp: by now another directory can have the name.
        if os.path.samestat(status, os.stat(path.name, dir_fd=base, follow_symlinks=False)):
            os.rmdir(path.name, dir_fd=base)
        if owner is not None:
            details = {"root": str(path), "owner_pid": owner.pid, "sessions": sorted(names - {RECORD_FILE})}
            logger.info("kernelexec.orphaned_root_removed", extra=details)
    finally:
        close_fd(fd)


def is_private(status: os.stat_result) -> bool:
    """Return whether a directory belongs to this user and is closed to other users."""
    return status.st_uid == platform.user_id() and not stat.S_IMODE(status.st_mode) & 0o077


def _lock_after_sweep(fd: int) -> bool:
    """Lock a dead owner's directory, retrying while a sweep may hold the lock (2 s); return whether the lock is held."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while not _lock(fd):
        owner = OwnerRecord.read(fd)
        if owner is None or not owner.has_ended or time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)  # in a thread: a wait for a lock has no timeout
    return True


def _is_orphan(fd: int, path: Path) -> bool:
    """Return whether an open directory, locked by this process, still exists and has a dead owner."""
    owner = OwnerRecord.read(fd)
    in_place = os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))  # noqa: PTH116 - as above
    return owner is not None and owner.has_ended and in_place


def track_fd(fd: int) -> int:
    """Track and return a descriptor that forked children of this process must not keep open."""
    _tracked_fds.add(fd)
    return fd


def close_fd(fd: int) -> None:
    """Close a tracked descriptor."""
    _tracked_fds.discard(fd)
    os.close(fd)


def _close_in_child() -> None:
    """Replace the tracked descriptors in a forked child by the null device; the numbers stay in use."""
    # Not closed: Python objects in the child still hold the numbers, and would later close or write to an unrelated file.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in _tracked_fds:
        os.dup2(null, fd, inheritable=False)
    os.close(null)


# With its parent's descriptors a forked child would keep the kernels of a dead owner alive: the lock and the write end of an
# owner pipe belong to the open file description, which fork shares. O_CLOEXEC helps at an exec only.
platform.call_in_forked_children(_close_in_child)


def has_living_owner(fd: int, owner: OwnerRecord) -> bool:
    """Return whether the owner of an open directory lives. The check may lock a free ``fd``: close it soon.

    A held lock may also belong to a process removing the directory of a dead owner.
    """
    # A shared lock: two readers that check at the same time must not take each other for the owner.
    return not (owner.locked and _lock(fd, shared=True)) and not owner.see_end()


def _lock(fd: int, *, shared: bool = False) -> bool:
    try:
        platform.lock(fd, shared=shared)
    except OSError:
        return False
    return True


def _read_boot_id() -> str:
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def _read_pid_namespace() -> str:
    with suppress(OSError):
        return str((_PROC / "self/ns/pid").readlink())
    return ""


def new_root() -> Path:
    """Create a private directory for an executor, with a path as short as the machine allows.

    Raises:
        KernelStartFailed: the machine's runtime directory is too deep for unix sockets.
    """
    for base in runtime_bases():
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=ROOT_PREFIX, dir=base))
    name = CHOSEN if os.environ.get(CHOSEN) else "TMPDIR"
    message = f"No directory for unix sockets: {name} must be writable, and short for paths of {SOCKET_PATH_BYTES} bytes."
    raise KernelStartFailed(message)


def runtime_bases() -> Iterator[Path]:
    """Yield the directories in which executors create private directories and look for each other, the best first.

    If ``KERNELEXEC_RUNTIME_DIR`` is set, only that directory.
    """
    chosen = os.environ.get(CHOSEN)
    return _suitable_bases([chosen] if chosen else _default_bases())


def all_bases() -> Iterator[Path]:
    """Yield the directories of ``runtime_bases`` and those of executors with other settings."""
    return _suitable_bases([os.environ.get(CHOSEN), *_default_bases()])


def swept_bases() -> Iterator[Path]:
    """Yield the directories in which killed executors with the same settings leave something."""
    return _suitable_bases([*map(str, runtime_bases()), tempfile.gettempdir()])


def _default_bases() -> list[str | None]:
    return [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # noqa: S108 - private by mkdtemp


def _suitable_bases(bases: Iterable[str | None]) -> Iterator[Path]:
    for base in dict.fromkeys(bases):
        if base and _is_suitable(Path(base)):
            yield Path(base)


def load_identity(directory: Path) -> bytes:
    """Return the ZeroMQ identity of a session's connections, created once and reused by the session's next owner."""
    path = directory / "identity"
    with suppress(FileNotFoundError):
        return path.read_bytes()
    identity = secrets.token_hex(16).encode()
    create_file(path, identity, mode=0o600)
    return identity


def _is_suitable(base: Path) -> bool:
    """Return whether a directory can hold sockets: absolute, writable, and with room for a session's name in a path."""
    room = len(os.fsencode(base)) < SOCKET_PATH_BYTES - 40
    return room and base.is_absolute() and base.is_dir() and os.access(base, os.W_OK | os.X_OK)


def create_temp_root(root: Path) -> OwnedDirectory | None:
    """Create another private directory for an executor's temporary files; None if the first directory is suitable."""
    base = Path(tempfile.gettempdir())
    if base == root.parent:
        return None
    with suppress(OSError, KernelStartFailed):  # then the first one is used
        temp_root = OwnedDirectory.claim(Path(tempfile.mkdtemp(prefix=ROOT_PREFIX, dir=base)))
        (root / _TEMP_LINK).symlink_to(temp_root.path)
        return temp_root
    return None


def create_temp_directory(session: Path) -> Path:
    """Return the temporary directory of the session with that private directory, created if missing. Outlives kernels."""
    path = session.parent / _TEMP_LINK / session.name
    if not path.parent.is_dir():
        path = session / _TEMP_NAME
    path.mkdir(mode=0o700, exist_ok=True)
    return path.resolve()


class SessionDirectories:
    """The private and temporary directories of a session and its branches; the last of these sessions removes them."""

    def __init__(self, session: Path) -> None:
        self.path = session
        """The private directory."""
        self._users = 1
        self._lock = threading.Lock()

    def join(self) -> Self:
        """Add a branch, which must call ``leave`` later."""
        with self._lock:
            self._users += 1
        return self

    def leave(self) -> None:
        """Remove the directories, unless other sessions use them. For any thread."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            remove_tree(self.path.parent / _TEMP_LINK / self.path.name)
            remove_tree(self.path)
