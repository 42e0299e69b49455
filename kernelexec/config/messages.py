"""One-line messages about invalid options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ValidationError

from kernelexec.errors import InvalidConfig, did_you_mean

#: Options whose values may be secrets, so messages do not show them.
_PRIVATE = frozenset({"environment", "docker_run_args", "secrets"})
#: pydantic's error types for an expected mapping; its own messages would name our classes.
_WANTS_MAPPING = frozenset({"model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"})
_WANTS_LIST = frozenset({"tuple_type", "list_type"})
_KIND_NAMES = (
    (Mapping, "`key: value` pairs"),
    (list | tuple, "a list"),
    (type(None), "nothing"),
    (bool, "true or false"),
    (int | float, "a number"),
    (str, "text"),
)
_MESSAGE_CHARS = 80


def explain(exc: ValidationError, model: type[BaseModel], title: str) -> str:
    """Describe a validation error in one line: every unknown option with the closest known one, every invalid value."""
    lines = []
    for error in exc.errors():
        location, value = error["loc"], error["input"]
        path = ".".join(shorten(str(part)) for part in location)
        if error["type"] == "extra_forbidden":
            lines.append(f"{path} is not an option{did_you_mean(str(location[-1]), _option_names(model, location[:-1]))}")
        elif error["type"] in _WANTS_MAPPING:
            lines.append(f"{path}: {mapping_error(value)}" if path else mapping_error(value))
        elif error["type"] in _WANTS_LIST:
            lines.append(f"{path}: must be a list, not {_describe_kind(value)}")
        else:
            reason = error["msg"].removeprefix("Value error, ").removesuffix(".")
            may_show = not _PRIVATE & set(location) and not isinstance(value, Mapping | BaseModel)
            where = f"{path}: " if path else ""  # a message about several options names them itself
            lines.append(f"{where}{reason}" + (f" (given: {short_repr(value)})" if may_show else ""))
    return f"{title}: " + "; ".join(lines) + "."


def check_known(names: Iterable[object], known: Iterable[str], where: str = "") -> None:
    """Reject unknown names; ``where`` begins the message.

    Raises:
        InvalidConfig: a name is unknown; the message names the closest known one.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InvalidConfig(f"{where}{shorten(str(name))} is not an option{did_you_mean(str(name), known)}.")


def shorten(text: str, most: int = _MESSAGE_CHARS) -> str:
    """Shorten a text to its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_repr(value: object) -> str:
    """Return the shortened ``repr`` of a value, for messages."""
    return shorten(repr(value))


def mapping_error(value: object) -> str:
    """Return the message for a value that must be a mapping."""
    return f"must be `key: value` pairs, not {_describe_kind(value)}"


def _describe_kind(value: object) -> str:
    return next((word for kind, word in _KIND_NAMES if isinstance(value, kind)), "something else")


def _option_names(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    branch: type[BaseModel] | None = model
    parts = iter(path)
    for part in parts:
        field = branch.model_fields.get(str(part)) if branch else None
        branch = _model_in(field.annotation) if field else None
        if field and branch is not field.annotation:
            next(parts, None)  # the index in a sequence, or the key in a mapping
    return list(branch.model_fields) if branch else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the first model in a type: the type itself, or that of a sequence's items or a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)
