"""Where code runs and with which settings: arguments, configuration and environment as one checked ``Config``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from kernelexec.config.kinds import SHORTEST_TIMEOUT
from kernelexec.config.settings import Config
from kernelexec.errors import InvalidConfig, InvalidTimeout, nearest

_TRUE, _FALSE = frozenset({"1", "true", "yes", "t"}), frozenset({"0", "false", "no", "f"})
_SWITCHES = ("KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER")

_WAYS_OUT = (
    "Ways out: install and start a container engine that this version can use; "
    'choose local execution for this executor (isolation="local" or use_docker=False); '
    "or choose it for all with KERNELEXEC_USE_DOCKER=0. "
    "Local code runs with your own rights: see the README before you choose it."
)


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


def ways_out(cause: str) -> str:
    """What to say where containers cannot be had for that cause."""
    return f"Code runs in containers unless told otherwise, and that cannot be: {cause} {_WAYS_OUT}"


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
