"""How a kernel's container is made. The defaults are the wall; each relaxation is an option with a name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from kernelexec.config.images import DEFAULT_IMAGE, with_sudo
from kernelexec.config.protected_paths import (
    CAPABILITIES,
    WORKSPACE_INSIDE,
    capability_refusal,
    normalize_target,
    target_refusal,
    why_not_mountable,
)
from kernelexec.config.types import MIB, Count, Cpus, Directory, FrozenModel, Seconds, Variables

#: The interpreter that is taken where none is named.
DEFAULT_PYTHON = "python3"
#: The home of kernels that are given credentials; it is in memory.
HOME_INSIDE = "/home/kernel"
#: What each sort of credentials is, in a home directory.
CREDENTIALS = {
    "ssh_keys": ".ssh",
    "git_config": ".gitconfig",
    "gh_config": ".config/gh",
    "npm_config": ".npmrc",
    "pypi_config": ".pypirc",
}
_USER = re.compile(r"\d{1,100}(:\d{1,100})?", re.ASCII)
#: The largest user or group id, and the largest number of processes, that an engine and its system take.
_LARGEST_ID, _LARGEST_PIDS = 2**31 - 1, 2**22
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_HOST = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,511}")


def _user(value: str | None) -> str | None:
    if value is not None and not _USER.fullmatch(value):
        raise ValueError("it is a numeric user id, or a user and a group id as in 1000:1000")
    if value is not None and max(map(int, value.split(":"))) > _LARGEST_ID:
        message = f"a user or group id is {_LARGEST_ID} at most"
        raise ValueError(message)
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("it is letters, digits, underscores, dots and dashes, 128 at most, the first a letter or digit")
    return value


#: The name of a container.
Name = Annotated[str, AfterValidator(_name)]


def is_image(name: str) -> bool:
    """Return whether an image could have that name."""
    return _IMAGE.fullmatch(name) is not None


def _images(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _some_images(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not all(map(is_image, value)):
        raise ValueError("it is the name of an image, or some names of which the first that is there is taken")
    return value


def _one_image(value: str) -> str:
    if not is_image(value):
        raise ValueError("it is the name of an image")
    return value


def _hostname(value: str | None) -> str | None:
    if value is not None and not _HOST.fullmatch(value):
        raise ValueError("it is letters, digits, dots and dashes, 63 at most")
    return value


def _python(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("it is the name of a program of the image, or its path there")
    return value


def _labels(value: Mapping[str, str]) -> Mapping[str, str]:
    for name in value:
        if name.startswith("kernelexec."):
            message = f"{name!r} is a label that says whose container it is: take another name"
            raise ValueError(message)
    return value


def _capabilities(value: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.upper().removeprefix("CAP_") for name in value)
    for name in names:
        _refuse(capability_refusal(name))
    return names


def _source(value: Path) -> Path:
    try:
        _refuse(why_not_mountable(value))
        return value.expanduser().absolute()
    except OSError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


def _target(value: str | None) -> str | None:
    if value is not None:
        _refuse(target_refusal(value))
        if normalize_target(value) == WORKSPACE_INSIDE:
            raise ValueError("/workspace is the session's: give that directory as work_dir")
    return value


def _once(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value))


def _tmpfs(value: Mapping[str, int]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for path, size in value.items():
        target = normalize_target(path)
        if target == "/tmp":  # noqa: S108 - the container's
            raise ValueError("it is there already, and its size is tmp_bytes")
        _refuse(target_refusal(path))
        if target == WORKSPACE_INSIDE:
            raise ValueError("/workspace is the session's: what is written there in memory would be lost")
        if target in sizes:
            message = f"{target} is given twice"
            raise ValueError(message)
        sizes[target] = size
    return MappingProxyType(sizes)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(reason)


class Mount(FrozenModel):
    """A directory or file of this machine that kernels see too."""

    source: Annotated[Directory, AfterValidator(_source)]
    """Where it is on this machine. Directories of the system and sockets are refused, in whatever way they are named."""
    target: Annotated[str | None, AfterValidator(_target)] = None
    """Where it is in the container; by default at its own path, or below ``/context`` in the classic layout."""
    read_only: bool = True
    """Whether kernels can only read it."""


class Container(FrozenModel):
    """The containers of kernels."""

    image: Annotated[tuple[str, ...], BeforeValidator(_images), AfterValidator(_some_images)] = (DEFAULT_IMAGE,)
    """An image, or several, of which the first that is there, or can be had, is taken."""
    pull: bool = True
    """Whether an image that is not there is asked of its registry; ``kernelexec/...`` are built here and never are."""
    name: Name | None = None
    """A fixed name for the container, for an executor of one session; by default it is made of the session's."""
    instance: Name | None = None
    """What is put behind the containers' names, to tell parallel runs apart."""
    python: Annotated[str, AfterValidator(_python)] = DEFAULT_PYTHON
    """The interpreter inside the image; it needs ipykernel. One that is named here is not replaced where the image has none;
    by its path it may also lie in the workspace or in a mount."""
    runtime: Literal["auto", "image", "mounted"] = "auto"
    """Whose Python runs kernels: the image's, a mounted one, or that one only where the image's cannot."""
    runtime_image: Annotated[str, AfterValidator(_one_image)] = "kernelexec/minimal"
    """The image that a mounted Python, with its packages, comes from."""
    user: Annotated[str | None, AfterValidator(_user)] = None
    """Who kernels run as: a user id, or user and group id; by default the caller's own."""
    memory_bytes: Count | None = Field(default=1024 * MIB, ge=6 * MIB)
    """The memory of one container. None is no limit."""
    memory_swap_bytes: Count | None = None
    """Memory and swap together; by default ``memory_bytes``, so that nothing is swapped."""
    cpus: Cpus | None = 1.0
    """How many processors' time one container gets. None is no limit."""
    pids: Count | None = Field(default=256, ge=16, le=_LARGEST_PIDS)
    """Processes and threads in one container. None is no limit."""
    tmp_bytes: Count = Field(default=256 * MIB, ge=MIB)
    """The size of ``/tmp``, which is in memory and counts there."""
    tmpfs: Annotated[Mapping[str, Annotated[Count, Field(ge=MIB)]], AfterValidator(_tmpfs), PlainSerializer(dict)] = Field(
        default_factory=dict
    )
    """Further directories in memory: path in the container to size in bytes."""
    shm_bytes: Count = Field(default=64 * MIB, ge=MIB)
    """The size of ``/dev/shm``, which is in memory and counts there."""
    network: Literal["none", "bridge", "host"] = "none"
    """The network of kernels. ``host`` is this machine's own: its loopback services can be reached."""
    read_only_root: bool = True
    """Whether everything but ``/tmp``, the workspace and what is mounted for writing can only be read."""
    no_new_privileges: bool = True
    """Whether programs with the set-user-id bit get no more rights than their caller has."""
    sudo: bool = Field(default=False, strict=True)
    """Whether code becomes root in the container by ``sudo``. An image of ours is then the one with ``-sudo`` in its name, and
    three parts of the wall are lifted: ``no_new_privileges`` is off; root keeps all of ``cap_add``'s short list; the root
    directory can be written, unless ``read_only_root`` is set. The network stays as it is. What root makes in the workspace,
    and in mounts that can be written, is root's on this machine too.
    """
    cap_add: Annotated[tuple[str, ...], AfterValidator(_capabilities)] = ()
    """Capabilities that are kept, of a short list; all others are dropped."""
    hostname: Annotated[str | None, AfterValidator(_hostname)] = None
    """The name of the machine as kernels see it; by default the engine's choice, or ``kernel`` with sudo and no network."""
    labels: Annotated[Variables, AfterValidator(_labels)] = Field(default_factory=dict)
    """Labels of the containers, besides those by which they are found again."""
    mounts: tuple[Mount, ...] = ()
    """What kernels see of this machine besides their workspace."""
    credentials: Annotated[
        tuple[Literal["ssh_keys", "git_config", "gh_config", "npm_config", "pypi_config"], ...], AfterValidator(_once)
    ] = ()
    """What of the caller's own credentials kernels can read: ``~/.ssh``, ``~/.gitconfig``, ``~/.config/gh``, ``~/.npmrc``,
    ``~/.pypirc``. All code in the container can; one that is not there is said in a result's notes. The kernels' home is then
    a directory in memory, ``/home/kernel``, of ``tmp_bytes`` at most, and not the workspace.
    """
    share_home: bool = False
    """Whether the caller's home directory, with its keys and what its programs start from, may be a workspace or a mount."""
    layout: Literal["host", "classic"] = "host"
    """``host``: workspace and mounts have the paths that they have here. ``classic``: ``/workspace``, ``/context/<name>``."""
    transport: Literal["auto", "ipc", "tcp"] = "auto"
    """How kernels are reached: by unix sockets, or, where those cannot cross, by tcp on 127.0.0.1 with CurveZMQ.

    Ports need a network: with ``tcp`` the network ``none`` becomes one that leads nowhere, but to what listens on all addresses
    of the engine's machine.
    """
    mode: Literal["persistent", "ephemeral"] = "persistent"
    """``ephemeral``: every cell gets a container of its own, and no variable lasts."""
    adopt: bool = True
    """Whether containers outlive an owner that is killed, for the next executor in the same workspace.

    Kernels that are reached by tcp never do: they end a minute after their owner.
    """
    orphan_seconds: Seconds = 300.0
    """How long a container waits for a new owner before it ends itself."""
    environment: Variables = Field(default_factory=dict)
    """Variables of kernels in containers only, over ``environment.set``."""

    @model_validator(mode="after")
    def _ports_are_its_own(self) -> Self:
        if self.transport == "tcp" and self.network == "host":
            raise ValueError("network='host' and transport='tcp': the ports of kernels would be this machine's own")
        return self

    @model_validator(mode="after")
    def _swap_fits(self) -> Self:
        swap, memory = self.memory_swap_bytes, self.memory_bytes
        if swap is not None and (memory is None or swap < memory):
            message = f"memory_swap_bytes={swap} is memory and swap together: memory_bytes is set too, and not larger"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _sudo_works(self) -> Self:
        if not self.sudo:
            return self
        if self.no_new_privileges and "no_new_privileges" in self.model_fields_set:
            raise ValueError("sudo=True and no_new_privileges=True contradict each other: leave one of them out")
        lifted = {"image": tuple(map(with_sudo, self.image)), "no_new_privileges": False, "cap_add": CAPABILITIES}
        if "read_only_root" not in self.model_fields_set:
            lifted["read_only_root"] = False
        for name, value in lifted.items():  # it follows, and is not what was set: without sudo it is as it was
            object.__setattr__(self, name, value)
        return self

    @property
    def succeeds(self) -> bool:
        """Return whether a second kernel can get the container: changes of the first one to its root would last."""
        return self.mode == "persistent" and self.read_only_root and not self.sudo

    @property
    def needs_account(self) -> bool:
        """Return whether the image must know the user, as sudo and ssh demand."""
        return self.sudo or bool(self.credentials)

    @property
    def memory_places(self) -> dict[str, int]:
        """Return the directories in memory: path in the container to size in bytes."""
        own = ["/tmp"]  # noqa: S108 - the container's
        own += [HOME_INSIDE] if self.credentials else []
        own += [f"{HOME_INSIDE}/.config"] if "gh_config" in self.credentials else []  # else the engine makes it, as root
        return {**dict.fromkeys(own, self.tmp_bytes), **self.tmpfs}

    @property
    def ids(self) -> tuple[int, int]:
        """Return the user and group id of kernels; a user without a group has the group of the same number."""
        if self.user is None:
            return os.getuid(), os.getgid()
        uid, _, gid = self.user.partition(":")
        return int(uid), int(gid or uid)
