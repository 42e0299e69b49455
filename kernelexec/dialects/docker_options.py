"""What each option of ``docker run`` that is taken means here, and which of its values are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelexec.config.protected_paths import WORKSPACE_INSIDE, capability_refusal, normalize_target, why_not_mountable
from kernelexec.config.types import MIB, size
from kernelexec.errors import InvalidConfig

NAMESPACE = "the kernel would see, or be, what is outside of its container"
LAUNCHER = "the container runs the kernel's launcher, and its end is the kernel's"


class Options:
    """The options so far, by branch."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, Any]] = {}

    def put(self, branch: str, name: str, value: object) -> None:
        """Set an option that has one value."""
        if self.branches.setdefault(branch, {}).setdefault(name, value) != value:
            message = f"docker_run_args: {branch}.{name} is given twice, as {self.branches[branch][name]!r} and {value!r}."
            raise InvalidConfig(message)

    def add(self, branch: str, name: str, value: object) -> None:
        """Add to an option that has several."""
        found = self.branches.setdefault(branch, {})
        found[name] = (*found.get(name, ()), value)

    def enter(self, name: str, key: str, value: object) -> None:
        """Set an entry of a mapping of the container; of two with one key the later counts."""
        self.branches.setdefault("container", {}).setdefault(name, {})[key] = value


def flag(name: str, value: str | None) -> bool:
    """What an option says that needs no value."""
    if value is None or value.lower() in {"true", "1"}:
        return True
    if value.lower() in {"false", "0"}:
        return False
    raise _unfit(name, value, "true or false")


def _unfit(name: str, value: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} does not fit: it is {what}.")


def _refused(name: str, value: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"docker_run_args: {name} {value} is refused: {why}.")


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as exc:
        raise _unfit(name, value, "a number") from exc


def _count(name: str, value: str) -> int | None:
    """A whole number; -1 is no limit."""
    try:
        return None if value == "-1" else int(value)
    except ValueError as exc:
        raise _unfit(name, value, "a whole number") from exc


def _always(name: str) -> Callable[[Options, bool], None]:
    def take(_options: Options, flag: bool) -> None:  # noqa: FBT001
        if not flag:
            raise _refused(name, "false", LAUNCHER)

    return take


def _plain(option: str) -> Callable[[Options, str], None]:
    return lambda options, value: options.put("container", option, value)


def _bytes(name: str, option: str) -> Callable[[Options, str], None]:
    return lambda options, value: options.put("container", option, size(value, f"docker_run_args: {name}"))


def _private(name: str) -> Callable[[Options, str], None]:
    def take(_options: Options, value: str) -> None:
        if value != "private":
            raise _refused(name, value, NAMESPACE)

    return take


def _network(options: Options, value: str) -> None:
    if value.startswith("container:"):
        raise _refused("--network", value, NAMESPACE)
    if value not in {"none", "bridge", "host"}:
        raise _unfit("--network", value, "none, bridge or host")
    options.put("container", "network", value)


def _tmpfs(options: Options, value: str) -> None:
    path, _, settings = value.partition(":")
    bytes_ = None
    for setting in filter(None, settings.split(",")):
        name, _, given = setting.partition("=")
        if name == "size":
            bytes_ = size(given, "docker_run_args: --tmpfs size")
        elif setting not in {"rw", "noexec", "nosuid", "nodev", "mode=1777"}:
            raise _unfit("--tmpfs", value, "a path, and after a colon size=SIZE, rw, noexec, nosuid, nodev, mode=1777")
    place = normalize_target(path)
    if place in options.branches.get("container", {}).get("tmpfs", {}):
        message = f"docker_run_args: --tmpfs {place} is given twice."
        raise InvalidConfig(message)
    if place != "/tmp":  # noqa: S108 - the container's
        options.enter("tmpfs", place, 64 * MIB if bytes_ is None else bytes_)
    elif bytes_ is not None:
        options.put("container", "tmp_bytes", bytes_)


