"""Results as files, one for each key: private, written as a whole, bounded together. A damaged one is none."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kernelexec.errors import InvalidConfig
from kernelexec.results import ExecutionResult

#: How much of its size stays when it is full, so that it is not searched at each result.
_LEFT = 0.8
#: A result that takes more than this part of the whole is not kept.
_PART = 8
_PRIVATE = 0o077


class Store:
    """Its methods block, for a thread. Several processes may use one directory at once."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._size: int | None = None

    def get(self, key: str) -> ExecutionResult | None:
        """The result of that key; it counts as used."""
        path = self._path(key)
        try:
            found = ExecutionResult.from_json(path.read_bytes())
            os.utime(path)
        except OSError:
            return None
        except ValueError:
            self.drop(key)
            return None
        return found

    def put(self, key: str, result: ExecutionResult) -> bool:
        """Keep a result; whether it is kept."""
        content = result.to_json().encode("utf-8", "surrogatepass")
        if len(content) > self._limit // _PART:
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
        """Forget a result."""
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"

    def _grow(self, size: int) -> None:
        """Remove what was used least lately, once all together take too much."""
        if self._size is not None:
            self._size += size
        if self._size is None or self._size > self._limit:
            kept = sorted(self._kept(), reverse=True)
            self._size = sum(size for _, size, _ in kept)
            allowed = self._limit * _LEFT if self._size > self._limit else self._limit
            while self._size > allowed:
                _, gone, path = kept.pop()
                with suppress(OSError):
                    Path(path).unlink()
                self._size -= gone

    def _kept(self) -> Iterator[tuple[float, int, str]]:
        """When each file was used, its size, and where it is; unfinished ones of processes that died too."""
        for shelf, _, names in os.walk(self._directory):
            for name in names:
                path = os.path.join(shelf, name)  # noqa: PTH118 - text in, text out
                with suppress(OSError):
                    found = os.stat(path)  # noqa: PTH116 - the same
                    yield found.st_mtime, found.st_size, path


def check(directory: Path, written: Iterable[Path]) -> None:
    """Refuse a directory that cells could write, or others read, before anything runs; ``written`` is where cells can write.

    Raises:
        InvalidConfig: it is one of them, or none.
    """
    place = directory.resolve()
    for given in written:
        works = given.expanduser().resolve()
        if place.is_relative_to(works) or works.is_relative_to(place):
            message = f"cache.directory: {directory} and {given}, where cells can write, lie in each other: choose another one."
            raise InvalidConfig(message)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = directory.stat()
    except OSError as exc:
        message = f"cache.directory: {directory}: {exc.strerror or exc}: choose another one."
        raise InvalidConfig(message) from exc
    if about.st_mode & _PRIVATE or about.st_uid != os.geteuid():
        message = f"cache.directory: {directory} is not this user's alone: chmod 700, or choose another one."
        raise InvalidConfig(message)
