"""What does not fit in a mapping of options, in one line of plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import BaseModel, ValidationError

from kernelexec.errors import nearest

#: Options whose values may be secrets: no message shows them.
_PRIVATE = frozenset({"environment", "docker_run_args", "secrets"})


def explain(exc: ValidationError, model: type[BaseModel], title: str) -> str:
    """Every option that is unknown, with the nearest known one, and every value that does not fit, with its place."""
    lines = []
    for error in exc.errors():
        place, given = error["loc"], error["input"]
        path = ".".join(str(part) for part in place)
        if error["type"] == "extra_forbidden":
            lines.append(f"{path} is no option{nearest(str(place[-1]), _options(model, place[:-1]))}")
        else:
            why = error["msg"].removeprefix("Value error, ").removesuffix(".")
            shown = not _PRIVATE & set(place) and not isinstance(given, Mapping | BaseModel)
            where = f"{path}: " if path else ""  # what is said of all options together names them itself
            lines.append(f"{where}{why}" + (f" (given: {given!r:.200})" if shown else ""))
    return f"{title}: " + "; ".join(lines) + "."


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
