"""Results as private files, one for each key, bounded in total size. A damaged file counts as missing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import InvalidConfig
from kernelexec.results import ExecutionResult

#: The part of its size that a full store keeps, so that it is not searched at each result.
_KEPT_PART = 0.8
#: A result larger than the limit divided by this number is not stored.
_PARTS = 8
_PRIVATE = 0o077


class Store:
    """A directory of results. Its methods block; several processes may use one directory at once."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._size: int | None = None

    def get(self, key: str) -> ExecutionResult | None:
        """Return the result of a key, and mark it as used."""
        path = self._path(key)
        try:
            result = ExecutionResult.from_json(path.read_bytes())
            os.utime(path)
        except OSError:
            return None
        except ValueError:
            self.drop(key)
            return None
        return result

    def put(self, key: str, result: ExecutionResult) -> bool:
        """Store a result; return whether it was stored."""
        content = result.to_json().encode("utf-8", "surrogatepass")
        if len(content) > self._limit // _PARTS:
            return False
        path = self._path(key)
        unfinished = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - rights
                file.write(content)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            return False
        self._grow(len(content))
        return True

    def drop(self, key: str) -> None:
        """Delete a result."""
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"

    def _grow(self, size: int) -> None:
        """Count a new file, and remove the least recently used ones where the total is too large."""
        if self._size is not None:
            self._size += size
        if self._size is None or self._size > self._limit:
            files = sorted(self._files(), reverse=True)
            self._size = sum(size for _, size, _ in files)
            allowed = self._limit * _KEPT_PART if self._size > self._limit else self._limit
            while self._size > allowed:
                _, removed, path = files.pop()
                with suppress(OSError):
                    Path(path).unlink()
                self._size -= removed

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of use, the size and the path of each file, also of unfinished ones of dead processes."""
        for shelf, _, names in os.walk(self._directory):
            for name in names:
                path = os.path.join(shelf, name)  # noqa: PTH118 - text in, text out
                with suppress(OSError):
                    status = os.stat(path)  # noqa: PTH116 - the same
                    yield status.st_mtime, status.st_size, path


def check(directory: Path, writable: Iterable[Path]) -> None:
    """Check before anything runs that neither cells nor other users can write to the cache.

    Raises:
        InvalidConfig: the directory overlaps one of ``writable``, is no directory, or is open to others.
    """
    cache = directory.resolve()
    for path in writable:
        target = path.expanduser().resolve()
        if cache.is_relative_to(target) or target.is_relative_to(cache):
            message = f"cache.directory: {directory} must not overlap {path}, where cells can write: choose another one."
            raise InvalidConfig(message)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as exc:
        message = f"cache.directory: {directory}: {exc.strerror or exc}: choose another one."
        raise InvalidConfig(message) from exc
    if status.st_mode & _PRIVATE or status.st_uid != os.geteuid():
        message = f"cache.directory: {directory} must be private to this user: chmod 700, or choose another one."
        raise InvalidConfig(message)
