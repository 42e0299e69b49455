"""What settings are made of: numbers that are numbers, paths that the system could take, branches that do not change."""

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


def _variables(given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        if not name or "=" in name or b"\0" in os.fsencode(name + value):
            message = f"{short_repr(name)} is no variable that a process could have"
            raise ValueError(message)
    return MappingProxyType(dict(given))


def _path(given: object) -> object:
    """What the system could take for a path; whether anything is there is seen when it is used."""
    if isinstance(given, str | Path):
        if not str(given).strip():
            raise ValueError("it is empty: leave it out, or name one")
        if b"\0" in os.fsencode(given):
            raise ValueError("it holds a NUL character")
        try:
            Path(given).expanduser()
        except RuntimeError as exc:
            raise ValueError(str(exc)) from exc
    return given


def _interpreter(given: str) -> str:
    """A path counts from the current directory, as it would in a shell: kernels start in directories of their own."""
    if os.sep not in given:
        return given
    try:
        return str(Path(given).expanduser().absolute())
    except FileNotFoundError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


def is_count(given: object) -> bool:
    """Whether it is a number of messages, or ``auto``."""
    return given == "auto" or (isinstance(given, int) and not isinstance(given, bool) and given >= 0)


def _messages(given: object) -> object:
    if is_count(given):
        return given
    raise ValueError("it is a number, 0 or more, or 'auto'")


def pinned(given: Path) -> Path:
    """Where a path leads now: later there may be other links on the way, where kernels write."""
    try:
        return Path(os.path.realpath(given.expanduser()))
    except OSError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


#: Variables of an environment; the mapping does not change.
Variables = Annotated[Mapping[str, str], AfterValidator(_variables), PlainSerializer(dict)]
Directory = Annotated[Path, BeforeValidator(_path)]
#: One that is used as it was when the configuration was read.
Pinned = Annotated[Directory, AfterValidator(pinned)]
Interpreter = Annotated[str, BeforeValidator(_path), AfterValidator(_interpreter)]
#: Numbers are numbers: neither text nor True is one.
Seconds = Annotated[float, Field(strict=True, ge=SHORTEST_TIMEOUT)]
Count = Annotated[int, Field(strict=True, le=2**63 - 1)]
#: How many processors' time; with less than that the system starts nothing.
Cpus = Annotated[float, Field(strict=True, ge=0.01, le=1024)]
#: How many messages back.
LastMessages = Annotated[int | Literal["auto"], BeforeValidator(_messages)]


def _pattern(given: re.Pattern[str]) -> re.Pattern[str]:
    if not given.pattern:
        raise ValueError("it is empty, and would match everything: leave it out, or say .*")
    return given


#: A regular expression that says something.
Pattern = Annotated[re.Pattern[str], AfterValidator(_pattern)]


class FrozenModel(BaseModel):
    """A part of the tree: frozen, with no option but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def size(value: object, name: str) -> int:
    """Bytes, from a number of them or from text as in ``512m``, ``1.5g`` and ``1048576``; units are powers of 1024.

    Raises:
        InvalidConfig: it is no size.
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        return int(Decimal(found[1]) * _UNITS[found[2].lower()])
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    message = f"{name}={short_repr(value)}: it is a size, as 512m, 1.5g or 1048576."
    raise InvalidConfig(message)
