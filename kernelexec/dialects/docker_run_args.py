"""Arguments as of ``docker run``, as the options that they stand for. What would open the wall is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kernelexec.dialects.docker_options import LAUNCHER, NAMESPACE, SWITCHES, TAKEN, Options, flag
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
_DEVICES = "devices of this machine are not handed on"
_PORTS = "kernels listen on no port"
_DNS = "names are those of the network that is chosen"
_OOM = "a kernel over its memory ends, and the machine does not"
#: Refused whatever their value is.
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "--privileged": "it takes the whole wall down",
        "--pid": NAMESPACE,
        "--uts": NAMESPACE,
        "--userns": NAMESPACE,
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
        "--entrypoint": LAUNCHER,
        "--restart": LAUNCHER,
        "--attach": LAUNCHER,
        "--detach": LAUNCHER,
        "--interactive": LAUNCHER,
        "--tty": LAUNCHER,
        "--oom-kill-disable": _OOM,
        "--oom-score-adj": _OOM,
        "--env-file": "variables are named by --env NAME=VALUE",
    }
)


def parse(arguments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options, by branch of ``Config``. Each argument is one word, or an option and its value: ``--cpus 1``, ``--cpus=1``.

    Raises:
        InvalidConfig: an option that is refused, with the reason; that is unknown, with the nearest; or without a fit value.
    """
    options = Options()
    words = iter([part for argument in arguments for part in _parts(argument)])
    for word in words:
        name, value = _split(word)
        if name in REFUSED:
            message = f"docker_run_args: {name} is refused: {REFUSED[name]}."
            raise InvalidConfig(message)
        if name in SWITCHES:
            SWITCHES[name](options, flag(name, value))
        elif name in TAKEN:
            TAKEN[name](options, _value(name, words) if value is None else value)
        else:
            raise InvalidConfig(_unknown(name))
    return options.branches


def _parts(argument: str) -> list[str]:
    """``--cpus 1`` in one argument is two words; ``--env=A=b c`` is one."""
    words = argument.strip().split(None, 1)
    return words if argument.startswith("-") and words and "=" not in words[0] else [argument]


def _split(word: str) -> tuple[str, str | None]:
    """The option's long name, and the value that stands in the same word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return _SHORT.get(name, name), value if equals else None
    if word.startswith("-") and word[:2] in _SHORT:
        return _SHORT[word[:2]], word[2:].removeprefix("=") if word[2:] else None
    return word, None


def _unknown(name: str) -> str:
    if name.startswith("-"):
        known = (*TAKEN, *SWITCHES, *REFUSED)
        return f"docker_run_args: {name} is not taken{nearest(name, known)}: see the README for those that are."
    name = name.partition("=")[0]  # what follows may be a secret
    return f"docker_run_args: {name!r} is no option: the image is docker_image, and the command is the kernel's launcher."


def _value(name: str, words: Iterator[str]) -> str:
    value = next(words, "")
    if not value or (value.startswith("-") and not value[1:].isdigit()):
        message = f"docker_run_args: {name} needs a value."
        raise InvalidConfig(message)
    return value
