"""The private directory of one executor: whose it is while that process lives, and the end of what dead owners left.

An owner holds a lock on the directory itself. The system lets go of it when the process ends, however it ends, and every
container that shares the directory sees it. A record beside it says which process that is, and is the last thing to go.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.processes import has_ended, status_of
from kernelexec.workspace.rmtree import DIRECTORY, clear, names_in
from kernelexec.workspace.safe_files import read_regular, replace_file

RECORD, _FRESH = ".owner", ".owner.new"
#: How the roots' names begin, and what ``tempfile`` makes of it.
PREFIX, NAME = "kx-", re.compile(r"kx-[a-z0-9_]{8}")
#: A directory without a record that is younger than this, in seconds, is just being made.
_YOUNG_SECONDS = 60.0
_RECORD_BYTES = 4096
#: How long a taker waits for a sweep that holds the lock, in seconds, and how often it looks.
_SWEEP_SECONDS, _PAUSE = 2.0, 0.02
_ENTRIES_MAX = 100_000
_PROC = Path("/proc")

logger = logging.getLogger("kernelexec")
_held: set[int] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, so that neither a reused id nor another machine's is taken for it; empty where the machine does not say."""

    pid: int
    started: int
    boot: str
    pid_namespace: str
    machine: str
    locked: bool

    @classmethod
    def this(cls, *, locked: bool) -> Self:
        """The calling process."""
        pid = os.getpid()
        return cls(pid, _started(pid) or 0, _boot(), _pid_namespace(), os.uname().nodename, locked)

    @classmethod
    def of(cls, directory: int) -> Self | None:
        """The owner that a directory's record names, if there is one."""
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(read_regular(RECORD, _RECORD_BYTES, dir_fd=directory))
            return cls.said(record) if isinstance(record, dict) else None
        return None

    @classmethod
    def said(cls, said: Mapping[str, Any]) -> Self:
        """The owner as a record says it.

        Raises:
            LookupError, TypeError, ValueError: it says no such thing.
        """
        return cls(**{name: kind(said[name]) for name, kind in _FIELDS.items()})

    @property
    def gone(self) -> bool:
        """Whether the process has certainly ended, given that nobody holds the directory's lock."""
        boot, namespace = _boot(), _pid_namespace()
        if bool(self.boot) > bool(boot) or bool(self.pid_namespace) > bool(namespace):
            return False  # who is out of descriptors, for one, knows nothing of others
        if self.boot != boot:
            return self.machine == os.uname().nodename  # the machine was started anew; or else it is another one
        if self.started and self.pid_namespace == namespace:
            return has_ended(self.pid, self.started)
        return self.locked


_FIELDS = {"pid": int, "started": int, "boot": str, "pid_namespace": str, "machine": str, "locked": bool}


