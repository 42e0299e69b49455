"""A digest of the values of variables, for the result cache: equal only where the values are equal in all their parts.

Only plain data has one. A value of another type could change when it is read (an iterator), or run code of its class, so it
has none.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, EllipsisType, FunctionType, NoneType
from typing import Any

#: Limit of the pickled data of one digest, in bytes.
BYTES_MAX = 64 * 1024 * 1024
_BUILTIN = frozenset(
    {NoneType, EllipsisType, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice}
)
#: Packages whose instances are plain data, and whose classes and functions pickle names to rebuild them.
_PACKAGES = frozenset({"numpy", "pandas", "datetime", "decimal", "fractions"})
_REBUILDERS = (type, FunctionType, BuiltinFunctionType)


def fingerprint(names: Iterable[str], namespace: Mapping[str, Any]) -> str | None:
    """Return the digest of the variables of these names, or None where one is missing, not plain data, or too large."""
    target = _Digest()
    try:
        for name in sorted(names):
            if isinstance(namespace[name], _REBUILDERS):
                return None
            target.write(f"{name}\n".encode())
            _PlainPickler(target, protocol=4).dump(namespace[name])
    except Exception:  # a value that cannot be pickled
        return None
    return target.hexdigest()


class _Digest:
    """A file that keeps only the digest of its content."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Add data, up to the bound.

        Raises:
            OverflowError: the data exceed the bound.
        """
        self._size += memoryview(data).nbytes
        if self._size > BYTES_MAX:
            raise OverflowError
        self._hash.update(data)
        return memoryview(data).nbytes

    def hexdigest(self) -> str:
        """Return the digest of everything written so far."""
        return self._hash.hexdigest()


class _PlainPickler(pickle.Pickler):
    """A pickler that refuses all objects but plain data."""

    def persistent_id(self, obj: Any) -> None:
        """Check an object before it is pickled.

        Raises:
            TypeError: the object is not plain data.
        """
        kind = type(obj)
        if kind in _BUILTIN or (kind is type and obj in _BUILTIN):
            return
        is_named = kind in _REBUILDERS or issubclass(kind, type) or kind.__name__ == "cython_function_or_method"
        owner = obj if is_named else kind
        if str(owner.__module__).partition(".")[0] not in _PACKAGES:
            message = f"{kind} is not plain data"
            raise TypeError(message)
