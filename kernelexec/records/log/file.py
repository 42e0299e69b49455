"""A file that several processes add whole lines to, and that never grows for ever."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import InvalidConfig
from kernelexec.provisioning.platform import lock
from kernelexec.provisioning.runtime.owned_directory import hold, let_go

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNFIT = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})


class LogFile:
    """Adds to a file, each time by one write at its end. It is made where it is missing, for its user alone.

    Over ``limit_bytes`` it is renamed to ``<name>.1``, in the place of the one before, and begun anew.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._fd: int | None = None
        self._torn = False

    def open(self) -> None:
        """Have the file there.

        Raises:
            InvalidConfig: what is in its place, or in that of a directory of it, is no such thing.
            OSError: it cannot be written.
        """
        try:
            for directory in (self.path.parent.parent, self.path.parent):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError as exc:
            if exc.errno in _UNFIT:
                raise InvalidConfig(_unfit(self.path, exc.strerror or "")) from exc
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise InvalidConfig(_unfit(self.path, "It is no regular file"))
        self._fd = hold(fd)

    def append(self, content: bytes) -> None:
        """Add some lines.

        Raises:
            OSError: they are not, or not all, in the file.
        """
        fd = self._current(len(content))
        content = b"\n" + content if self._torn else content
        written = os.write(fd, content)
        self._torn = bool(written) and not content[:written].endswith(b"\n")
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            let_go(self._fd)
            self._fd = None

    def _current(self, more_bytes: int) -> int:
        """The open file; it is made anew where somebody removed or moved it, or where it is full."""
        if self._fd is not None and not self._is_in_place(self._fd):
            self.close()
        if self._fd is not None and (size := os.fstat(self._fd).st_size) and size + more_bytes > self._limit:
            self._turn_over(self._fd)
        if self._fd is None:
            try:
                self.open()
            except InvalidConfig as exc:
                raise OSError(errno.EINVAL, str(exc), str(self.path)) from exc
        assert self._fd is not None
        return self._fd

    def _is_in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False))  # noqa: PTH116 - the quicker one
        except OSError:
            return False

    def _turn_over(self, fd: int) -> None:
        """Put the full file aside; of several who would, one does, and the others find it moved."""
        with suppress(BlockingIOError):
            lock(fd)
            if self._is_in_place(fd):
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self.close()


def _unfit(path: Path, why: str) -> str:
    return f"log_dir: {path} cannot be a log. {why.rstrip('.')}: move what is there away, or choose another log_dir."