class Root:
    """A directory that is this process's until it is removed."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Make a new, empty directory this process's own.

        Raises:
            KernelStartFailed: it cannot be written in.
        """
        root = cls(path, hold(os.open(path, DIRECTORY)))
        try:
            root._sign()
        except OSError as exc:
            root.remove()
            message = f"{path} cannot be written in: {exc.strerror or exc}. Make room there, or set TMPDIR to another place."
            raise KernelStartFailed(message) from exc
        return root

    @classmethod
    def take_over(cls, path: Path) -> Self | None:
        """Make a dead owner's directory this process's own, with all that is in it; of many who ask at once, one gets it.

        None where the owner lives, nobody can know, or the directory is none of this user's. For a thread: it may wait for
        a sweep that just looks at it.
        """
        try:
            fd = hold(os.open(path, DIRECTORY))
        except OSError:
            return None
        root = cls(path, fd)
        try:
            if _is_private(os.fstat(fd)) and _locked_soon(fd) and _was_left(fd, path):
                root._sign()
                return root
        except OSError:
            logger.exception("kernelexec.root_not_taken_over", extra={"root": str(path)})
        let_go(fd)
        return None

    def _sign(self) -> None:
        """Write the record, as a whole: there is one at every moment where there was one."""
        assert self._fd is not None
        record = json.dumps(asdict(Owner.this(locked=_lock(self._fd)))).encode()
        replace_file(RECORD, record, mode=0o600, dir_fd=self._fd, temporary=_FRESH)

    def remove(self) -> None:
        """Remove the directory with all that is in it."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            if clear(fd, keep=RECORD):
                with suppress(FileNotFoundError):
                    os.unlink(RECORD, dir_fd=fd)
                with suppress(OSError):
                    self.path.rmdir()
        finally:
            let_go(fd)


def _spare_none(_root: Path) -> bool:
    return False


def sweep(bases: Iterable[Path], stop: threading.Event, *, spare: Callable[[Path], bool] = _spare_none) -> None:
    """Remove what dead owners left in these directories, but for what ``spare`` says is still of use to somebody.

    For a thread: it stops between two files when told to. Nobody takes a root over while it is looked at.
    """
    for base in dict.fromkeys(bases):
        try:
            fd = os.open(base, DIRECTORY & ~os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            with os.scandir(fd) as entries:
                names = [entry.name for entry in islice(entries, _ENTRIES_MAX) if NAME.fullmatch(entry.name)]
            for name in names:
                with suppress(OSError):
                    _end(fd, base / name, stop, spare)
        finally:
            os.close(fd)


def _end(base: int, path: Path, stop: threading.Event, spare: Callable[[Path], bool]) -> None:
    """Remove one root if it is this user's, its owner is dead, and it is not to be spared."""
    fd = hold(os.open(path.name, DIRECTORY, dir_fd=base))
    try:
        found = os.fstat(fd)
        if not _is_private(found):
            return
        owner, names = Owner.of(fd), set(names_in(fd))
        if owner is None and (names - {RECORD, _FRESH} or time.time() - found.st_mtime < _YOUNG_SECONDS):
            return  # none of ours, or one that is just being made
        if not _lock(fd) and (owner is None or owner.locked):
            return
        if owner is not None and (not owner.gone or spare(path)):
            return
        if not clear(fd, keep=RECORD, stop=stop):
            return
        with suppress(FileNotFoundError):
            os.unlink(RECORD, dir_fd=fd)
        if os.path.samestat(found, os.stat(path.name, dir_fd=base, follow_symlinks=False)):
            os.rmdir(path.name, dir_fd=base)
        if owner is not None:
            told = {"root": str(path), "owner_pid": owner.pid, "sessions": sorted(names - {RECORD})}
            logger.info("kernelexec.swept", extra=told)
    finally:
        let_go(fd)


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == platform.user() and not stat.S_IMODE(found.st_mode) & 0o077


def _locked_soon(fd: int) -> bool:
    """Whether the lock of a dead owner's root is ours now; a sweep lets go of it after a look."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while not _lock(fd):
        owner = Owner.of(fd)
        if owner is None or not owner.gone or time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)  # in a thread: a lock cannot be waited for with a bound
    return True


def _was_left(fd: int, path: Path) -> bool:
    """Whether an open root, whose lock is ours, is still there and its owner is dead."""
    owner = Owner.of(fd)
    in_place = os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))  # noqa: PTH116 - as the other one
    return owner is not None and owner.gone and in_place


def hold(fd: int) -> int:
    """Keep a descriptor to this very process: no forked child may hold it on when this process ends."""
    _held.add(fd)
    return fd


def let_go(fd: int) -> None:
    """Close a descriptor that was held."""
    _held.discard(fd)
    os.close(fd)


def _part() -> None:
    """In a forked child: put nothing in the place of what is its parent's own; the numbers stay taken."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in _held:
        os.dup2(null, fd, inheritable=False)
    os.close(null)


# For the whole process, and only here: with its parent's descriptors a child would keep a dead owner's kernels alive too.
platform.in_forked_children(_part)


def is_held(fd: int, owner: Owner) -> bool:
    """Whether the owner of an open root lives; ``fd`` is closed soon after, as this may take a lock that is free."""
    return not _lock(fd, shared=True) if owner.locked else not owner.gone


def _lock(fd: int, *, shared: bool = False) -> bool:
    try:
        platform.lock(fd, shared=shared)
    except OSError:
        return False
    return True


def _started(pid: int) -> int | None:
    """When a living process started, in ticks since the machine did."""
    status = status_of(pid)
    return status.born if status else None


def _boot() -> str:
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pid_namespace() -> str:
    with suppress(OSError):
        return str((_PROC / "self/ns/pid").readlink())
    return ""
