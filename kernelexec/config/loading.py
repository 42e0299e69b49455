"""Where code runs and with which settings: arguments, configuration and environment as one checked ``Config``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from kernelexec.config.container import is_image
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


#: Whether containers are used, or the images of which the first that can be had is used; None leaves it open.
UseDocker = bool | tuple[str, ...] | None
#: Words that mean true or false elsewhere: as the name of an image they are a mistake.
_NO_IMAGES = frozenset({"0", "1", "f", "false", "no", "none", "t", "true", "yes"})


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A caller's request for containers, or for none."""

    use_docker: UseDocker = None
    source: str = ""
    """The request as the caller wrote it, for messages."""


def load(
    isolation: str | None = None,
    *,
    use_docker: bool | str | Sequence[str] | ContainerRequest | None = None,
    workspace: str | os.PathLike[str] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    inside: bool | None = None,
) -> Config:
    """Return the settings of one executor, complete and checked, without asking an engine.

    Where code runs is decided by ``isolation``, then ``use_docker``, then the configuration, then the environment
    variables ``KERNELEXEC_USE_DOCKER`` and ``AUTOGEN_USE_DOCKER``; unset means containers. In a container itself, containers
    that were not asked for by ``isolation`` become ``container-host``, unless ``KERNELEXEC_FORCE_CONTAINER`` is true.

    Args:
        isolation: ``container``, ``local``, ``bubblewrap``, or ``container-host`` for an executor in a container.
        use_docker: True, False for ``local``, an image, or images of which the first that is there, or can be had, is taken.
        workspace: replaces the workspace of the configuration.
        config: a ``Config``, or a mapping of its options.
        environ: the environment variables; by default those of this process.
        inside: whether this process is in a container; by default that is detected.

    Raises:
        InvalidConfig: an unknown option or an unfit value; the message names the nearest.
    """
    request = use_docker if isinstance(use_docker, ContainerRequest) else container_request(use_docker)
    options = _as_mapping(config)
    if isinstance(request.use_docker, tuple):
        options["container"] = _merged(options.get("container"), {"image": request.use_docker})
    if workspace is not None:
        options["workspace"] = workspace
    if options.get("enabled") is False:
        environ = {}  # nothing runs: no variable has a say
    environ = os.environ if environ is None else environ
    options["isolation"] = _choose(isolation, request, options.get("isolation"), environ, inside=inside)
    return _validated(options if options.get("profile") is None else _with_profile(options))


def container_request(use_docker: object) -> ContainerRequest:
    """Return the argument ``use_docker`` as a request.

    Raises:
        InvalidConfig: it has another type.
    """
    try:
        parsed = parse_use_docker(use_docker)
    except ValueError as exc:
        message = f"use_docker={short_repr(use_docker)}: {exc}."
        raise InvalidConfig(message) from exc
    return ContainerRequest(parsed, "" if parsed is None else f"use_docker={image_repr(parsed)}")


def parse_use_docker(value: object) -> UseDocker:
    """Return a boolean as it is, and one image or a list of images as a tuple.

    Raises:
        ValueError: it is none of these.
    """
    if value is None or isinstance(value, bool):
        return value
    images = (value,) if isinstance(value, str) else value
    if isinstance(images, list | tuple) and images:
        names = tuple(image for image in images if isinstance(image, str) and _is_image_name(image))
        if len(names) == len(images):
            return names
    raise ValueError("it is True, False, the name of an image or a list of names")


def image_repr(use_docker: UseDocker) -> str:
    """Return the request as its caller may have written it."""
    return repr(use_docker[0] if isinstance(use_docker, tuple) and len(use_docker) == 1 else use_docker)


def _is_image_name(name: str) -> bool:
    return is_image(name) and name.lower() not in _NO_IMAGES


