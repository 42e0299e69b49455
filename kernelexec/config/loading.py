"""Loading of settings: arguments, configuration and environment variables become a checked ``Config``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kernelexec.config import short_options
from kernelexec.config.container import Container, is_image_name
from kernelexec.config.settings import Budgets, Config, Isolation, Profile
from kernelexec.config.types import SHORTEST_TIMEOUT, explain, short_repr, without_infinity
from kernelexec.errors import InvalidConfig, InvalidTimeout, did_you_mean

_TRUE, _FALSE = frozenset({"1", "true", "yes", "t"}), frozenset({"0", "false", "no", "f"})
_SWITCHES = ("KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER")
_FORCE, _QUIET = "KERNELEXEC_FORCE_CONTAINER", "KERNELEXEC_QUIET"
_ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
#: Other names of isolations, as on the command line.
_ALIASES: dict[str, Isolation] = {"docker": "container", "host": "local"}
#: True or False for containers, or image names, of which the first available one is used; None if unset.
UseDocker = bool | tuple[str, ...] | None
#: Words that mean true or false elsewhere; as an image name they are rejected.
_NO_IMAGES = frozenset({"0", "1", "f", "false", "no", "none", "t", "true", "yes"})
_MARKS = (".dockerenv", "run/.containerenv")
_CGROUP = re.compile(r"/(docker|lxc|crio)/|/lxc\.payload|/kubepods|/libpod|/(docker|crio|cri-containerd)-[0-9a-f]{12}")
_LAYERS = re.compile(r"=/\S*/(docker|containerd|containers/storage|crio)/")
_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
_FROM = re.compile(r"/(containers|overlay-containers|sandboxes|pods)/")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A caller's choice for or against containers."""

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
    """Return the complete and checked settings of an executor. The container engine is not contacted.

    The isolation is taken from ``isolation``, else ``use_docker``, else the configuration, else the environment variables
    ``KERNELEXEC_USE_DOCKER`` and ``AUTOGEN_USE_DOCKER``. The default is ``container``, or ``container-host`` if this process
    runs in a container and ``KERNELEXEC_FORCE_CONTAINER`` is not true.

    Args:
        isolation: ``container`` or ``docker``; ``local`` or ``host``; ``bubblewrap``; ``container-host`` within a container.
        use_docker: True; False for ``local``; an image name; or a list of names, of which the first available image is used.
        workspace: overrides the workspace of the configuration.
        config: a ``Config``, or a mapping of options.
        environ: the environment variables; by default those of this process.
        inside: whether this process runs in a container; detected by default.

    Raises:
        InvalidConfig: an option is unknown or a value is invalid; the message names the closest known option.
    """
    request = use_docker if isinstance(use_docker, ContainerRequest) else container_request(use_docker)
    short = config if isinstance(config, Mapping) else {}
    # An image of the configuration chooses containers too, unless its `isolation` or `use_docker` decides.
    if request.use_docker is None and short.get("image") is not None and short.get("isolation") is None:
        request = ContainerRequest(use_docker=True, source=f"image={short_repr(short['image'])}")
    options = _as_mapping(config)
    if isinstance(request.use_docker, tuple):
        options["container"] = _merge(options.get("container"), {"image": request.use_docker})
    if workspace is not None:
        options["workspace"] = workspace
    if options.get("enabled") is False:
        environ = {}  # nothing runs, so variables do not matter
    environ = os.environ if environ is None else environ
    if "quiet" not in options and _read_switch(environ, _QUIET):
        options["quiet"] = True
    options["isolation"] = _choose_isolation(isolation, request, options.get("isolation"), environ, inside=inside)
    short_options.check_isolation(short, options["isolation"])
    return _validate(options if options.get("profile") is None else _apply_profile(options))


def container_request(use_docker: object) -> ContainerRequest:
    """Return the argument ``use_docker`` as a request.

    Raises:
        InvalidConfig: the value has another type.
    """
    try:
        parsed = parse_use_docker(use_docker)
    except ValueError as exc:
        raise InvalidConfig(f"use_docker={short_repr(use_docker)}: {exc}.") from exc
    return ContainerRequest(parsed, "" if parsed is None else f"use_docker={image_repr(parsed)}")


