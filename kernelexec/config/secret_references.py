"""References to secrets. A configuration holds only references, which may be shown, and never values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SerializationInfo

from kernelexec.config.types import Directory, FrozenModel, ReadOnlyMapping

#: The name of a secret: a variable name that every shell accepts, and that fits into a mask.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_RESERVED_PREFIX = "KERNELEXEC_"
_REFERENCE_FORMS = "must be {'env': NAME}, {'file': PATH}, or a function that returns a str; never the value itself"


class FromVariable(FrozenModel):
    """A variable of this process's environment."""

    env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable's name."""

    def __str__(self) -> str:
        return f"the environment variable {self.env}"


class FromFile(FrozenModel):
    """A regular file. One newline at its end is removed."""

    file: Directory
    """The file's path. A link must belong to the caller or root."""

    def __str__(self) -> str:
        return f"the file {self.file}"


class FromFunction:
    """A function of the caller. Its representation is hidden, since it may contain the value.

    It is not a dataclass, whose fields pydantic would dump.
    """

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], str]) -> None:
        self.call = call

    def __eq__(self, other: object) -> bool:
        return self.call == other.call if isinstance(other, FromFunction) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.call)

    def __str__(self) -> str:
        return "its function"

    def __repr__(self) -> str:
        return "FromFunction(...)"


#: The source of one secret.
Reference = FromVariable | FromFile | FromFunction


def _parse_reference(value: object) -> object:
    """Return a reference. Messages never show an invalid value, since it may be the secret."""
    if isinstance(value, FromVariable | FromFile | FromFunction):
        return value
    if callable(value):
        if inspect.iscoroutinefunction(value) or isinstance(value, type):
            raise ValueError("must be a plain function that returns a str")
        return FromFunction(value)
    if isinstance(value, Mapping) and len(value) == 1:
        for name, kind in (("env", FromVariable), ("file", FromFile)):
            if isinstance(value.get(name), str) or (name == "file" and name in value):
                return kind.model_validate(dict(value))
    raise ValueError(_REFERENCE_FORMS)


def _check_names(value: Mapping[str, Reference]) -> Mapping[str, Reference]:
    for name in value:
        if not _NAME.fullmatch(name) or name.startswith(_RESERVED_PREFIX):
            raise ValueError(
                f"a secret's name must be letters, digits and underscores, and not begin with a digit or {_RESERVED_PREFIX}"
            )
    return ReadOnlyMapping(value)


def _serialize(value: Mapping[str, Reference], info: SerializationInfo) -> dict[str, Any]:
    hidden = {"function": "..."} if info.mode == "json" else None
    return {
        name: hidden or reference if isinstance(reference, FromFunction) else reference.model_dump(mode="json")
        for name, reference in value.items()
    }


#: References by the names of kernels' variables, as a read-only mapping.
Secrets = Annotated[
    Mapping[str, Annotated[Any, BeforeValidator(_parse_reference)]],
    AfterValidator(_check_names),
    PlainSerializer(_serialize),
]


def source_variables(secrets: Mapping[str, Reference]) -> frozenset[str]:
    """Return the names of this process's variables that hold secrets."""
    return frozenset(reference.env for reference in secrets.values() if isinstance(reference, FromVariable))
