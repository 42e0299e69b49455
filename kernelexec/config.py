"""One frozen tree of settings, read once; the only reader of the environment.

Times are float seconds, sizes end in ``_bytes``. Every branch goes to the one object that lives by it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from kernelexec.errors import InvalidConfig, InvalidTimeout, IsolationUnavailable, nearest

Isolation = Literal["local"]

MIB = 1024 * 1024
#: The shortest budget that is taken, in seconds.
SHORTEST_TIMEOUT = 0.001
_TRUE, _FALSE = frozenset({"1", "true", "yes", "t"}), frozenset({"0", "false", "no", "f"})
_SWITCHES = ("KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER")

_WAYS_OUT = (
    "Ways out: install and start a container engine that this version can use; "
    'choose local execution for this executor (isolation="local" or use_docker=False); '
    "or choose it for all with KERNELEXEC_USE_DOCKER=0. "
    "Local code runs with your own rights: see the README before you choose it."
)


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


class _Branch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Budgets(_Branch):
    """How long things may take, in seconds."""

    timeout: Seconds = 60.0
    """How long a cell may run, wall clock from its start."""
    grace: Seconds = 1.0
    """How long each rung of the ladder may take before the next one is climbed."""
    start: Seconds = 60.0
    """How long a new kernel may take until it serves."""
    stop: Seconds = 1.0
    """How long a kernel may take to leave by itself when its session closes."""


class OutputLimits(_Branch):
    """How much output is kept, in bytes of UTF-8 unless said otherwise."""

    stream_bytes: Count = Field(default=1 * MIB, ge=2)
    """What is kept in the result of each of stdout and stderr: head and tail, half each."""
    display_bytes: Count = Field(default=16 * MIB, ge=0)
    """What all displays of one cell together may hold in its result."""
    text_bytes: Count = Field(default=1 * MIB, ge=2)
    """What one text representation of a display may hold: head and tail."""
    message_bytes: Count = Field(default=16 * MIB, ge=1024)
    """The largest message that is read at all; what is larger is counted and dropped as it arrives."""
    spill_bytes: Count = Field(default=256 * MIB, ge=0)
    """How much of one cell's streams goes to the spill file when they are over ``stream_bytes``."""
    late_bytes: Count = Field(default=64 * 1024, ge=2)
    """What is kept of each stream, and of all displays, that come after their cell has ended."""
    files_bytes: Count = Field(default=256 * MIB, ge=0)
    """How much one cell's displays may write as files into the workspace."""

    @property
    def late(self) -> OutputLimits:
        """The limits of what comes after the end of its cell."""
        return self.model_copy(update={"stream_bytes": self.late_bytes, "display_bytes": self.late_bytes})


class Limits(_Branch):
    """Resource limits of a kernel's process on this machine. None leaves the machine's own limit."""

    nofile: Count | None = Field(default=4096, ge=64)
    """Open file descriptors."""
    fsize_bytes: Count | None = Field(default=None, ge=MIB)
    """The largest file a cell may write."""
    as_bytes: Count | None = Field(default=None, ge=256 * MIB)
    """Address space of each process: a cell over it gets MemoryError."""
    nproc: Count | None = Field(default=None, ge=16)
    """Processes and threads of the whole user (the kernel of the machine counts per uid)."""


class Environment(_Branch):
    """What a kernel's process may know of this process's environment."""

    pass_names: tuple[str, ...] = ()
    """Variables that are handed on though they look like secrets."""
    set: Variables = Field(default_factory=dict)
    """Variables that are set for the kernel, over everything else."""


class Capacity(_Branch):
    """Bounds of what is held at once; at a bound a typed refusal says what is in use."""

    sessions: Count = Field(default=256, ge=1)
    """Open sessions of one executor."""
    queue: Count = Field(default=64, ge=0)
    """Cells that may wait in one session behind the running one."""
    code_bytes: Count = Field(default=4 * MIB, ge=1)
    """The largest cell, in bytes of UTF-8."""
    results: Count = Field(default=100, ge=1)
    """Finished executions that a session remembers."""
    journal_bytes: Count = Field(default=64 * MIB, ge=64 * 1024)
    """What a session's journal may hold, in bytes; over it its oldest quarter goes."""
    snapshot_bytes: Count = Field(default=1024 * MIB, ge=0)
    """What all snapshots in one workspace may hold together, in bytes; a variable that does not fit is left out."""


