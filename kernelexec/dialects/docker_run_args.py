"""Arguments of ``docker run`` as options of ``Config``. Arguments that would defeat the isolation are refused.

This module does not use argparse: messages must not show values that may be secrets, an option and its value may be one
argument, and each refused option has its own reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelexec.config.protected_paths import WORKSPACE_INSIDE, capability_refusal, mount_refusal, normalize_target
from kernelexec.config.types import MIB, parse_size
from kernelexec.errors import InvalidConfig, did_you_mean

_SHORT = MappingProxyType(
    {
        "-P": "--publish-all",
        "-a": "--attach",
        "-d": "--detach",
        "-e": "--env",
        "-h": "--hostname",
        "-i": "--interactive",
        "-l": "--label",
        "-m": "--memory",
        "-p": "--publish",
        "-t": "--tty",
        "-u": "--user",
        "-v": "--volume",
        "-w": "--workdir",
        "--net": "--network",
    }
)
_NAMESPACE = "the kernel would share a namespace outside of its container"
_LAUNCHER = "the container runs the kernel's launcher and ends with the kernel"
_DEVICES = "containers get no devices of this machine"
_PORTS = "kernels listen on no port"
_DNS = "host names are resolved by the chosen network"
_OOM = "a kernel that exceeds its memory must end before the machine runs out of memory"
#: Options that are refused with any value, and the reasons.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "--privileged": "it removes all isolation",
        "--pid": _NAMESPACE,
        "--uts": _NAMESPACE,
        "--userns": _NAMESPACE,
        "--cgroup-parent": "limits are set by --memory, --cpus and --pids-limit",
        "--device": _DEVICES,
        "--device-cgroup-rule": _DEVICES,
        "--device-read-bps": _DEVICES,
        "--device-write-bps": _DEVICES,
        "--gpus": _DEVICES,
        "--volumes-from": "a kernel sees only its own workspace and the mounts of --volume",
        "--mount": "use --volume SOURCE:TARGET[:ro] for mounts",
        "--sysctl": "settings of the machine's kernel must not change",
        "--runtime": "the engine chooses its runtime",
        "--group-add": "set the group with --user",
        "--publish": _PORTS,
        "--publish-all": _PORTS,
        "--expose": _PORTS,
        "--link": _DNS,
        "--add-host": _DNS,
        "--dns": _DNS,
        "--entrypoint": _LAUNCHER,
        "--restart": _LAUNCHER,
        "--attach": _LAUNCHER,
        "--detach": _LAUNCHER,
        "--interactive": _LAUNCHER,
        "--tty": _LAUNCHER,
        "--oom-kill-disable": _OOM,
        "--oom-score-adj": _OOM,
        "--env-file": "use --env NAME=VALUE for variables",
    }
)


#: Options with a single allowed value, and the reason against all others.
_FIXED = MappingProxyType(
    {
        "--rm": ("true", _LAUNCHER),
        "--init": ("true", _LAUNCHER),
        "--cgroupns": ("private", _NAMESPACE),
        "--ipc": ("private", _NAMESPACE),
    }
)
#: Options that need no value.
_SWITCHES = ("--rm", "--init", "--read-only")
_ULIMITS = MappingProxyType({"nofile": "nofile", "fsize": "fsize_bytes", "as": "as_bytes", "nproc": "nproc"})


def parse(arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the options by branch of ``Config``. An option and its value may be one argument or two.

    Raises:
        InvalidConfig: an option is refused (with the reason), unknown (with the closest known one), or has an invalid value.
    """
    options = _Options()
    words = iter([part for argument in arguments for part in _split_argument(argument)])
    for word in words:
        name, value = _split_option(word)
        if name in REFUSED:
            raise InvalidConfig(f"docker_run_args: {name} is refused: {REFUSED[name]}.")
        if name in _SWITCHES:
            options.set_switch(name, value)
        elif name in _FIXED:
            options.check_constant(name, _value(name, words) if value is None else value)
        elif name in _HANDLERS:
            _HANDLERS[name](options, name, _value(name, words) if value is None else value)
        else:
            raise InvalidConfig(_unknown(name))
    return options.branches


