"""Where code runs and with which settings: arguments, configuration and environment as one checked ``Config``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from kernelexec.config.code_execution import Asked, read
from kernelexec.config.container_detection import in_container
from kernelexec.config.messages import explain, short_repr
from kernelexec.config.profiles import Profile
from kernelexec.config.settings import Config, Isolation
from kernelexec.config.types import SHORTEST_TIMEOUT
from kernelexec.errors import InvalidConfig, InvalidTimeout, nearest

_TRUE, _FALSE = frozenset({"1", "true", "yes", "t"}), frozenset({"0", "false", "no", "f"})
_SWITCHES = ("KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER")
_FORCE = "KERNELEXEC_FORCE_CONTAINER"
_PLACES: tuple[Isolation, ...] = ("local", "bubblewrap", "container", "container-host")


def load(
    isolation: str | None = None,
    *,
    use_docker: bool | str | Sequence[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    code_execution_config: Mapping[str, Any] | Literal[False] | None = None,
    environ: Mapping[str, str] | None = None,
    inside: bool | None = None,
) -> Config:
    """The settings of one executor, complete and checked. No engine is asked: whether containers can be had is seen later.

    Where code runs is decided by ``isolation``, then ``use_docker``, then the configuration, then the environment
    variables ``KERNELEXEC_USE_DOCKER`` and ``AUTOGEN_USE_DOCKER``; unset means containers. In a container itself, containers
    that were not asked for by ``isolation`` become ``container-host``, unless ``KERNELEXEC_FORCE_CONTAINER`` is true.

    Args:
        isolation: ``container``, ``local``, or ``container-host`` for an executor that is in a container itself.
        use_docker: True, False for ``local``, an image, or images of which the first that is there, or can be had, is taken.
        workspace: goes over that of the configuration.
        config: a ``Config``, or a mapping of its options.
        code_execution_config: a dictionary as agent frameworks know it, which goes over the configuration: ``work_dir``,
            ``use_docker``, ``timeout``, ``last_n_messages``, ``docker_image``, ``docker_container_name``, ``docker_run_args``.
            False is no execution at all.
        environ: the variables that are read; by default those of this process.
        inside: whether this process is in a container; by default it is looked at.

    Raises:
        InvalidConfig: an unknown option or an unfit value; the message names the nearest.
    """
    asked = read(use_docker, code_execution_config)
    options = _given(config)
    options |= {name: _merged(options.get(name), value) for name, value in asked.options.items()}
    if workspace is not None:
        options["workspace"] = workspace
    if not asked.enabled:
        options["enabled"] = False
    if options.get("enabled") is False:
        environ = {}  # nothing runs: no variable is asked where
    environ = os.environ if environ is None else environ
    options["isolation"] = _choose(isolation, asked, options.get("isolation"), environ, inside=inside)
    return _validated(options if options.get("profile") is None else _with_profile(options))


def override(base: Config, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a configuration was made of, with others over them, branch by branch."""
    given = _given(base)
    return {**given, **{name: _merged(given.get(name), value) for name, value in options.items()}}


def profile(config: Config, name: str) -> Profile:
    """The profile of that name.

    Raises:
        InvalidConfig: there is none; the message names the nearest.
    """
    found = config.profiles.get(name) if isinstance(name, str) else None
    if found is None:
        known = sorted(config.profiles)
        message = f"No profile {short_repr(name)}{nearest(str(name), known)}: there are {', '.join(known)}."
        raise InvalidConfig(message)
    return found


def isolation_help(cause: str) -> str:
    """What to say where containers are to be used and cannot be had; ``cause`` is a sentence, the real one."""
    return (
        f"Code runs in containers unless told otherwise, and no container engine can be used: {cause} "
        "Ways out: start Docker and let this user use it; "
        'choose local execution for this executor (isolation="local" or use_docker=False); '
        "or choose it for all with KERNELEXEC_USE_DOCKER=0. "
        "Local code runs as you, behind a fence that is no wall: see the README before you choose it."
    )


def _validated(options: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(options)
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, Config, "Configuration")) from exc


