"""``code_execution_config`` of agent frameworks: a dictionary, or False for no execution; with arguments of ``docker run``.

Arguments against the isolation are refused. The parser is not argparse: messages must not show possible secrets, an option and
a value may be a single argument, and each refused option has a reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError

from kernelexec.config import Config, override
from kernelexec.config.container import Name
from kernelexec.config.loading import ContainerRequest, UseDocker, container_request, image_repr, parse_use_docker
from kernelexec.config.loading import load as config_load
from kernelexec.config.protected_paths import WORKSPACE_INSIDE, capability_refusal, mount_refusal, normalize_target
from kernelexec.config.short_options import ShortOptions, check_isolation, expand
from kernelexec.config.types import MIB, CellSeconds, Directory, FrozenModel, LastMessages, explain, parse_size, short_repr
from kernelexec.errors import InvalidConfig, did_you_mean

_SHORT = {
    "-P": "--publish-all",
    "-a": "--attach",
    "-d": "--detach",
    "-e": "--env",
    "-i": "--interactive",
    "-m": "--memory",
    "-p": "--publish",
    "-t": "--tty",
    "-u": "--user",
    "-v": "--volume",
    "-w": "--workdir",
    "--net": "--network",
}
_NAMESPACE = "the kernel would share a namespace outside of its container"
_LAUNCHER = "the container runs the kernel's launcher and ends with the kernel"
_REFUSALS = {
    "it removes all isolation": "--privileged",
    _NAMESPACE: "--pid --uts --userns",
    _LAUNCHER: "--entrypoint --restart --attach --detach --interactive --tty",
    "limits are set by --memory, --cpus and --pids-limit": "--cgroup-parent",
    "containers get no devices of this machine": ("--device --device-cgroup-rule --device-read-bps --device-write-bps --gpus"),
    "a kernel sees only its own workspace and the mounts of --volume": "--volumes-from",
    "use --volume SOURCE:TARGET[:ro] for mounts": "--mount",
    "settings of the machine's kernel must not change": "--sysctl",
    "the engine chooses its runtime": "--runtime",
    "set the group with --user": "--group-add",
    "kernels listen on no port": "--publish --publish-all --expose",
    "host names are resolved by the chosen network": "--link --add-host --dns",
    "a kernel that exceeds its memory must end before the machine runs out of memory": "--oom-kill-disable --oom-score-adj",
    "use --env NAME=VALUE for variables": "--env-file",
}
#: Options that are refused with any value, and the reasons.
REFUSED = {name: reason for reason, names in _REFUSALS.items() for name in names.split()}
#: Options that need no value.
_SWITCHES = ("--rm", "--init", "--read-only")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_ULIMITS = {"nofile": "nofile", "as": "as_bytes"}
#: Options by branch of ``Config``.
_Branches = dict[str, dict[str, Any]]
_Handler = Callable[[str, str], _Branches]


class CodeExecutionConfig(FrozenModel):
    """The keys of a ``code_execution_config``. None is the same as a missing key."""

    work_dir: Directory | None = None
    """``Config.work_dir``."""
    use_docker: Annotated[UseDocker, BeforeValidator(parse_use_docker)] = None
    """True, False, an image name, or a list of names, of which the first available one is used."""
    timeout: CellSeconds | None = None
    """``budgets.timeout``."""
    last_n_messages: LastMessages | None = None
    """``Config.last_n_messages``."""
    docker_image: str | None = None
    """An image name, as for ``use_docker``."""
    docker_container_name: Name | None = None
    """``container.name``."""
    docker_run_args: tuple[str, ...] | None = None
    """Arguments of ``docker run``."""

    def container_requests(self) -> Iterator[tuple[str, UseDocker]]:
        """Yield the keys for a choice of containers, with their values."""
        yield "use_docker", self.use_docker
        yield "docker_image", None if self.docker_image is None else (self.docker_image,)
        yield "docker_container_name", None if self.docker_container_name is None else True
        yield "docker_run_args", True if self.docker_run_args else None

    def options(self) -> dict[str, Any]:
        """Return the options of ``Config`` for these keys.

        Raises:
            InvalidConfig: an argument of ``docker run`` is refused or invalid.
        """
        top: dict[str, Any] = {"work_dir": self.work_dir, "last_n_messages": self.last_n_messages}
        options = {name: value for name, value in top.items() if value is not None}
        options |= parse_run_args(self.docker_run_args or ())
        if self.timeout is not None:
            options["budgets"] = {"timeout": self.timeout}
        if self.docker_container_name is not None:
            container = options.setdefault("container", {})
            named = container.setdefault("name", self.docker_container_name)
            if named != self.docker_container_name:
                message = f"docker_container_name={self.docker_container_name!r} and --name {named} contradict each other."
                raise InvalidConfig(message)
        return options


def load(
    isolation: str | None = None,
    *,
    use_docker: bool | str | Sequence[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    config: Config | Mapping[str, Any] | None = None,
    code_execution_config: Mapping[str, Any] | Literal[False] | None = None,
    short: ShortOptions | None = None,
    environ: Mapping[str, str] | None = None,
    inside: bool | None = None,
) -> Config:
    """Return the settings of an executor: see ``kernelexec.config.load``.

    ``code_execution_config`` is the dictionary of agent frameworks, and overrides the configuration. The keys are ``work_dir``,
    ``use_docker``, ``timeout``, ``last_n_messages``, ``docker_image``, ``docker_container_name``, ``docker_run_args``. False
    switches execution off. ``short`` has the usual options by their short names.

    Raises:
        InvalidConfig: an option is unknown, a value is invalid, or two options contradict each other.
    """
    request = container_request(use_docker)
    execution = _validate({} if code_execution_config is False else code_execution_config)
    for name, value in execution.container_requests():
        if value is not None:
            source = f"{name}={image_repr(value)}" if name in {"use_docker", "docker_image"} else name
            request = _merge_requests(request, ContainerRequest(value, source))
    usual = dict(short or {})
    if (image := usual.pop("image", None)) is not None:
        request = _merge_requests(request, replace(container_request(image), source=f"image={short_repr(image)}"))
    options: dict[str, Any] = override(override(config, execution.options()), expand(usual))
    if code_execution_config is False:
        options["enabled"] = False
    loaded = config_load(isolation, use_docker=request, workspace=workspace, config=options, environ=environ, inside=inside)
    check_isolation(usual, loaded.isolation)
    return loaded


def _validate(value: object) -> CodeExecutionConfig:
    if value is not None and not isinstance(value, Mapping):
        message = f"code_execution_config={short_repr(value)}: must be a dictionary, False for no execution, or None."
        raise InvalidConfig(message)
    if not value:
        return CodeExecutionConfig.model_construct()  # without a validator, which takes time to build
    if "executor" in value:
        raise InvalidConfig("code_execution_config: executor is not an option: choose where code runs with use_docker.")
    try:
        return CodeExecutionConfig.model_validate(value)
    except ValidationError as exc:
        raise InvalidConfig(explain(exc, CodeExecutionConfig, "code_execution_config")) from None


def _merge_requests(first: ContainerRequest, second: ContainerRequest) -> ContainerRequest:
    """Return the more specific of two requests. Requests agree if either names no image, or both name the same."""
    if first.use_docker in (None, second.use_docker) or (first.use_docker is True and second.use_docker):
        return second
    if second.use_docker is True and first.use_docker:
        return first
    raise InvalidConfig(f"{first.source} and {second.source} contradict each other: set only one of them.")


def parse_run_args(arguments: Sequence[str]) -> _Branches:
    """Return the options by branch of ``Config``. An option and the value may be a single argument or two.

    Raises:
        InvalidConfig: an option is refused (with the reason), unknown (with the closest known option), or has an invalid value.
    """
    branches: _Branches = {}
    words = iter([part for argument in arguments for part in _split_argument(argument)])
    for word in words:
        name, value = _split_option(word)
        if name in REFUSED:
            raise InvalidConfig(f"docker_run_args: {name} is refused: {REFUSED[name]}.")
        if name not in _OPTIONS:
            raise InvalidConfig(_unknown(name))
        if value is None:
            value = "true" if name in _SWITCHES else _next_value(name, words)
        _merge(branches, _OPTIONS[name](name, value))
    return branches


def _split_argument(argument: str) -> list[str]:
    """Split the argument ``--cpus 1`` into two words; ``--env=A=b c`` stays a single word."""
    words = argument.strip().split(None, 1)
    return words if argument.startswith("-") and words and "=" not in words[0] else [argument]


def _split_option(word: str) -> tuple[str, str | None]:
    """Return the option's long name, and the value in the same word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return _SHORT.get(name, name), value if equals else None
    if word.startswith("-") and word[:2] in _SHORT:
        return _SHORT[word[:2]], word[2:].removeprefix("=") if word[2:] else None
    return word, None