def parse_use_docker(value: object) -> UseDocker:
    """Return a boolean unchanged, and an image or a list of images as a tuple.

    Raises:
        ValueError: the value is none of these.
    """
    if value is None or isinstance(value, bool):
        return value
    images = (value,) if isinstance(value, str) else value
    if not isinstance(images, list | tuple) or not images or not all(map(_is_image, images)):
        raise ValueError("must be True, False, an image name or a list of image names")
    return tuple(images)


def _is_image(value: object) -> bool:
    return isinstance(value, str) and is_image_name(value) and value.lower() not in _NO_IMAGES


def image_repr(use_docker: UseDocker) -> str:
    """Return the source text of a request, for messages."""
    return repr(use_docker[0] if isinstance(use_docker, tuple) and len(use_docker) == 1 else use_docker)


def override(base: Config | Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the explicit options of a configuration, merged with others branch by branch."""
    base_options = _as_mapping(base)
    return {**base_options, **{name: _merge(base_options.get(name), value) for name, value in options.items()}}


def find_profile(config: Config, name: str) -> Profile:
    """Return a profile by name.

    Raises:
        InvalidConfig: the profile does not exist; the message names the closest profile.
    """
    if not isinstance(name, str) or name not in config.profiles:
        names = sorted(config.profiles)
        message = f"No profile {short_repr(name)}{did_you_mean(str(name), names)}: must be one of {', '.join(names)}."
        raise InvalidConfig(message)
    return config.profiles[name]


def isolation_help(cause: str) -> str:
    """Return the message for unavailable containers; ``cause`` is a sentence with the reason."""
    return (
        f"Code runs in containers by default, and no container engine is available: {cause} "
        "Solutions: start Docker and give this user access to it; "
        'choose local execution for this executor (isolation="local" or use_docker=False); '
        "or choose it for all executors with KERNELEXEC_USE_DOCKER=0. "
        "Local code runs with your rights, and its confinement is weaker than a container: read the README first."
    )


def _validate(options: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(options)
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, Config, "Configuration")) from None


def _apply_profile(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the profile's values for unset ones; the caller validates the result."""
    # For the profiles only: the two branches are validated by the caller, with the profile's values below their own.
    base = _validate({name: value for name, value in options.items() if name not in {"container", "budgets"}})
    chosen = find_profile(base, str(base.profile))
    container = _merge({"memory_bytes": chosen.memory_bytes, "cpus": chosen.cpus}, options.get("container", {}))
    budgets = _merge({"timeout": chosen.timeout}, options.get("budgets", {}))
    return {**options, "container": container, "budgets": budgets}


def _as_mapping(config: object) -> dict[str, Any]:
    if isinstance(config, Config):
        # Explicit options only: a default must not override a profile, an argument or an environment variable.
        return config.model_dump(exclude_unset=True)
    if config is None or isinstance(config, Mapping):
        return short_options.expand(config or {})
    message = f"config={short_repr(config)}: must be a Config or a mapping of its options, not {type(config).__name__}."
    raise InvalidConfig(message)


def _merge(first: object, second: object) -> object:
    """Merge two values of an option: variables and labels by name, mounts by appending; all other values are replaced."""
    first, second = (each.model_dump(exclude_unset=True) if isinstance(each, BaseModel) else each for each in (first, second))
    if not isinstance(second, Mapping) or first is None:
        return second
    if not isinstance(first, Mapping):
        return first  # not a mapping: validation reports it later
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


def _choose_isolation(
    isolation: object, request: ContainerRequest, configured: object, environ: Mapping[str, str], *, inside: bool | None
) -> Isolation:
    """Choose the isolation: the argument's, else the configuration's, else the environment's, else containers."""
    if isolation is not None:
        checked = _check_isolation(isolation, inside=inside)
        if (checked == "local" and request.use_docker) or (checked == "container" and request.use_docker is False):
            raise InvalidConfig(f"isolation={isolation!r} and {request.source} contradict each other: set only one of them.")
        return checked
    if request.use_docker is None and configured is not None:
        return _check_isolation(configured, inside=inside)
    chosen = _read_switches(environ) if request.use_docker is None else bool(request.use_docker)
    if chosen is False:
        return "local"
    if chosen or _read_switch(environ, _FORCE):
        return "container"
    return "container-host" if _is_inside(inside) else "container"


def _is_inside(inside: bool | None) -> bool:  # noqa: FBT001 - the only argument
    """Return whether this process runs in a container; the machine's files are read only if the answer matters."""
    return in_container() if inside is None else inside


def _check_isolation(isolation: object, *, inside: bool | None) -> Isolation:
    checked = next((each for each in _ISOLATIONS if each == isolation), None) or _ALIASES.get(str(isolation))
    if checked is None:
        hint = did_you_mean(str(isolation), _ISOLATIONS)
        raise InvalidConfig(f"isolation={short_repr(isolation)} is unknown{hint}: must be one of {', '.join(_ISOLATIONS)}.")
    if checked == "container-host" and not _is_inside(inside):
        raise InvalidConfig(
            "isolation='container-host': this process does not run in a container. Use 'local' to run code on this machine."
        )
    return checked


def _read_switches(environ: Mapping[str, str]) -> bool | None:
    """Return the value of the first set variable."""
    return next((value for value in (_read_switch(environ, name) for name in _SWITCHES) if value is not None), None)


def _read_switch(environ: Mapping[str, str], name: str) -> bool | None:
    value = environ.get(name, "").strip().lower()
    if not value or value == "none":
        return None
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidConfig(f"{name}={value!r}: must be true ({', '.join(sorted(_TRUE))}) or false ({', '.join(sorted(_FALSE))}).")


def check_seconds(value: object, name: str) -> float:
    """Check and return a number of seconds; ``float("inf")``, which is no limit, becomes 31 years.

    Raises:
        InvalidTimeout: the value is not a number, or below 0.001.
    """
    value = without_infinity(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_TIMEOUT <= value <= sys.float_info.max:
        raise InvalidTimeout(f"{name}={short_repr(value)}: must be a number of seconds >= {SHORTEST_TIMEOUT}.")
    return float(value)


def isolation_variable(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the first set environment variable for the isolation, as NAME=VALUE; None without any."""
    values = ((name, (os.environ if environ is None else environ).get(name, "").strip()) for name in _SWITCHES)
    return next((f"{name}={value}" for name, value in values if value.lower() not in {"", "none"}), None)


def with_limits(config: Config, profile: str | None, limits: Mapping[str, Any]) -> tuple[Config, Mapping[str, Any]]:
    """Return the configuration with the limits applied, and all limits, completed from ``profile``.

    The names of limits are those of profiles: ``memory_bytes``, ``cpus``, ``timeout``.

    Raises:
        InvalidConfig, InvalidTimeout: the profile does not exist, or a limit is invalid for any container.
    """
    chosen: dict[str, Any] = {}
    if profile is not None:
        limits, chosen = {**find_profile(config, profile).model_dump(), **limits}, {"profile": profile}
    options = config.container.model_dump(exclude_unset=True)
    options |= {name: limits[name] for name in limits.keys() & {"memory_bytes", "cpus"}}
    try:
        chosen["container"] = Container.model_validate(options)
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, Container, "Limits")) from None
    if "timeout" in limits:
        budgets = config.budgets.model_dump(exclude_unset=True)
        chosen["budgets"] = Budgets(**{**budgets, "timeout": check_seconds(limits["timeout"], "timeout")})
    return config.model_copy(update=chosen), limits


def in_container(root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, by the engine's files, control group or mounts."""
    if any((root / mark).exists() for mark in _MARKS):
        return True
    if _CGROUP.search(_read(root / "proc/1/cgroup")):
        return True
    return any(_is_container_mount(line) for line in _read(root / "proc/self/mountinfo").splitlines())


def _is_container_mount(line: str) -> bool:
    """Return whether a line of mountinfo shows a layered root directory, or an engine's own file in ``/etc``.

    The engine's machine also mounts the layers of containers, but never as the root.
    """
    # 36 35 98:0 /source /target rw,noatime shared:1 - overlay overlay rw,lowerdir=…: proc(5). The optional fields before the
    # dash vary in number, so the line is split there first.
    mount, _, kind = line.partition(" - ")
    words = mount.split(" ")
    if len(words) < 5:  # noqa: PLR2004 - two numbers, the device, the source, the target
        return False
    source, target = words[3], words[4]
    if target == "/":
        return kind.startswith("overlay ") and _LAYERS.search(kind) is not None
    return target in _FILES and _FROM.search(source) is not None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