def _with_profile(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of the profile that are not set by themselves: what fits only together is checked afterwards."""
    found = _validated({name: value for name, value in options.items() if name not in {"container", "budgets"}})
    chosen = profile(found, str(found.profile))
    container = _merged({"memory_bytes": chosen.memory_bytes, "cpus": chosen.cpus}, options.get("container", {}))
    budgets = _merged({"timeout": chosen.timeout}, options.get("budgets", {}))
    return {**options, "container": container, "budgets": budgets}


def _given(config: object) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.model_dump(exclude_unset=True)
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    message = f"config={short_repr(config)}: it is a Config or a mapping of its options, not {type(config).__name__}."
    raise InvalidConfig(message)


def _merged(given: object, more: object) -> object:
    """An option over the one given. Branches are joined: variables and labels by name, mounts added, all else replaced."""
    given, more = (one.model_dump(exclude_unset=True) if isinstance(one, BaseModel) else one for one in (given, more))
    if not isinstance(more, Mapping) or given is None:
        return more
    if not isinstance(given, Mapping):
        return given  # no branch: its place is said when all is checked
    joined = dict(given)
    for name, value in more.items():
        before = joined.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            joined[name] = {**before, **value}
        elif name in {"mounts", "pass_names"} and isinstance(before, list | tuple):
            joined[name] = (*before, *value)
        else:
            joined[name] = value
    return joined


def _choose(
    isolation: object, asked: Asked, configured: object, environ: Mapping[str, str], *, inside: bool | None
) -> Isolation:
    """Where code runs: by argument, else by configuration, else by the environment, else in containers."""
    if isolation is not None:
        place = _known(isolation, inside=inside)
        if (place == "local" and asked.docker) or (place == "container" and asked.docker is False):
            message = f"isolation={isolation!r} and {asked.said} contradict each other: give one of them."
            raise InvalidConfig(message)
        return place
    if asked.docker is None and configured is not None:
        return _known(configured, inside=inside)
    if asked.docker is False or (asked.docker is None and _first(environ) is False):
        return "local"
    if _switch(environ, _FORCE):
        return "container"
    return "container-host" if _is_inside(inside) else "container"


def _known(isolation: object, *, inside: bool | None) -> Isolation:
    for place in _PLACES:
        if isolation == place:
            break
    else:
        hint = nearest(str(isolation), _PLACES)
        message = f"isolation={short_repr(isolation)} is not known{hint}: it is one of {', '.join(_PLACES)}."
        raise InvalidConfig(message)
    if place == "container-host" and not _is_inside(inside):
        message = "isolation='container-host': this process is in no container; 'local' runs code on this machine."
        raise InvalidConfig(message)
    return place


def _is_inside(inside: bool | None) -> bool:  # noqa: FBT001
    return in_container() if inside is None else inside


def _first(environ: Mapping[str, str]) -> bool | None:
    """What the first of the variables says that says something."""
    return next((found for found in (_switch(environ, name) for name in _SWITCHES) if found is not None), None)


def _switch(environ: Mapping[str, str], name: str) -> bool | None:
    value = environ.get(name, "").strip().lower()
    if not value or value == "none":
        return None
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    message = f"{name}={value!r} is neither true ({', '.join(sorted(_TRUE))}) nor false ({', '.join(sorted(_FALSE))})."
    raise InvalidConfig(message)


def seconds(value: object, name: str) -> float:
    """A checked budget in seconds.

    Raises:
        InvalidTimeout: not a finite number, or below 0.001.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_TIMEOUT <= value <= sys.float_info.max:
        message = f"{name}={short_repr(value)}: it is a number of seconds, {SHORTEST_TIMEOUT} at least."
        raise InvalidTimeout(message)
    return float(value)


def isolation_variable(environ: Mapping[str, str] | None = None) -> str | None:
    """The variable of the environment that says where code runs, with its value; None where none says."""
    for name in _SWITCHES:
        value = (os.environ if environ is None else environ).get(name, "").strip()
        if value and value.lower() != "none":
            return f"{name}={value}"
    return None