def _unknown(name: str) -> str:
    if name.startswith("-"):
        known = (*_OPTIONS, *REFUSED)
        return f"docker_run_args: {name} is not supported{did_you_mean(name, known)}: see the guide's page on containers."
    name = name.partition("=")[0]  # the value may be a secret
    return f"docker_run_args: {name!r} is not an option: set the image with docker_image; the command is the launcher."


def _next_value(name: str, words: Iterator[str]) -> str:
    value = next(words, "")
    # A forgotten value would swallow the next option; -1, no limit, is a value.
    if not value or (value.startswith("-") and not value[1:].isdigit()):
        raise InvalidConfig(f"docker_run_args: {name} must have a value.")
    return value


def _merge(branches: _Branches, added: _Branches) -> None:
    """Add options: lists grow, the last value of a variable or label wins, all others must not contradict each other."""
    for branch, options in added.items():
        present = branches.setdefault(branch, {})
        for option, value in options.items():
            if isinstance(value, tuple):
                present[option] = (*present.get(option, ()), *value)
            elif isinstance(value, dict):
                if option == "tmpfs" and (twice := sorted(value.keys() & present.get(option, {}))):
                    raise InvalidConfig(f"docker_run_args: --tmpfs {twice[0]} must not be set twice.")
                present[option] = present.get(option, {}) | value
            elif present.setdefault(option, value) != value:
                values = f"{present[option]!r} and {value!r}"
                raise InvalidConfig(f"docker_run_args: {branch}.{option} must not be set twice, as {values}.")


