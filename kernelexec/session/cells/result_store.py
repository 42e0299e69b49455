"""A store of results as private files, one for each key, with a limit of the total size. A damaged file counts as missing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import InvalidConfig
from kernelexec.results import ExecutionResult

#: The share of its limit that a full store keeps, so that it is not searched at each new result.
_KEPT_SHARE = 0.8
#: A result larger than the limit divided by this number is not stored.
_SIZE_DIVISOR = 8
_OTHERS_MODE = 0o077
#: The size of all results together, in bytes; the least recently used are removed first.
_LIMIT_BYTES = 256 * 1024 * 1024


class ResultStore:
    """A directory of results. Its methods block; several processes may use one directory concurrently."""

    def __init__(self, directory: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._size_bytes: int | None = None

    def get(self, key: str) -> ExecutionResult | None:
        """Return the result of a key, and update its time of use."""
        path = self._make_path(key)
        try:
            result = ExecutionResult.from_json(path.read_bytes())
            os.utime(path)
        except OSError:
            return None
        except ValueError:
            self.delete(key)
            return None
        return result

    def put(self, key: str, result: ExecutionResult) -> bool:
        """Store a result; return whether it was stored."""
        content = result.to_json().encode("utf-8", "surrogatepass")
        if len(content) > self._limit_bytes // _SIZE_DIVISOR:
            return False
        path = self._make_path(key)
        temporary_path = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - rights
                file.write(content)
            temporary_path.replace(path)
        except OSError:
            with suppress(OSError):
                temporary_path.unlink()
            return False
        self._enforce_limit(len(content))
        return True

    def delete(self, key: str) -> None:
        """Delete a result."""
        with suppress(OSError):
            self._make_path(key).unlink()

    def _make_path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"

    def _enforce_limit(self, size: int) -> None:
        """Add a new file's size, and remove the least recently used files if the total is too large."""
        if self._size_bytes is not None:
            self._size_bytes += size
        if self._size_bytes is None or self._size_bytes > self._limit_bytes:
            files = sorted(self._list_files(), reverse=True)
            self._size_bytes = sum(size for _, size, _ in files)
            allowed = self._limit_bytes * _KEPT_SHARE if self._size_bytes > self._limit_bytes else self._limit_bytes
            while self._size_bytes > allowed:
                _, removed, path = files.pop()
                with suppress(OSError):
                    Path(path).unlink()
                self._size_bytes -= removed

    def _list_files(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of use, the size and the path of each file, including temporary files of dead processes."""
        for directory, _, names in os.walk(self._directory):
            for name in names:
                path = os.path.join(directory, name)  # noqa: PTH118 - paths as text, for speed
                with suppress(OSError):
                    status = os.stat(path)  # noqa: PTH116 - paths as text, for speed
                    yield status.st_mtime, status.st_size, path


def check_directory(directory: Path, writable: Iterable[Path]) -> None:
    """Raise ``InvalidConfig`` if the directory overlaps a ``writable`` one, or is not private to this user."""
    cache = directory.resolve()
    for path in writable:
        target = path.expanduser().resolve()
        if cache.is_relative_to(target) or target.is_relative_to(cache):
            message = f"cache: {directory} must not overlap {path}, where cells can write: choose another one."
            raise InvalidConfig(message)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as exc:
        raise InvalidConfig(f"cache: {directory}: {exc.strerror or exc}: choose another one.") from exc
    if status.st_mode & _OTHERS_MODE or status.st_uid != os.geteuid():
        raise InvalidConfig(f"cache: {directory} must be private to this user: chmod 700, or choose another one.")