def override(base: Config | Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of which a configuration was made, merged with others branch by branch."""
    base_options = _as_mapping(base)
    return {**base_options, **{name: _merged(base_options.get(name), value) for name, value in options.items()}}


def profile(config: Config, name: str) -> Profile:
    """Return the profile of that name.

    Raises:
        InvalidConfig: there is none; the message names the nearest.
    """
    known = config.profiles.get(name) if isinstance(name, str) else None
    if known is None:
        names = sorted(config.profiles)
        message = f"No profile {short_repr(name)}{nearest(str(name), names)}: there are {', '.join(names)}."
        raise InvalidConfig(message)
    return known


def isolation_help(cause: str) -> str:
    """Return the message for containers that cannot be had; ``cause`` is a sentence with the real reason."""
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
    """Return the options with the profile's figures for those that are not set; the whole is validated afterwards."""
    base = _validated({name: value for name, value in options.items() if name not in {"container", "budgets"}})
    chosen = profile(base, str(base.profile))
    container = _merged({"memory_bytes": chosen.memory_bytes, "cpus": chosen.cpus}, options.get("container", {}))
    budgets = _merged({"timeout": chosen.timeout}, options.get("budgets", {}))
    return {**options, "container": container, "budgets": budgets}


def _as_mapping(config: object) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.model_dump(exclude_unset=True)
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    message = f"config={short_repr(config)}: it is a Config or a mapping of its options, not {type(config).__name__}."
    raise InvalidConfig(message)


def _merged(first: object, second: object) -> object:
    """Merge an option into another. Branches are joined: variables and labels by name, mounts added, all else replaced."""
    first, second = (each.model_dump(exclude_unset=True) if isinstance(each, BaseModel) else each for each in (first, second))
    if not isinstance(second, Mapping) or first is None:
        return second
    if not isinstance(first, Mapping):
        return first  # no branch: its place is said when all is checked
    joined = dict(first)
    for name, value in second.items():
        before = joined.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            joined[name] = {**before, **value}
        elif name in {"mounts", "pass_names"} and isinstance(before, list | tuple):
            joined[name] = (*before, *value)
        else:
            joined[name] = value
    return joined


def _choose(
    isolation: object, request: ContainerRequest, configured: object, environ: Mapping[str, str], *, inside: bool | None
) -> Isolation:
    """Decide where code runs: by argument, else by configuration, else by the environment, else in containers."""
    if isolation is not None:
        known = _known(isolation, inside=inside)
        if (known == "local" and request.use_docker) or (known == "container" and request.use_docker is False):
            message = f"isolation={isolation!r} and {request.source} contradict each other: give one of them."
            raise InvalidConfig(message)
        return known
    if request.use_docker is None and configured is not None:
        return _known(configured, inside=inside)
    if request.use_docker is False or (request.use_docker is None and _first(environ) is False):
        return "local"
    if _switch(environ, _FORCE):
        return "container"
    return "container-host" if _is_inside(inside) else "container"


def _known(isolation: object, *, inside: bool | None) -> Isolation:
    for known in _PLACES:
        if isolation == known:
            break
    else:
        hint = nearest(str(isolation), _PLACES)
        message = f"isolation={short_repr(isolation)} is not known{hint}: it is one of {', '.join(_PLACES)}."
        raise InvalidConfig(message)
    if known == "container-host" and not _is_inside(inside):
        message = "isolation='container-host': this process is in no container; 'local' runs code on this machine."
        raise InvalidConfig(message)
    return known


def _is_inside(inside: bool | None) -> bool:  # noqa: FBT001
    return in_container() if inside is None else inside


def _first(environ: Mapping[str, str]) -> bool | None:
    """Return the value of the first variable that is set."""
    return next((value for value in (_switch(environ, name) for name in _SWITCHES) if value is not None), None)


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
    """Return a budget in seconds after a check.

    Raises:
        InvalidTimeout: not a finite number, or below 0.001.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_TIMEOUT <= value <= sys.float_info.max:
        message = f"{name}={short_repr(value)}: it is a number of seconds, {SHORTEST_TIMEOUT} at least."
        raise InvalidTimeout(message)
    return float(value)


def isolation_variable(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the environment variable that decides where code runs, as NAME=VALUE; None if none is set."""
    for name in _SWITCHES:
        value = (os.environ if environ is None else environ).get(name, "").strip()
        if value and value.lower() != "none":
            return f"{name}={value}"
    return None
