"""Values on their way out of the kernel and back: pickles of a snapshot, the form of ``values``, and literals.

Pickles are read in the kernel only. The driver has the value of a cell as a literal of Python, usually the shown text. Scalars
of libraries, dates, infinities, NaN, and small arrays and tables have no literal: the form of ``values`` encodes these.
"""

from __future__ import annotations

import ast
import hashlib
import os
import pickle
import sys
import time
from base64 import b64encode
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, BinaryIO

from ..output.kept_output import truncate
from ..protocol import ENCODED_VALUE

_REASON_CHARS = 200
_VARIABLES = 1000
_CHUNK_BYTES = 1024 * 1024
_CODE_TYPES = (ModuleType, type, FunctionType, BuiltinFunctionType)
#: For literals: the text of a larger value is not looked at, and neither are more parts.
_TEXT_CHARS, _PARTS_MAX = 64 * 1024, 10_000
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
#: Modules with classes of scalars that are encoded.
_LIBRARIES = frozenset(("datetime", "decimal", "fractions", "uuid", "pathlib", "zoneinfo"))
_OF_PANDAS = frozenset(("Timestamp", "Timedelta", "NaTType", "NAType"))
_CONTAINERS = frozenset((list, tuple, set, frozenset, dict))


class _QuotaExceeded(Exception):
    """The data exceed their limit."""


class _HashedData:
    """A file for pickled data: counts, hashes and writes them, up to a limit."""

    def __init__(self, limit_bytes: int, file: BinaryIO) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._limit_bytes, self._file = limit_bytes, file

    def write(self, content: Any) -> int:
        """Write bytes, or a view of a large object's memory; called by pickle."""
        size = memoryview(content).nbytes
        self.size += size
        if self.size > self._limit_bytes:
            raise _QuotaExceeded
        self._file.write(content)
        self._hash.update(content)
        return size

    def digest(self) -> str:
        return self._hash.hexdigest()


def save_variables(
    variables: Mapping[str, Any], hidden: Container[str], directory: str, names: list[str] | None, limit_bytes: int
) -> dict[str, Any]:
    """Save variables as pickles within a limit for all snapshots together; return saved and left out variables.

    Without names the user's first thousand variables are saved, except names beginning with ``_``. Each variable has a file,
    which gets the final name when complete. The caller creates and removes the directory.
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
        # Exclusive, without links: other programs of the user can write here too, and may have put something in its place.
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


def load_variables(variables: dict[str, Any], directory: str, files: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Load variables from files of (name, file, sha256). A failed file leaves the variable unchanged."""
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
    # Non-blocking: a FIFO in the file's place must not stop the kernel. One descriptor for hash and pickle: a file put in its
    # place in between is not read.
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


def set_variables(variables: dict[str, Any], path: str) -> dict[str, Any]:
    """Set the variables of a file; if any value cannot be read, set none and return the reason."""
    from ..values import ValueDecoder, ValueRefused  # noqa: PLC0415 - few kernels need it

    with Path(path).open("rb") as file:
        content = bytearray(os.fstat(file.fileno()).st_size)
        file.readinto(content)
    try:
        variables.update(ValueDecoder(memoryview(content), sys.maxsize).decode())  # its owner wrote it
    except ValueRefused as exc:
        return {"why": str(exc)}
    return {}


def write_variables(variables: Mapping[str, Any], path: str, names: list[str], limit_bytes: int) -> dict[str, Any]:
    """Write values to a new file in an existing directory; return the missing names, or the reason why nothing was written."""
    from ..values import EncodedValues, ValueRefused  # noqa: PLC0415 - few kernels need it

    missing = [name for name in names if name not in variables]
    if missing:
        return {"missing": missing}
    try:
        encoded = EncodedValues({name: variables[name] for name in names}, limit_bytes)
    except ValueRefused as exc:
        return {"why": str(exc)}
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        file.writelines(encoded.pieces())
    return {}


def find_literal(value: Any, text: object) -> bool | str | None:
    """Return True if the shown text is a literal of the value, else another literal or the value's code; None without any.

    Only values of the classes of Python, numpy and pandas have a literal or a code, so no user code runs.
    """
    if _has_parts_of(value, _PLAIN):
        if _says(text, value):
            return True
        with suppress(ValueError, RecursionError):
            full = repr(value)  # the shown one may be cut, or formatted
            if _says(full, value):
                return full
    return _encode(value)


def _encode(value: Any) -> str | None:
    """Return a value in the form of ``values``, as text; None for a value without a form there, and for a large value."""
    with suppress(Exception):  # whatever the libraries of arrays and tables raise
        if _is_small(value):
            from ..values import EncodedValues  # noqa: PLC0415 - few kernels need it

            content = b"".join(EncodedValues({"value": value}, _TEXT_CHARS).pieces())
            text = ENCODED_VALUE + b64encode(content).decode("ascii")
            return text if len(text) <= _TEXT_CHARS else None
    return None


def _is_small(value: Any) -> bool:
    """Return whether a value is quickly encoded: a scalar, a container of scalars, a small array or table."""
    kind, numpy, pandas = type(value), sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and kind is numpy.ndarray:
        return bool(value.nbytes <= _TEXT_CHARS)
    if pandas is not None and kind in (pandas.DataFrame, pandas.Series):  # they need pyarrow, whose import would take a while
        return "pyarrow" in sys.modules and bool(value.size <= _PARTS_MAX)
    return _has_parts_of(value, _Scalars())


class _Scalars:
    """The set of scalar classes, by their modules."""

    def __contains__(self, kind: type) -> bool:
        library = str(kind.__module__).partition(".")[0]
        if library == "numpy":
            return issubclass(kind, sys.modules["numpy"].generic)
        return kind in _PLAIN or kind is range or library in _LIBRARIES or (library == "pandas" and kind.__name__ in _OF_PANDAS)


def _says(text: object, value: Any) -> bool:
    if type(text) is not str or len(text) > _TEXT_CHARS:
        return False
    try:
        return bool(ast.literal_eval(text) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False


def _has_parts_of(value: Any, plain: Any) -> bool:
    """Return whether a value is of the ``plain`` classes, or a nested container of at most ``_PARTS_MAX`` such values."""
    # A loop with a bound, not recursion: a container may contain itself, or be nested deeper than Python's stack.
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        count += 1
        kind = type(part)
        if kind in plain:
            continue
        if kind not in _CONTAINERS or count + len(waiting) + len(part) > _PARTS_MAX:
            return False
        waiting.extend(part)
        if kind is dict:
            waiting.extend(part.values())
    return True
