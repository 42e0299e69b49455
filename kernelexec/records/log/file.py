"""A bounded file to which several processes append whole lines."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import InvalidConfig
from kernelexec.provisioning.platform import lock
from kernelexec.provisioning.runtime.owned_directory import close_fd, track_fd

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNFIT = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})


class LogFile:
    """A file that is created where it is missing, readable by its user only. Each append is one write at its end.

    Above ``limit_bytes`` the file is renamed to ``<name>.1``, replacing an earlier one, and a new file is begun. `logging`'s
    rotating handlers follow links and lose lines when two processes rotate one file.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._fd: int | None = None
        self._torn = False

    def open(self) -> None:
        """Open the file, and create it and its two directories where they are missing.

        Raises:
            InvalidConfig: there is something else in its place, or in the place of one of its directories.
            OSError: the file cannot be written.
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
            raise InvalidConfig(_unfit(self.path, "It is not a regular file"))
        self._fd = track_fd(fd)

    def append(self, content: bytes) -> None:
        """Append lines.

        Raises:
            OSError: not all of them are in the file.
        """
        fd = self._current(len(content))
        content = b"\n" + content if self._torn else content
        written = os.write(fd, content)
        self._torn = bool(written) and not content[:written].endswith(b"\n")
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            close_fd(self._fd)
            self._fd = None

    def _current(self, more_bytes: int) -> int:
        """Return the open file; begin a new one where it was removed, moved or filled."""
        if self._fd is not None and not self._is_in_place(self._fd):
            self.close()
        if self._fd is not None and (size := os.fstat(self._fd).st_size) and size + more_bytes > self._limit:
            self._rotate(self._fd)
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

    def _rotate(self, fd: int) -> None:
        """Rename the full file, unless another process has it locked to do the same."""
        with suppress(BlockingIOError):
            lock(fd)
            if self._is_in_place(fd):
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            self.close()


def _unfit(path: Path, reason: str) -> str:
    return f"log_dir: {path} cannot be a log. {reason.rstrip('.')}: move it away, or choose another log_dir."
