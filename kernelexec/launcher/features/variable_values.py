"""Variables as values for the driver, and from it: see ``values``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..values import EncodedValues, ValueDecoder, ValueRefused


def set_variables(variables: dict[str, Any], path: str) -> dict[str, Any]:
    """Set the variables of a file; return the reason if one cannot be read, and then set none."""
    with Path(path).open("rb") as file:
        content = bytearray(os.fstat(file.fileno()).st_size)
        file.readinto(content)
    try:
        variables.update(ValueDecoder(memoryview(content), sys.maxsize).decode())  # its owner wrote it
    except ValueRefused as exc:
        return {"why": str(exc)}
    return {}


def write_variables(variables: Mapping[str, Any], path: str, names: list[str], limit_bytes: int) -> dict[str, Any]:
    """Write values to a new file in a directory that is there; return the missing names, or the reason for none."""
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
