"""Types of settings: strict numbers, possible paths, frozen models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from kernelexec.config.messages import short_repr
from kernelexec.errors import InvalidConfig

MIB = 1024 * 1024
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": MIB * MIB}
#: The shortest budget that is taken, in seconds.
SHORTEST_TIMEOUT = 0.001


def _variables(variables: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or b"\0" in os.fsencode(name + value):
            message = f"{short_repr(name)} is no variable that a process could have"
            raise ValueError(message)
    return MappingProxyType(dict(variables))


def _path(value: object) -> object:
    """Check that the system could take a value as a path; whether anything is there is seen when it is used."""
    if isinstance(value, str | Path):
        if not str(value).strip():
            raise ValueError("it is empty: leave it out, or name one")
        if b"\0" in os.fsencode(value):
            raise ValueError("it holds a NUL character")
        try:
            Path(value).expanduser()
        except RuntimeError as exc:
            raise ValueError(str(exc)) from exc
    return value


def _interpreter(value: str) -> str:
    """Return a path as an absolute one, from the current directory: kernels start in directories of their own."""
    if os.sep not in value:
        return value
    try:
        return str(Path(value).expanduser().absolute())
    except FileNotFoundError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


def is_count(value: object) -> bool:
    """Return whether a value is a number of messages, or ``auto``."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _messages(value: object) -> object:
    if is_count(value):
        return value
    raise ValueError("it is a number, 0 or more, or 'auto'")


def pinned(value: Path) -> Path:
    """Return the target of a path now: later there may be other links on the way, where kernels write."""
    try:
        return Path(os.path.realpath(value.expanduser()))
    except OSError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


#: Variables of an environment; the mapping does not change.
Variables = Annotated[Mapping[str, str], AfterValidator(_variables), PlainSerializer(dict)]
Directory = Annotated[Path, BeforeValidator(_path)]
#: A directory or file, resolved when the configuration is read.
Pinned = Annotated[Directory, AfterValidator(pinned)]
Interpreter = Annotated[str, BeforeValidator(_path), AfterValidator(_interpreter)]
#: Numbers are numbers: neither text nor True is one.
Seconds = Annotated[float, Field(strict=True, ge=SHORTEST_TIMEOUT)]
Count = Annotated[int, Field(strict=True, le=2**63 - 1)]
#: How many processors' time; with less than that the system starts nothing.
Cpus = Annotated[float, Field(strict=True, ge=0.01, le=1024)]
#: How many messages back.
LastMessages = Annotated[int | Literal["auto"], BeforeValidator(_messages)]


def _pattern(value: re.Pattern[str]) -> re.Pattern[str]:
    if not value.pattern:
        raise ValueError("it is empty, and would match everything: leave it out, or say .*")
    return value


#: A regular expression that is not empty.
Pattern = Annotated[re.Pattern[str], AfterValidator(_pattern)]


class FrozenModel(BaseModel):
    """A part of the settings: frozen, and without unknown options."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def size(value: object, name: str) -> int:
    """Return bytes, from a number of them or from text as in ``512m``, ``1.5g`` and ``1048576``; units are powers of 1024.

    Raises:
        InvalidConfig: it is no size.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match:
        return int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    message = f"{name}={short_repr(value)}: it is a size, as 512m, 1.5g or 1048576."
    raise InvalidConfig(message)
