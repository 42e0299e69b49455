"""Messages about options that do not fit, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ValidationError

from kernelexec.errors import InvalidConfig, nearest

#: Options whose values may be secrets: no message shows them.
_PRIVATE = frozenset({"environment", "docker_run_args", "secrets"})
#: pydantic's error types for a mapping that is expected; its messages would name our classes.
_WANTS_MAPPING = frozenset({"model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"})
_WANTS_LIST = frozenset({"tuple_type", "list_type"})
_WORDS = (
    (Mapping, "`key: value` pairs"),
    (list | tuple, "a list"),
    (type(None), "nothing"),
    (bool, "true or false"),
    (int | float, "a number"),
    (str, "text"),
)
_SHOWN_CHARS = 80


def explain(exc: ValidationError, model: type[BaseModel], title: str) -> str:
    """Return a line that names every unknown option, with the nearest known one, and every unfit value, with its path."""
    lines = []
    for error in exc.errors():
        location, value = error["loc"], error["input"]
        path = ".".join(shorten(str(part)) for part in location)
        if error["type"] == "extra_forbidden":
            lines.append(f"{path} is no option{nearest(str(location[-1]), _options(model, location[:-1]))}")
        elif error["type"] in _WANTS_MAPPING:
            lines.append(f"{path}: {mapping_wanted(value)}" if path else mapping_wanted(value))
        elif error["type"] in _WANTS_LIST:
            lines.append(f"{path}: a list is wanted, not {_kind(value)}")
        else:
            reason = error["msg"].removeprefix("Value error, ").removesuffix(".")
            may_show = not _PRIVATE & set(location) and not isinstance(value, Mapping | BaseModel)
            where = f"{path}: " if path else ""  # a message about several options names them itself
            lines.append(f"{where}{reason}" + (f" (given: {short_repr(value)})" if may_show else ""))
    return f"{title}: " + "; ".join(lines) + "."


def check_known(names: Iterable[object], known: Iterable[str], where: str = "") -> None:
    """Refuse an unknown name; ``where`` begins the message.

    Raises:
        InvalidConfig: the message names the nearest.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InvalidConfig(f"{where}{shorten(str(name))} is no option{nearest(str(name), known)}.")


def shorten(text: str, most: int = _SHOWN_CHARS) -> str:
    """Return the text, or its beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_repr(value: object) -> str:
    """Return the beginning of a value's ``repr``, for messages."""
    return shorten(repr(value))


def mapping_wanted(value: object) -> str:
    """Return the message for a value that must be a mapping."""
    return f"`key: value` pairs are wanted, not {_kind(value)}"


def _kind(value: object) -> str:
    return next((word for kind, word in _WORDS if isinstance(value, kind)), "something else")


def _options(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    branch: type[BaseModel] | None = model
    parts = iter(path)
    for part in parts:
        field = branch.model_fields.get(str(part)) if branch else None
        branch = _model(field.annotation) if field else None
        if field and branch is not field.annotation:
            next(parts, None)  # the place in a sequence, or the key in a mapping
    return list(branch.model_fields) if branch else []


def _model(annotation: object) -> type[BaseModel] | None:
    """Return the first model in a type: its own, that of a sequence's items or of a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model, get_args(annotation)) if model), None)
