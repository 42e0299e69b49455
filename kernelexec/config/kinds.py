"""What settings are made of: numbers that are numbers, paths that the system could take, branches that do not change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

MIB = 1024 * 1024
#: The shortest budget that is taken, in seconds.
SHORTEST_TIMEOUT = 0.001


def _variables(given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        if not name or "=" in name or b"\0" in os.fsencode(name + value):
            message = f"{name!r} is no variable that a process could have"
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


#: Variables of an environment; the mapping does not change.
Variables = Annotated[Mapping[str, str], AfterValidator(_variables), PlainSerializer(dict)]
Directory = Annotated[Path, BeforeValidator(_path)]
Interpreter = Annotated[str, BeforeValidator(_path), AfterValidator(_interpreter)]
#: Numbers are numbers: neither text nor True is one.
Seconds = Annotated[float, Field(strict=True, ge=SHORTEST_TIMEOUT)]
Count = Annotated[int, Field(strict=True)]


class Branch(BaseModel):
    """A part of the tree: frozen, with no option but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