class Config(_Branch):
    """All settings of an executor."""

    isolation: Isolation = "local"
    """Where kernels run."""
    workspace: Directory = Field(default_factory=lambda: Path("workspaces"))
    """The directory in which every session gets a directory of its own; relative to the current one."""
    python: Interpreter = Field(default_factory=lambda: sys.executable)
    """The interpreter of new kernels: a path, relative to the current directory, or a program's name; it needs ipykernel."""
    budgets: Budgets = Field(default_factory=Budgets)
    output: OutputLimits = Field(default_factory=OutputLimits)
    limits: Limits = Field(default_factory=Limits)
    environment: Environment = Field(default_factory=Environment)
    capacity: Capacity = Field(default_factory=Capacity)
    notebook: bool = True
    """Whether every session keeps ``<name>.ipynb`` in its workspace."""
    journal: bool = True
    """Whether every session keeps ``.journals/<name>.jsonl`` in the executor's workspace; ``request_id`` needs it."""
    save_displays: bool = True
    """Whether pictures and tables that a cell displays are saved as files under ``outputs/`` of the workspace."""


def load(
    isolation: str | None = None,
    *,
    use_docker: bool | None = None,
    workspace: str | os.PathLike[str] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The settings of one executor, complete and checked.

    Where code runs is decided by ``isolation``, then ``use_docker``, then the configuration, then the environment
    variables ``KERNELEXEC_USE_DOCKER`` and ``AUTOGEN_USE_DOCKER``; unset means containers.

    Raises:
        IsolationUnavailable: containers are asked for, or nothing was chosen, and they cannot be had.
        InvalidConfig: an unknown option or an unfit value; the message names the nearest.
    """
    _check_types(config, use_docker)
    options = dict(config.model_dump(exclude_unset=True) if isinstance(config, Config) else config or {})
    if workspace is not None:
        options["workspace"] = workspace
    options["isolation"] = _choose(isolation, use_docker, options.get("isolation"), os.environ if environ is None else environ)
    try:
        return Config.model_validate(options)
    except ValidationError as exc:
        raise InvalidConfig(_explain(exc)) from exc


def _check_types(config: object, use_docker: object) -> None:
    if config is not None and not isinstance(config, Config | Mapping):
        message = f"config={config!r}: it is a Config or a mapping of its options, not {type(config).__name__}."
        raise InvalidConfig(message)
    if use_docker is not None and not isinstance(use_docker, bool):
        message = f"use_docker={use_docker!r}: it is True, False or None, not {type(use_docker).__name__}."
        raise InvalidConfig(message)


def _choose(isolation: object, use_docker: bool | None, configured: object, environ: Mapping[str, str]) -> object:  # noqa: FBT001
    """Where code runs: by argument, else by configuration, else by the environment, else in containers."""
    if isolation is not None:
        _check_known(isolation)
        if use_docker is not None and use_docker == (isolation == "local"):
            message = f"isolation={isolation!r} and use_docker={use_docker} contradict each other: give one of them."
            raise InvalidConfig(message)
        chosen = isolation
    elif use_docker is not None:
        chosen = "container" if use_docker else "local"
    elif configured is not None:
        _check_known(configured)
        chosen = configured
    else:
        chosen = "local" if _switch(environ) is False else "container"
    if chosen == "container":
        message = (
            "Code runs in containers unless told otherwise, and kernelexec found no container engine that it can use: "
            f"this version brings no container provisioner. {_WAYS_OUT}"
        )
        raise IsolationUnavailable(message)
    return chosen


def _check_known(isolation: object) -> None:
    known = ("local", "container")
    if isolation not in known:
        message = f"isolation={isolation!r} is not known{nearest(str(isolation), known)}: it is one of {', '.join(known)}."
        raise InvalidConfig(message)


def _switch(environ: Mapping[str, str]) -> bool | None:
    for name in _SWITCHES:
        value = environ.get(name, "").strip().lower()
        if not value or value == "none":
            continue
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        message = f"{name}={value!r} is neither true ({', '.join(sorted(_TRUE))}) nor false ({', '.join(sorted(_FALSE))})."
        raise InvalidConfig(message)
    return None


def _explain(exc: ValidationError) -> str:
    lines = []
    for error in exc.errors():
        path = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"{path} is no option{nearest(str(error['loc'][-1]), _options(error['loc'][:-1]))}")
        else:
            why = error["msg"].removeprefix("Value error, ")
            lines.append(f"{path}: {why}" + ("" if path.startswith("environment") else f" (given: {error['input']!r:.200})"))
    return "Configuration: " + "; ".join(lines) + "."


def _options(path: tuple[int | str, ...]) -> list[str]:
    branch: type[BaseModel] = Config
    for part in path:
        annotation = branch.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        branch = annotation
    return list(branch.model_fields)


def seconds(value: object, name: str) -> float:
    """A checked budget in seconds.

    Raises:
        InvalidTimeout: not a finite number, or below 0.001.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_TIMEOUT <= value <= sys.float_info.max:
        message = f"{name}={value!r}: it is a number of seconds, {SHORTEST_TIMEOUT} at least."
        raise InvalidTimeout(message)
    return float(value)
