"""Types of settings: strict numbers, possible paths, frozen models, references to secrets; and messages about invalid options.

A configuration holds only references to secrets, which may be shown, and never values. A message is a single line.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
)

from kernelexec.errors import InvalidConfig, did_you_mean

_K = TypeVar("_K")
_V_co = TypeVar("_V_co", covariant=True)
MIB = 1024 * 1024
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": MIB * MIB}
#: The shortest accepted timeout, in seconds.
SHORTEST_TIMEOUT = 0.001
#: What stands for no limit of seconds: 31 years.
LONGEST_TIMEOUT = 1e9
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
#: The name of a secret: a variable name that every shell accepts, and that fits into a mask.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_RESERVED_PREFIX = "KERNELEXEC_"
_REFERENCE_FORMS = "must be {'env': NAME}, {'file': PATH}, or a function that returns a str; never the value itself"


class ReadOnlyMapping(Mapping[_K, _V_co]):
    """An immutable mapping. Unlike ``types.MappingProxyType`` it pickles and copies, because processes send settings."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[_K, _V_co]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: _K) -> _V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[Any, tuple[dict[_K, _V_co]]]:
        return type(self), (self._items,)


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return a check of text by a regular expression; ``expected`` completes the message."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {expected}")
        return value

    return AfterValidator(check)


