"""Where secrets come from. Their values are no part of any configuration: it holds references, which may be shown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SerializationInfo

from kernelexec.config.types import Directory, FrozenModel

#: What a secret may be called: a variable's name that every shell takes, and which a mark in a text can show.
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
    """A regular file, of which one newline at the end does not count."""

    file: Directory
    """Its path. It is no link, unless that is the caller's own, or root's."""

    def __str__(self) -> str:
        return f"the file {self.file}"


class FromFunction:
    """A function of the caller's. What it holds is not shown: it may have been given the value."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], str]) -> None:
        self.call = call

    def __str__(self) -> str:
        return "its function"

    def __repr__(self) -> str:
        return "FromFunction(...)"


#: Where one secret comes from.
Reference = FromVariable | FromFile | FromFunction


def _reference(given: object) -> object:
    """A reference; whatever else was given is shown by no message, since it may be the secret."""
    if isinstance(given, FromVariable | FromFile | FromFunction):
        return given
    if callable(given):
        if inspect.iscoroutinefunction(given) or isinstance(given, type):
            raise ValueError("its function is a plain one that returns a str")
        return FromFunction(given)
    if isinstance(given, Mapping) and len(given) == 1:
        for name, kind in (("env", FromVariable), ("file", FromFile)):
            if isinstance(given.get(name), str) or (name == "file" and name in given):
                return kind.model_validate(dict(given))
    raise ValueError(_WAYS)


def _named(given: Mapping[str, Reference]) -> Mapping[str, Reference]:
    for name in given:
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            message = f"a secret is called by letters, digits and underscores, the first no digit, and not {_OURS}..."
            raise ValueError(message)
    return MappingProxyType(dict(given))


def _dumped(given: Mapping[str, Reference], info: SerializationInfo) -> dict[str, Any]:
    plain = info.mode == "json"
    return {name: found if isinstance(found, FromFunction) and not plain else _as_said(found) for name, found in given.items()}


def _as_said(reference: Reference) -> dict[str, str]:
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
    """The variables of this process that are secrets, by the names that they have here."""
    return frozenset(reference.env for reference in secrets.values() if isinstance(reference, FromVariable))