class _Options:
    """A collector of options, by branch."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, Any]] = {}

    def set_value(self, branch: str, name: str, value: object) -> None:
        """Set an option with a single value."""
        if self.branches.setdefault(branch, {}).setdefault(name, value) != value:
            message = (
                f"docker_run_args: {branch}.{name} must not be set twice, as {self.branches[branch][name]!r} and {value!r}."
            )
            raise InvalidConfig(message)

    def add_value(self, branch: str, name: str, value: object) -> None:
        """Append a value to an option with several values."""
        options = self.branches.setdefault(branch, {})
        options[name] = (*options.get(name, ()), value)

    def set_entry(self, name: str, key: str, value: object) -> None:
        """Set an entry of a mapping of the container; the last value of a key wins."""
        self.branches.setdefault("container", {}).setdefault(name, {})[key] = value

    def set_switch(self, name: str, value: str | None) -> None:
        """Set a boolean option."""
        word = "true" if value is None else value.lower()
        if word not in {"true", "1", "false", "0"}:
            raise _invalid_value(name, word, "true or false")
        flag = word in {"true", "1"}
        if name in _FIXED:
            self.check_constant(name, "true" if flag else "false")
        else:
            self.set_value("container", "read_only_root", flag)

    def check_constant(self, name: str, value: str) -> None:
        """Check an option that has a single allowed value."""
        only, reason = _FIXED[name]
        if value != only:
            raise _refusal(name, value, reason)


def _split_argument(argument: str) -> list[str]:
    """Split ``--cpus 1`` in one argument into two words; ``--env=A=b c`` stays one word."""
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
        known = (*_HANDLERS, *_FIXED, *_SWITCHES, *REFUSED)
        return f"docker_run_args: {name} is not supported{did_you_mean(name, known)}: see the guide's page on containers."
    name = name.partition("=")[0]  # the value may be a secret
    return f"docker_run_args: {name!r} is not an option: set the image with docker_image; the command is the launcher."


def _value(name: str, words: Iterator[str]) -> str:
    value = next(words, "")
    if not value or (value.startswith("-") and not value[1:].isdigit()):
        raise InvalidConfig(f"docker_run_args: {name} must have a value.")
    return value


def _invalid_value(name: str, value: str, expected: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is invalid: must be {expected}.")


def _refusal(name: str, value: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is refused: {reason}.")


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


def _text(_name: str, value: str) -> str:
    return value


def _container_option(option: str, convert: Callable[[str, str], object] = _text) -> _Handler:
    return lambda options, name, value: options.set_value("container", option, convert(name, value))


def _network(options: _Options, name: str, value: str) -> None:
    if value.startswith("container:"):
        raise _refusal(name, value, _NAMESPACE)
    if value not in {"none", "bridge", "host"}:
        raise _invalid_value(name, value, "none, bridge or host")
    options.set_value("container", "network", value)


def _tmpfs(options: _Options, name: str, value: str) -> None:
    path, _, settings = value.partition(":")
    bytes_ = None
    for setting in filter(None, settings.split(",")):
        key, _, amount = setting.partition("=")
        if key == "size":
            bytes_ = _bytes("--tmpfs size", amount)
        elif setting not in {"rw", "noexec", "nosuid", "nodev", "mode=1777"}:
            raise _invalid_value(name, value, "a path, and after a colon size=SIZE, rw, noexec, nosuid, nodev, mode=1777")
    target = normalize_target(path)
    if target in options.branches.get("container", {}).get("tmpfs", {}):
        message = f"docker_run_args: --tmpfs {target} must not be set twice."
        raise InvalidConfig(message)
    if target != "/tmp":  # noqa: S108 - the container's
        options.set_entry("tmpfs", target, 64 * MIB if bytes_ is None else bytes_)
    elif bytes_ is not None:
        options.set_value("container", "tmp_bytes", bytes_)


def _security(options: _Options, name: str, value: str) -> None:
    option, _, setting = value.replace("=", ":", 1).partition(":")
    if option == "no-new-privileges" and setting in {"", "true", "false"}:
        options.set_value("container", "no_new_privileges", setting != "false")
    elif option in {"seccomp", "apparmor", "label", "systempaths"}:
        raise _refusal(name, value, "the engine's own confinement must not change")
    else:
        raise _invalid_value(name, value, "no-new-privileges")


def _cap_add(options: _Options, name: str, value: str) -> None:
    capability = value.upper().removeprefix("CAP_")
    if reason := capability_refusal(capability):
        raise _refusal(name, value, reason)
    options.add_value("container", "cap_add", capability)


def _cap_drop(_options: _Options, name: str, value: str) -> None:
    """Accept any capability name: all capabilities are dropped except added ones."""
    if not value.replace("_", "").isalnum():
        raise _invalid_value(name, value, "ALL or the name of a capability")


def _ulimit(options: _Options, name: str, value: str) -> None:
    limit, _, numbers = value.partition("=")
    soft, _, hard = numbers.partition(":")
    if hard and hard != soft:
        raise _invalid_value(name, value, "one number, as soft and hard limit must be the same")
    number = _count(name, soft)
    if limit in _ULIMITS:
        options.set_value("limits", _ULIMITS[limit], number)
    elif (limit, number) != ("core", 0):
        raise _invalid_value(name, value, f"one of {', '.join(_ULIMITS)}, or core=0")


def _env(options: _Options, _name: str, value: str) -> None:
    variable, equals, content = value.partition("=")
    if equals:
        options.set_entry("environment", variable, content)
    else:
        options.add_value("environment", "pass_names", variable)


def _label(options: _Options, _name: str, value: str) -> None:
    label, _, content = value.partition("=")
    options.set_entry("labels", label, content)


def _volume(options: _Options, name: str, value: str) -> None:
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
    options.add_value("container", "mounts", {"source": source, "target": target, "read_only": mode == "ro"})


def _workdir(options: _Options, name: str, value: str) -> None:
    if value.rstrip("/") != WORKSPACE_INSIDE:
        raise _invalid_value(name, value, "/workspace; set the directory of this machine with work_dir")
    options.set_value("container", "layout", "classic")


_Handler = Callable[[_Options, str, str], None]
#: Handlers of options with a value.
_HANDLERS: Mapping[str, _Handler] = MappingProxyType(
    {
        "--cap-add": _cap_add,
        "--cap-drop": _cap_drop,
        "--cpus": _container_option("cpus", _number),
        "--env": _env,
        "--hostname": _container_option("hostname"),
        "--label": _label,
        "--memory": _container_option("memory_bytes", _bytes),
        "--memory-swap": _container_option("memory_swap_bytes", _bytes),
        "--name": _container_option("name"),
        "--network": _network,
        "--pids-limit": _container_option("pids", _count),
        "--security-opt": _security,
        "--shm-size": _container_option("shm_bytes", _bytes),
        "--tmpfs": _tmpfs,
        "--ulimit": _ulimit,
        "--user": _container_option("user"),
        "--volume": _volume,
        "--workdir": _workdir,
    }
)