def _invalid_value(name: str, value: str, expected: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is invalid: must be {expected}.")


def _refusal(name: str, value: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is refused: {reason}.")


def _text(_name: str, value: str) -> str:
    return value


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise _invalid_value(name, value.lower(), "true or false")
    return _BOOLEANS[value.lower()]


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as exc:
        raise _invalid_value(name, value, "a number") from exc


def _count(name: str, value: str) -> int | None:
    """Return a whole number, or None (no limit) for -1."""
    try:
        return None if value == "-1" else int(value)
    except ValueError as exc:
        raise _invalid_value(name, value, "a whole number") from exc


def _bytes(name: str, value: str) -> int:
    return parse_size(value, f"docker_run_args: {name}")


def _container_option(option: str, convert: Callable[[str, str], object] = _text) -> _Handler:
    return lambda name, value: {"container": {option: convert(name, value)}}


def _fixed(only: str, reason: str) -> _Handler:
    """Return the handler of an option with a single allowed value."""

    def check(name: str, value: str) -> _Branches:
        if name in _SWITCHES:
            value = str(_boolean(name, value)).lower()
        if value != only:
            raise _refusal(name, value, reason)
        return {}

    return check


def _network(name: str, value: str) -> _Branches:
    if value.startswith("container:"):
        raise _refusal(name, value, _NAMESPACE)
    if value not in {"none", "bridge", "host"}:
        raise _invalid_value(name, value, "none, bridge or host")
    return {"container": {"network": value}}


def _tmpfs(name: str, value: str) -> _Branches:
    path, _, settings = value.partition(":")
    bytes_ = None
    for setting in filter(None, settings.split(",")):
        key, _, amount = setting.partition("=")
        if key == "size":
            bytes_ = _bytes("--tmpfs size", amount)
        elif setting not in {"rw", "noexec", "nosuid", "nodev", "mode=1777"}:
            raise _invalid_value(name, value, "a path, and after a colon size=SIZE, rw, noexec, nosuid, nodev, mode=1777")
    target = normalize_target(path)
    if target == "/tmp":  # noqa: S108 - the container's
        return {} if bytes_ is None else {"container": {"tmpfs": {target: bytes_}}}
    return {"container": {"tmpfs": {target: 64 * MIB if bytes_ is None else bytes_}}}


def _security(name: str, value: str) -> _Branches:
    option, _, setting = value.replace("=", ":", 1).partition(":")
    if option == "no-new-privileges" and setting in {"", "true"}:
        return {"container": {"sudo": False}}
    if option == "no-new-privileges" and setting == "false":
        raise _refusal(name, value, "programs gain privileges with container.sudo only")
    if option in {"seccomp", "apparmor", "label", "systempaths"}:
        raise _refusal(name, value, "the engine's own confinement must not change")
    raise _invalid_value(name, value, "no-new-privileges")


def _cap_add(name: str, value: str) -> _Branches:
    capability = value.upper().removeprefix("CAP_")
    if reason := capability_refusal(capability):
        raise _refusal(name, value, reason)
    return {"container": {"cap_add": (capability,)}}


def _cap_drop(name: str, value: str) -> _Branches:
    """Accept any capability name: all capabilities are dropped except added ones."""
    if not value.replace("_", "").isalnum():
        raise _invalid_value(name, value, "ALL or the name of a capability")
    return {}


def _ulimit(name: str, value: str) -> _Branches:
    limit, _, numbers = value.partition("=")
    soft, _, hard = numbers.partition(":")
    if hard and hard != soft:
        raise _invalid_value(name, value, "one number, as soft and hard limit must be the same")
    number = _count(name, soft)
    if limit in _ULIMITS:
        return {"limits": {_ULIMITS[limit]: number}}
    if (limit, number) != ("core", 0):
        raise _invalid_value(name, value, f"one of {', '.join(_ULIMITS)}, or core=0")
    return {}


def _env(_name: str, value: str) -> _Branches:
    variable, equals, content = value.partition("=")
    return {"environment": {"set": {variable: content}} if equals else {"pass_names": (variable,)}}


def _shared_memory(name: str, value: str) -> _Branches:
    return {"container": {"tmpfs": {"/dev/shm": _bytes(name, value)}}}  # noqa: S108 - the container's


def _volume(name: str, value: str) -> _Branches:
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if "/" not in source or not target or mode not in {"", "ro", "rw"}:
        raise _invalid_value(name, value, "SOURCE:TARGET or SOURCE:TARGET:ro, both paths")
    try:
        reason = mount_refusal(Path(source))
    except (OSError, RuntimeError, ValueError) as exc:
        raise _invalid_value(name, value, "an existing path") from exc
    if reason:
        raise _refusal(name, value, reason)
    return {"container": {"mounts": ({"source": source, "target": target, "read_only": mode == "ro"},)}}


def _workdir(name: str, value: str) -> _Branches:
    if value.rstrip("/") != WORKSPACE_INSIDE:
        raise _invalid_value(name, value, "/workspace; set the directory of this machine with work_dir")
    return {"container": {"layout": "classic"}}


_OPTIONS: dict[str, _Handler] = {
    "--cap-add": _cap_add,
    "--cap-drop": _cap_drop,
    "--cgroupns": _fixed("private", _NAMESPACE),
    "--cpus": _container_option("cpus", _number),
    "--env": _env,
    "--init": _fixed("true", _LAUNCHER),
    "--ipc": _fixed("private", _NAMESPACE),
    "--memory": _container_option("memory_bytes", _bytes),
    "--name": _container_option("name"),
    "--network": _network,
    "--pids-limit": _container_option("pids", _count),
    "--read-only": _container_option("read_only_root", _boolean),
    "--rm": _fixed("true", _LAUNCHER),
    "--security-opt": _security,
    "--shm-size": _shared_memory,
    "--tmpfs": _tmpfs,
    "--ulimit": _ulimit,
    "--user": _container_option("user"),
    "--volume": _volume,
    "--workdir": _workdir,
}
