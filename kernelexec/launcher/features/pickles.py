"""Variables as pickles, in the kernel only: of a snapshot, each in a file of its own."""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, BinaryIO

from ..output.kept_output import truncate

_REASON_CHARS = 200
_VARIABLES = 1000
_CHUNK_BYTES = 1024 * 1024
_CODE_TYPES = (ModuleType, type, FunctionType, BuiltinFunctionType)


class _QuotaExceeded(Exception):
    """The data exceed their limit."""


class _HashedData:
    """Pickled data that are counted, hashed and written to a file, up to a limit."""

    def __init__(self, limit_bytes: int, file: BinaryIO) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._limit_bytes, self._file = limit_bytes, file

    def write(self, content: Any) -> int:
        """Take bytes, or a view of a large object's own; pickle calls this."""
        size = memoryview(content).nbytes
        self.size += size
        if self.size > self._limit_bytes:
            raise _QuotaExceeded
        self._file.write(content)
        self._hash.update(content)
        return size

    def digest(self) -> str:
        return self._hash.hexdigest()


def save(
    variables: Mapping[str, Any], hidden: Container[str], directory: str, names: list[str] | None, limit_bytes: int
) -> dict[str, Any]:
    """Save variables within the limit, which earlier snapshots use up too; return saved and left out ones.

    Without names the user's first thousand are saved, except those that begin with ``_``.
    A variable's file gets its name once it is complete. The directory is the caller's, to create and to remove.
    """
    if names is None:
        users = (name for name in list(variables) if isinstance(name, str) and not name.startswith("_") and name not in hidden)
        names = sorted(users)[:_VARIABLES]
    target = Path(directory)
    limit_bytes = max(0, limit_bytes - _used_bytes(target.parent))
    saved: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        missing: dict[str, Any] = {"name": name, "why": "there is no variable of that name", "defined": False}
        outcome = _save(name, variables[name], target / f"{number}.pickle", limit_bytes) if name in variables else missing
        (left_out if "why" in outcome else saved).append(outcome)
        limit_bytes -= outcome.get("size_bytes", 0)
    return {"saved": saved, "left_out": left_out}


def _used_bytes(target: Path) -> int:
    """Return the size of all snapshots of a workspace; links are not followed."""
    total = 0
    with suppress(OSError):
        for directory in os.scandir(target):
            if directory.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    total += sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(directory))
    return total


def _save(name: str, value: Any, path: Path, limit_bytes: int) -> dict[str, Any]:
    if isinstance(value, _CODE_TYPES):
        return {"name": name, "why": f"a {type(value).__name__}: run its code again to define it", "defined": True}
    begun, temporary = time.monotonic(), path.with_suffix(".part")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            data = _HashedData(limit_bytes, file)
            pickle.Pickler(data, protocol=5).dump(value)
        temporary.replace(path)
    except _QuotaExceeded:
        reason = f"snapshots have {limit_bytes} bytes left and cannot hold it; delete older snapshots"
        return _discard(temporary, name, reason)
    except Exception as exc:  # a user's __reduce__ may raise anything
        return _discard(temporary, name, f"it cannot be pickled: {_describe_error(exc)}")
    return {
        "name": name,
        "type": _type_name(value),
        "size_bytes": data.size,
        "seconds": time.monotonic() - begun,
        "file": path.name,
        "sha256": data.digest(),
    }


def _discard(temporary: Path, name: str, reason: str) -> dict[str, Any]:
    temporary.unlink(missing_ok=True)
    return {"name": name, "why": reason, "defined": False}


def load(variables: dict[str, Any], directory: str, files: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Load variables from files of (name, file, sha256). A variable whose file fails stays as it is."""
    back, missing = [], []
    for name, file, digest in files:
        try:
            variables[name] = _load(Path(directory) / file, digest)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # a user's __setstate__ may raise anything
            missing.append({"name": name, "why": _describe_error(exc)})
        else:
            back.append(name)
    return {"back": back, "missing": missing}


def _load(path: Path, digest: str) -> Any:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        digester = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):  # hashlib.file_digest never ends at an empty FIFO
            digester.update(chunk)
        if digester.hexdigest() != digest:
            raise ValueError("its file has changed since it was saved")
        file.seek(0)
        return pickle.load(file)  # noqa: S301 - in the kernel, where the user's code runs anyway


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"[:_REASON_CHARS] if kind.__module__ != "builtins" else kind.__qualname__


def _describe_error(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {truncate(exc)}"[:_REASON_CHARS]
