"""Arguments of ``docker run`` as options of ``Config``; what would defeat the isolation is refused by its name.

The words are read here and not by argparse: no message may show a value that may be a secret, an option and its value may be
one argument, and each refused option has its own reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelexec.config.protected_paths import WORKSPACE_INSIDE, capability_refusal, normalize_target, why_not_mountable
from kernelexec.config.types import MIB, size
from kernelexec.errors import InvalidConfig, nearest

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
_NAMESPACE = "the kernel would see, or be, what is outside of its container"
_LAUNCHER = "the container runs the kernel's launcher, and its end is the kernel's"
_DEVICES = "devices of this machine are not handed on"
_PORTS = "kernels listen on no port"
_DNS = "names are those of the network that is chosen"
_OOM = "a kernel over its memory ends, and the machine does not"
#: Refused whatever their value is.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "--privileged": "it takes the whole wall down",
        "--pid": _NAMESPACE,
        "--uts": _NAMESPACE,
        "--userns": _NAMESPACE,
        "--cgroup-parent": "limits are those of memory, cpus and pids",
        "--device": _DEVICES,
        "--device-cgroup-rule": _DEVICES,
        "--device-read-bps": _DEVICES,
        "--device-write-bps": _DEVICES,
        "--gpus": _DEVICES,
        "--volumes-from": "a kernel sees its own workspace and the mounts that are named",
        "--mount": "mounts are named by --volume SOURCE:TARGET[:ro]",
        "--sysctl": "the settings of the machine's kernel stay as they are",
        "--runtime": "what runs containers is the engine's choice",
        "--group-add": "a kernel is in the groups that --user names",
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
        "--env-file": "variables are named by --env NAME=VALUE",
    }
)


#: Options with one value that is taken, and the reason why all others are refused.
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
    """Return the options, by branch of ``Config``. An option and its value are one argument or two.

    Raises:
        InvalidConfig: an option that is refused, with the reason; that is unknown, with the nearest; or without a fit value.
    """
    options = _Options()
    words = iter([part for argument in arguments for part in _parts(argument)])
    for word in words:
        name, value = _split(word)
        if name in REFUSED:
            raise InvalidConfig(f"docker_run_args: {name} is refused: {REFUSED[name]}.")
        if name in _SWITCHES:
            options.switch(name, value)
        elif name in _FIXED:
            options.fixed(name, _value(name, words) if value is None else value)
        elif name in _TAKEN:
            _TAKEN[name](options, name, _value(name, words) if value is None else value)
        else:
            raise InvalidConfig(_unknown(name))
    return options.branches


class _Options:
    """The options so far, by branch."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, Any]] = {}

    def put(self, branch: str, name: str, value: object) -> None:
        """Set an option that has one value."""
        if self.branches.setdefault(branch, {}).setdefault(name, value) != value:
            message = f"docker_run_args: {branch}.{name} is given twice, as {self.branches[branch][name]!r} and {value!r}."
            raise InvalidConfig(message)

    def add(self, branch: str, name: str, value: object) -> None:
        """Add to an option that has several values."""
        options = self.branches.setdefault(branch, {})
        options[name] = (*options.get(name, ()), value)

    def enter(self, name: str, key: str, value: object) -> None:
        """Set an entry of a mapping of the container; of two with one key the later counts."""
        self.branches.setdefault("container", {}).setdefault(name, {})[key] = value

    def switch(self, name: str, value: str | None) -> None:
        """Take an option that is true or false."""
        word = "true" if value is None else value.lower()
        if word not in {"true", "1", "false", "0"}:
            raise _unfit(name, word, "true or false")
        flag = word in {"true", "1"}
        if name in _FIXED:
            self.fixed(name, "true" if flag else "false")
        else:
            self.put("container", "read_only_root", flag)

    def fixed(self, name: str, value: str) -> None:
        """Take an option that changes nothing."""
        only, reason = _FIXED[name]
        if value != only:
            raise _refused(name, value, reason)


def _parts(argument: str) -> list[str]:
    """Split ``--cpus 1`` in one argument into two words; ``--env=A=b c`` is one."""
    words = argument.strip().split(None, 1)
    return words if argument.startswith("-") and words and "=" not in words[0] else [argument]


