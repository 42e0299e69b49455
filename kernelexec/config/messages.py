"""What does not fit in a mapping of options, in one line of plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ValidationError

from kernelexec.errors import InvalidConfig, nearest

#: Options whose values may be secrets: no message shows them.
_PRIVATE = frozenset({"environment", "docker_run_args", "secrets"})
#: pydantic's names for: a mapping was wanted. What it says of them names our classes.
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
    """Every option that is unknown, with the nearest known one, and every value that does not fit, with its place."""
    lines = []
    for error in exc.errors():
        place, given = error["loc"], error["input"]
        path = ".".join(shorten(str(part)) for part in place)
        if error["type"] == "extra_forbidden":
            lines.append(f"{path} is no option{nearest(str(place[-1]), _options(model, place[:-1]))}")
        elif error["type"] in _WANTS_MAPPING:
            lines.append(f"{path}: {mapping_wanted(given)}" if path else mapping_wanted(given))
        elif error["type"] in _WANTS_LIST:
            lines.append(f"{path}: a list is wanted, not {_kind(given)}")
        else:
            why = error["msg"].removeprefix("Value error, ").removesuffix(".")
            may_show = not _PRIVATE & set(place) and not isinstance(given, Mapping | BaseModel)
            where = f"{path}: " if path else ""  # what is said of all options together names them itself
            lines.append(f"{where}{why}" + (f" (given: {short_repr(given)})" if may_show else ""))
    return f"{title}: " + "; ".join(lines) + "."


def check_known(given: Iterable[object], known: Iterable[str], where: str = "") -> None:
    """Refuse a name that is none of those that are known; ``where`` is said ahead of it.

    Raises:
        InvalidConfig: the message names the nearest.
    """
    known = tuple(known)
    for name in given:
        if name not in known:
            raise InvalidConfig(f"{where}{shorten(str(name))} is no option{nearest(str(name), known)}.")


def shorten(text: str, most: int = _SHOWN_CHARS) -> str:
    """The text, or its beginning with dots behind it: a message is read, not searched."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_repr(given: object) -> str:
    """A value as messages show it: as Python writes it, its beginning."""
    return shorten(repr(given))


def mapping_wanted(given: object) -> str:
    """That a mapping is wanted, and what stands in its place, in words."""
    return f"`key: value` pairs are wanted, not {_kind(given)}"


def _kind(given: object) -> str:
    return next((word for kind, word in _WORDS if isinstance(given, kind)), "something else")


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
    """The first model in a type: its own, that of a sequence's items or of a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model, get_args(annotation)) if found), None)