def _check_variables(variables: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or b"\0" in os.fsencode(name + value):
            message = f"{short_repr(name)} must be a valid environment variable: a name without '=', and no NUL characters"
            raise ValueError(message)
    return ReadOnlyMapping(variables)


def as_tuple(value: object) -> object:
    """Return a text as a tuple with a single item; other values unchanged."""
    return (value,) if isinstance(value, str) else value


def _check_path(value: object) -> object:
    """Check for a possible path. Existence is checked at each use of the path."""
    if isinstance(value, str | Path):
        if not str(value).strip():
            raise ValueError("must not be empty: remove it, or set a path")
        if b"\0" in os.fsencode(value):
            raise ValueError("must not contain a NUL character")
        try:
            Path(value).expanduser()
        except RuntimeError as exc:
            raise ValueError(str(exc)) from exc
    return value


def absolute_path(value: Path) -> Path:
    """Make a path absolute from the current directory, because kernels start in other directories."""
    try:
        return value.expanduser().absolute()
    except OSError as exc:
        raise ValueError("must not be relative to a directory that no longer exists") from exc


def _absolute_interpreter(value: str) -> str:
    return str(absolute_path(Path(value))) if os.sep in value else value


def is_count(value: object) -> bool:
    """Return whether a value is a number of messages, or ``auto``."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _check_messages(value: object) -> object:
    if is_count(value):
        return value
    raise ValueError("must be a number >= 0, or 'auto'")


def resolve_path(value: Path) -> Path:
    """Resolve the links of a path now: kernels may change links in writable directories later."""
    try:
        return Path(os.path.realpath(value.expanduser()))
    except OSError as exc:
        raise ValueError("must not be relative to a directory that no longer exists") from exc


#: Environment variables, as a read-only mapping.
Variables = Annotated[Mapping[str, str], AfterValidator(_check_variables), PlainSerializer(dict)]
Directory = Annotated[Path, BeforeValidator(_check_path)]
#: A directory or file whose links are resolved when the configuration is read.
ResolvedPath = Annotated[Directory, AfterValidator(resolve_path)]
Interpreter = Annotated[str, BeforeValidator(_check_path), AfterValidator(_absolute_interpreter)]


def _parse_size_text(value: object) -> object:
    """Return the bytes of a size as text; other values stay for the checks of numbers."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("must be a size in bytes: a number, or text as in 512m and 1.5g")
    return int(Decimal(match[1]) * _UNITS[match[2].lower()])


def without_infinity(value: object) -> object:
    """Return the longest number of seconds for infinity, which is no limit, and any other value unchanged."""
    # JSON has no infinity, and waits of the system reject it; 31 years are a number everywhere.
    return LONGEST_TIMEOUT if value == math.inf else value


#: Strict numbers: text and True are rejected.
Seconds = Annotated[float, Field(strict=True, ge=SHORTEST_TIMEOUT)]
#: ``float("inf")`` is no limit.
CellSeconds = Annotated[Seconds, BeforeValidator(without_infinity)]
Count = Annotated[int, Field(strict=True, le=2**63 - 1)]
#: A size in bytes, also as text; units are powers of 1024.
Size = Annotated[int, BeforeValidator(_parse_size_text), Field(strict=True, le=2**63 - 1)]
#: A number of CPUs; with less than 0.01 nothing starts.
Cpus = Annotated[float, Field(strict=True, ge=0.01, le=1024)]
#: A number of messages, or ``auto``.
LastMessages = Annotated[int | Literal["auto"], BeforeValidator(_check_messages)]


def _check_pattern(value: re.Pattern[str]) -> re.Pattern[str]:
    if not value.pattern:
        raise ValueError("must not be empty, as it would match everything: remove it, or write .*")
    return value


#: A regular expression that is not empty.
Pattern = Annotated[re.Pattern[str], AfterValidator(_check_pattern)]


def all_defaults() -> Any:  # noqa: ANN401 - pydantic makes a model of it
    """Return the default of a field with a model, in the form for the outer model's validator: no second validator is built."""
    return {}


class FrozenModel(BaseModel):
    """A frozen part of the settings. Unknown options are rejected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True
    )  # the validator of a model is built at its first use

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - checked here
        try:
            super().__init__(**options)
        except ValidationError as exc:
            raise InvalidConfig(explain(exc, type(self), type(self).__name__)) from None

    # pydantic calls a custom __init__ for each nested value, unless it has this mark, as BaseModel's own: a nested error would
    # otherwise be our InvalidConfig, without the path to the option.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a shallow copy: all values are frozen too, and some cannot be copied deeply."""
        return self.__copy__()


def parse_size(value: object, name: str) -> int:
    """Parse a size in bytes: a number, or text as in ``512m``, ``1.5g`` and ``1048576``. Units are powers of 1024.

    Raises:
        InvalidConfig: the value is not a size.
    """
    with suppress(ValueError):
        size = _parse_size_text(value)
        if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            return size
    raise InvalidConfig(f"{name}={short_repr(value)}: must be a size, as in 512m, 1.5g or 1048576.")


class FromVariable(FrozenModel):
    """A variable of this process's environment."""

    env: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The variable's name."""

    def __str__(self) -> str:
        return f"the environment variable {self.env}"


class FromFile(FrozenModel):
    """A regular file. A newline at the end is removed."""

    file: Directory
    """The file's path. A link must belong to the caller or root."""

    def __str__(self) -> str:
        return f"the file {self.file}"


class FromFunction:
    """A function of the caller. The representation is hidden, because the function's own may contain the value.

    The class is not a dataclass, because pydantic would dump the fields.
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
    """Return a reference. Messages never show an invalid value, which may be the secret."""
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
    """Return the names of this process's variables with secrets."""
    return frozenset(reference.env for reference in secrets.values() if isinstance(reference, FromVariable))


def explain(exc: ValidationError, model: type[BaseModel], title: str) -> str:
    """Describe a validation error in a line: every unknown option with the closest known option, and every invalid value."""
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
        InvalidConfig: a name is unknown; the message names the closest known name.
    """
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InvalidConfig(f"{where}{shorten(str(name))} is not an option{did_you_mean(str(name), known)}.")


def shorten(text: str, most: int = _MESSAGE_CHARS) -> str:
    """Shorten a text to the beginning and an ellipsis."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_repr(value: object) -> str:
    """Return the shortened ``repr`` of a value, for messages."""
    return shorten(repr(value))


def mapping_error(value: object) -> str:
    """Return the message for a value in the place of a mapping."""
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
    """Return the first model in a type: the type itself, or the type of a sequence's items or a mapping's values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)
