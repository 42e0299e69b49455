"""References to secrets. A configuration holds only these, which may be shown, and no value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SerializationInfo

from kernelexec.config.types import Directory, FrozenModel

#: The name of a secret: a variable's name for every shell, which also fits into a mark.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_OURS = "KERNELEXEC_"
_WAYS = "it is {'env': NAME}, {'file': PATH}, or a function that returns a str; the value itself is never given here"


class FromVariable(FrozenModel):
    """A variable of this process's environment."""

    env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Its name."""

    def __str__(self) -> str:
        return f"the environment variable {self.env}"


class FromFile(FrozenModel):
    """A regular file; one newline at its end does not count."""

    file: Directory
    """Its path, which must not be a link of another user than the caller or root."""

    def __str__(self) -> str:
        return f"the file {self.file}"


class FromFunction:
    """A function of the caller's. Its content is not shown, since it may hold the value."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], str]) -> None:
        self.call = call

    def __str__(self) -> str:
        return "its function"

    def __repr__(self) -> str:
        return "FromFunction(...)"


#: The source of one secret.
Reference = FromVariable | FromFile | FromFunction


def _reference(value: object) -> object:
    """Return a reference. No message shows another value, since it may be the secret."""
    if isinstance(value, FromVariable | FromFile | FromFunction):
        return value
    if callable(value):
        if inspect.iscoroutinefunction(value) or isinstance(value, type):
            raise ValueError("its function is a plain one that returns a str")
        return FromFunction(value)
    if isinstance(value, Mapping) and len(value) == 1:
        for name, kind in (("env", FromVariable), ("file", FromFile)):
            if isinstance(value.get(name), str) or (name == "file" and name in value):
                return kind.model_validate(dict(value))
    raise ValueError(_WAYS)


def _named(value: Mapping[str, Reference]) -> Mapping[str, Reference]:
    for name in value:
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            message = f"a secret is called by letters, digits and underscores, the first no digit, and not {_OURS}..."
            raise ValueError(message)
    return MappingProxyType(dict(value))


def _dumped(value: Mapping[str, Reference], info: SerializationInfo) -> dict[str, Any]:
    plain = info.mode == "json"
    return {
        name: reference if isinstance(reference, FromFunction) and not plain else _as_json(reference)
        for name, reference in value.items()
    }


def _as_json(reference: Reference) -> dict[str, str]:
    match reference:
        case FromVariable():
            return {"env": reference.env}
        case FromFile():
            return {"file": str(reference.file)}
        case FromFunction():
            return {"function": "..."}


#: References by the names of the variables that kernels get; the mapping does not change.
Secrets = Annotated[
    Mapping[str, Annotated[Any, BeforeValidator(_reference)]],
    AfterValidator(_named),
    PlainSerializer(_dumped),
]


def sources(secrets: Mapping[str, Reference]) -> frozenset[str]:
    """Return the names of this process's variables that are secrets."""
    return frozenset(reference.env for reference in secrets.values() if isinstance(reference, FromVariable))