def _split(word: str) -> tuple[str, str | None]:
    """Return the option's long name, and the value in the same word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return _SHORT.get(name, name), value if equals else None
    if word.startswith("-") and word[:2] in _SHORT:
        return _SHORT[word[:2]], word[2:].removeprefix("=") if word[2:] else None
    return word, None


def _unknown(name: str) -> str:
    if name.startswith("-"):
        known = (*_TAKEN, *_FIXED, *_SWITCHES, *REFUSED)
        return f"docker_run_args: {name} is not taken{nearest(name, known)}: see the guide's page on containers for the others."
    name = name.partition("=")[0]  # the rest may be a secret
    return f"docker_run_args: {name!r} is no option: the image is docker_image, and the command is the kernel's launcher."


def _value(name: str, words: Iterator[str]) -> str:
    value = next(words, "")
    if not value or (value.startswith("-") and not value[1:].isdigit()):
        raise InvalidConfig(f"docker_run_args: {name} needs a value.")
    return value


def _unfit(name: str, value: str, expected: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} does not fit: it is {expected}.")


def _refused(name: str, value: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is refused: {reason}.")


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as exc:
        raise _unfit(name, value, "a number") from exc


def _count(name: str, value: str) -> int | None:
    """Return a whole number; None, which is no limit, for -1."""
    try:
        return None if value == "-1" else int(value)
    except ValueError as exc:
        raise _unfit(name, value, "a whole number") from exc


def _bytes(name: str, value: str) -> int:
    return size(value, f"docker_run_args: {name}")


def _text(_name: str, value: str) -> str:
    return value


def _plain(option: str, convert: Callable[[str, str], object] = _text) -> _Handler:
    return lambda options, name, value: options.put("container", option, convert(name, value))


def _network(options: _Options, name: str, value: str) -> None:
    if value.startswith("container:"):
        raise _refused(name, value, _NAMESPACE)
    if value not in {"none", "bridge", "host"}:
        raise _unfit(name, value, "none, bridge or host")
    options.put("container", "network", value)


def _tmpfs(options: _Options, name: str, value: str) -> None:
    path, _, settings = value.partition(":")
    bytes_ = None
    for setting in filter(None, settings.split(",")):
        key, _, amount = setting.partition("=")
        if key == "size":
            bytes_ = _bytes("--tmpfs size", amount)
        elif setting not in {"rw", "noexec", "nosuid", "nodev", "mode=1777"}:
            raise _unfit(name, value, "a path, and after a colon size=SIZE, rw, noexec, nosuid, nodev, mode=1777")
    target = normalize_target(path)
    if target in options.branches.get("container", {}).get("tmpfs", {}):
        message = f"docker_run_args: --tmpfs {target} is given twice."
        raise InvalidConfig(message)
    if target != "/tmp":  # noqa: S108 - the container's
        options.enter("tmpfs", target, 64 * MIB if bytes_ is None else bytes_)
    elif bytes_ is not None:
        options.put("container", "tmp_bytes", bytes_)


def _security(options: _Options, name: str, value: str) -> None:
    option, _, setting = value.replace("=", ":", 1).partition(":")
    if option == "no-new-privileges" and setting in {"", "true", "false"}:
        options.put("container", "no_new_privileges", setting != "false")
    elif option in {"seccomp", "apparmor", "label", "systempaths"}:
        raise _refused(name, value, "the engine's own confinement stays as it is")
    else:
        raise _unfit(name, value, "no-new-privileges")


def _cap_add(options: _Options, name: str, value: str) -> None:
    capability = value.upper().removeprefix("CAP_")
    if reason := capability_refusal(capability):
        raise _refused(name, value, reason)
    options.add("container", "cap_add", capability)


def _cap_drop(_options: _Options, name: str, value: str) -> None:
    """Take any name: all capabilities are dropped but those added."""
    if not value.replace("_", "").isalnum():
        raise _unfit(name, value, "ALL or the name of a capability")


def _ulimit(options: _Options, name: str, value: str) -> None:
    limit, _, numbers = value.partition("=")
    soft, _, hard = numbers.partition(":")
    if hard and hard != soft:
        raise _unfit(name, value, "one number: soft and hard limit are the same here")
    number = _count(name, soft)
    if limit in _ULIMITS:
        options.put("limits", _ULIMITS[limit], number)
    elif (limit, number) != ("core", 0):
        raise _unfit(name, value, f"one of {', '.join(_ULIMITS)}, or core=0")


def _env(options: _Options, _name: str, value: str) -> None:
    variable, equals, content = value.partition("=")
    if equals:
        options.enter("environment", variable, content)
    else:
        options.add("environment", "pass_names", variable)


def _label(options: _Options, _name: str, value: str) -> None:
    label, _, content = value.partition("=")
    options.enter("labels", label, content)


def _volume(options: _Options, name: str, value: str) -> None:
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if "/" not in source or not target or mode not in {"", "ro", "rw"}:
        raise _unfit(name, value, "SOURCE:TARGET or SOURCE:TARGET:ro, both paths")
    try:
        reason = why_not_mountable(Path(source))
    except (OSError, RuntimeError, ValueError) as exc:
        raise _unfit(name, value, "a path that is there") from exc
    if reason:
        raise _refused(name, value, reason)
    options.add("container", "mounts", {"source": source, "target": target, "read_only": mode == "ro"})


def _workdir(options: _Options, name: str, value: str) -> None:
    if value.rstrip("/") != WORKSPACE_INSIDE:
        raise _unfit(name, value, "/workspace: which directory of this machine that is, work_dir says")
    options.put("container", "layout", "classic")


_Handler = Callable[[_Options, str, str], None]
#: Options with a value.
_TAKEN: Mapping[str, _Handler] = MappingProxyType(
    {
        "--cap-add": _cap_add,
        "--cap-drop": _cap_drop,
        "--cpus": _plain("cpus", _number),
        "--env": _env,
        "--hostname": _plain("hostname"),
        "--label": _label,
        "--memory": _plain("memory_bytes", _bytes),
        "--memory-swap": _plain("memory_swap_bytes", _bytes),
        "--name": _plain("name"),
        "--network": _network,
        "--pids-limit": _plain("pids", _count),
        "--security-opt": _security,
        "--shm-size": _plain("shm_bytes", _bytes),
        "--tmpfs": _tmpfs,
        "--ulimit": _ulimit,
        "--user": _plain("user"),
        "--volume": _volume,
        "--workdir": _workdir,
    }
)