def _security(options: Options, value: str) -> None:
    name, _, given = value.replace("=", ":", 1).partition(":")
    if name == "no-new-privileges" and given in {"", "true", "false"}:
        options.put("container", "no_new_privileges", given != "false")
    elif name in {"seccomp", "apparmor", "label", "systempaths"}:
        raise _refused("--security-opt", value, "the engine's own confinement stays as it is")
    else:
        raise _unfit("--security-opt", value, "no-new-privileges")


def _cap_add(options: Options, value: str) -> None:
    name = value.upper().removeprefix("CAP_")
    if why := capability_refusal(name):
        raise _refused("--cap-add", value, why)
    options.add("container", "cap_add", name)


def _cap_drop(_options: Options, value: str) -> None:
    """All are dropped but those added."""
    if not value.replace("_", "").isalnum():
        raise _unfit("--cap-drop", value, "ALL or the name of a capability")


def _ulimit(options: Options, value: str) -> None:
    name, _, given = value.partition("=")
    soft, _, hard = given.partition(":")
    if hard and hard != soft:
        raise _unfit("--ulimit", value, "one number: soft and hard limit are the same here")
    number = _count("--ulimit", soft)
    known = {"nofile": "nofile", "fsize": "fsize_bytes", "as": "as_bytes", "nproc": "nproc"}
    if name in known:
        options.put("limits", known[name], number)
    elif (name, number) != ("core", 0):
        raise _unfit("--ulimit", value, f"one of {', '.join(known)}, or core=0")


def _env(options: Options, value: str) -> None:
    name, equals, given = value.partition("=")
    if equals:
        options.enter("environment", name, given)
    else:
        options.add("environment", "pass_names", name)


def _label(options: Options, value: str) -> None:
    name, _, given = value.partition("=")
    options.enter("labels", name, given)


def _volume(options: Options, value: str) -> None:
    source, _, rest = value.partition(":")
    target, _, mode = rest.partition(":")
    if "/" not in source or not target or mode not in {"", "ro", "rw"}:
        raise _unfit("--volume", value, "SOURCE:TARGET or SOURCE:TARGET:ro, both paths")
    try:
        why = why_not_mountable(Path(source))
    except (OSError, RuntimeError, ValueError) as exc:
        raise _unfit("--volume", value, "a path that is there") from exc
    if why:
        raise _refused("--volume", value, why)
    options.add("container", "mounts", {"source": source, "target": target, "read_only": mode == "ro"})


def _workdir(options: Options, value: str) -> None:
    if value.rstrip("/") != WORKSPACE_INSIDE:
        raise _unfit("--workdir", value, "/workspace: which directory of this machine that is, work_dir says")
    options.put("container", "layout", "classic")


#: Options that are true or false.
SWITCHES: Mapping[str, Callable[[Options, bool], None]] = MappingProxyType(
    {
        "--rm": _always("--rm"),
        "--init": _always("--init"),
        "--read-only": lambda options, flag: options.put("container", "read_only_root", flag),
    }
)
#: Options with a value.
TAKEN: Mapping[str, Callable[[Options, str], None]] = MappingProxyType(
    {
        "--cap-add": _cap_add,
        "--cap-drop": _cap_drop,
        "--cgroupns": _private("--cgroupns"),
        "--cpus": lambda options, value: options.put("container", "cpus", _number("--cpus", value)),
        "--env": _env,
        "--hostname": _plain("hostname"),
        "--ipc": _private("--ipc"),
        "--label": _label,
        "--memory": _bytes("--memory", "memory_bytes"),
        "--memory-swap": _bytes("--memory-swap", "memory_swap_bytes"),
        "--name": _plain("name"),
        "--network": _network,
        "--pids-limit": lambda options, value: options.put("container", "pids", _count("--pids-limit", value)),
        "--security-opt": _security,
        "--shm-size": _bytes("--shm-size", "shm_bytes"),
        "--tmpfs": _tmpfs,
        "--ulimit": _ulimit,
        "--user": _plain("user"),
        "--volume": _volume,
        "--workdir": _workdir,
    }
)
