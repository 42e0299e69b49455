"""Settings of kernels' containers. The defaults isolate; each relaxation is a separate option."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from kernelexec.config.protected_paths import (
    CAPABILITIES,
    WORKSPACE_INSIDE,
    capability_refusal,
    mount_refusal,
    normalize_target,
    target_refusal,
)
from kernelexec.config.types import (
    MIB,
    Count,
    Cpus,
    Directory,
    FrozenModel,
    ReadOnlyMapping,
    Size,
    absolute_path,
    as_tuple,
    matching,
)

#: Images that can be built by name: images of kernels, the smallest first, and the server with its kernels.
NAMES = ("minimal", "data-science", "web", "ml", "agent", "server")
#: The owner in the names of our images: ``kernelexec/minimal``, and ``kernelexec/minimal-sudo`` with sudo.
OWNER = "kernelexec"
OURS = f"{OWNER}/"
_SUDO = "-sudo"
REFERENCE = re.compile(rf"{OURS}(?P<name>[a-z-]+?)(?P<sudo>{_SUDO})?(?P<tag>:[\w.-]+)?")
#: The image that ``kernelexec image build agent`` makes.
DEFAULT_IMAGE = f"{OWNER}/agent"


def sudo_variant(image: str) -> str:
    """Return the sudo variant of a ``kernelexec/...`` image; other images are returned unchanged."""
    reference = REFERENCE.fullmatch(image)
    if not reference or reference["sudo"] or reference["name"] not in NAMES:
        return image
    return f"{OWNER}/{reference['name']}{_SUDO}{reference['tag'] or ''}"


#: The default interpreter.
DEFAULT_PYTHON = "python3"
#: The home directory of kernels with credentials; it is in memory.
HOME_INSIDE = "/home/kernel"
#: The path of each kind of credentials in a home directory.
CREDENTIALS = {
    "ssh_keys": ".ssh",
    "git_config": ".gitconfig",
    "gh_config": ".config/gh",
    "npm_config": ".npmrc",
    "pypi_config": ".pypirc",
}
#: The directories in memory that each container has, and their sizes in bytes.
_IN_MEMORY = {"/tmp": 256 * MIB, "/dev/shm": 64 * MIB}  # noqa: S108 - the container's
_USER = re.compile(r"\d{1,100}(:\d{1,100})?", re.ASCII)
#: The largest user or group id, and the largest number of processes, that an engine accepts.
_LARGEST_ID, _LARGEST_PIDS = 2**31 - 1, 2**22
_GPU, _GPUS_MAX = re.compile(r"[A-Za-z0-9_.:/=-]{1,128}", re.ASCII), 1024
_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,511}"


def _check_user(value: str | None) -> str | None:
    if value is not None and not _USER.fullmatch(value):
        raise ValueError("must be a numeric user id, or a user and a group id as in 1000:1000")
    if value is not None and max(map(int, value.split(":"))) > _LARGEST_ID:
        raise ValueError(f"a user or group id must be <= {_LARGEST_ID}")
    return value


def _check_gpus(value: object) -> object:
    ids = [value] if isinstance(value, str) else value
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _GPUS_MAX):
        return value
    if isinstance(ids, list | tuple) and ids and all(isinstance(each, str) and _GPU.fullmatch(each) for each in ids):
        return tuple(ids)
    raise ValueError(f"must be 'all', a number of GPUs from 1 to {_GPUS_MAX}, or a list of their ids")


#: The GPUs of a container: all, a number, or ids as the engine knows them.
Gpus = Annotated[Literal["all"] | int | tuple[str, ...], BeforeValidator(_check_gpus)]
#: The name of a container.
Name = Annotated[
    str,
    matching(
        r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}",
        "1 to 128 letters, digits, underscores, dots and dashes, and begin with a letter or digit",
    ),
]


def is_image_name(name: str) -> bool:
    """Return whether a text is a valid image name."""
    return re.fullmatch(_IMAGE, name) is not None


def _check_images(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not all(map(is_image_name, value)):
        raise ValueError("must be an image name, or a list of names; the first available one is used")
    return value


def _check_python(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("must be the name of a program in the image, or its path there")
    return value


def _check_capabilities(value: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.upper().removeprefix("CAP_") for name in value)
    for name in names:
        _raise_refusal(capability_refusal(name))
    return names


def _check_source(value: Path) -> Path:
    path = absolute_path(value)
    _raise_refusal(mount_refusal(value))
    return path


def _check_target(value: str | None) -> str | None:
    if value is not None:
        _raise_refusal(target_refusal(value))
        if normalize_target(value) == WORKSPACE_INSIDE:
            raise ValueError("/workspace is the session's own directory: set it with work_dir")
    return value


def _without_duplicates(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value))


def _check_tmpfs(value: Mapping[str, int]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for path, size in value.items():
        target = normalize_target(path)
        if target not in _IN_MEMORY:  # of those two only the size is set; each container has them anyway
            _raise_refusal(target_refusal(path))
        if target == WORKSPACE_INSIDE:
            raise ValueError("/workspace must not be in memory: the session's files would be lost")
        if target in sizes:
            raise ValueError(f"{target} must not be listed twice")
        sizes[target] = size
    return ReadOnlyMapping(sizes)


def _raise_refusal(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(reason)


class Mount(FrozenModel):
    """A directory or file of this machine, mounted into the containers."""

    source: Annotated[Directory, AfterValidator(_check_source)]
    """The path on this machine. System directories and sockets are refused, also through links."""
    target: Annotated[str | None, AfterValidator(_check_target)] = None
    """The path in the container; by default the same path, or one below ``/context`` in the classic layout."""
    read_only: bool = True
    """Whether kernels can only read the mount."""


class Container(FrozenModel):
    """Settings of the containers that kernels run in."""

    image: Annotated[tuple[str, ...], BeforeValidator(as_tuple), AfterValidator(_check_images)] = (DEFAULT_IMAGE,)
    """One or more image names; the first available one is used."""
    pull: bool = True
    """Whether missing images are pulled from their registry. ``kernelexec/...`` images are built locally and never pulled."""
    name: Name | None = None
    """A fixed container name, for an executor with one session; by default derived from the session's name."""
    instance: Name | None = None
    """A suffix of the containers' names, which distinguishes parallel runs: ``--instance-id``."""
    python: Annotated[str, AfterValidator(_check_python)] = DEFAULT_PYTHON
    """The interpreter in the image, which needs ipykernel; as a path it may also be in the workspace or in a mount. If the
    default one does not serve, that of ``kernelexec/minimal`` is mounted; an interpreter set here is never replaced."""
    user: Annotated[str | None, AfterValidator(_check_user)] = None
    """The user id of kernels, or user and group id; by default the caller's."""
    memory_bytes: Size | None = Field(default=1024 * MIB, ge=6 * MIB)
    """The memory of one container, of which nothing is swapped; None for no limit."""
    cpus: Cpus | None = 1.0
    """The number of CPUs of one container; None for no limit."""
    gpus: Gpus | None = None
    """The machine's GPUs for containers: ``"all"``, a number of them, or their ids. Code then reaches the driver of the GPU in
    this machine's kernel. No kernel starts where the engine has no runtime for GPUs."""
    pids: Count | None = Field(default=256, ge=16, le=_LARGEST_PIDS)
    """The number of processes and threads in one container; None for no limit."""
    tmpfs: Annotated[Mapping[str, Annotated[Size, Field(ge=MIB)]], AfterValidator(_check_tmpfs), PlainSerializer(dict)] = Field(
        default_factory=dict
    )
    """Directories in memory, which count there: path in the container to size in bytes. Each container has ``/tmp`` (256 MiB)
    and ``/dev/shm`` (64 MiB), whose sizes can be set here too."""
    network: Literal["none", "bridge", "host"] = "none"
    """The network of kernels. ``host`` is this machine's own: its loopback services can be reached."""
    read_only_root: bool = True
    """Whether the root directory is read-only: only ``/tmp``, the workspace and writable mounts can be written."""
    sudo: bool = Field(default=False, strict=True)
    """Whether code can become root in the container by ``sudo``. A ``kernelexec/...`` image is replaced by its variant with
    ``-sudo`` in the name, and three protections are lifted: programs can gain privileges; root has all capabilities that
    ``cap_add`` allows; the root directory is writable, unless ``read_only_root`` is set. The network does not change. Files
    that root creates in the workspace and in writable mounts belong to root on this machine too.
    """
    cap_add: Annotated[tuple[str, ...], AfterValidator(_check_capabilities)] = ()
    """Capabilities to keep, from a short list of allowed ones; all others are dropped."""
    mounts: tuple[Mount, ...] = ()
    """Directories and files of this machine that are mounted in addition to the workspace."""
    credentials: Annotated[
        tuple[Literal["ssh_keys", "git_config", "gh_config", "npm_config", "pypi_config"], ...],
        AfterValidator(_without_duplicates),
    ] = ()
    """The caller's credentials that all code in the container can read: ``~/.ssh``, ``~/.gitconfig``, ``~/.config/gh``,
    ``~/.npmrc``, ``~/.pypirc``. A result's notes name missing ones. The kernels' home directory is then ``/home/kernel``, in
    memory and at most as large as ``/tmp``, instead of the workspace.
    """
    share_home: bool = False
    """Whether the caller's home directory, with its keys and start-up files, may be a workspace or a mount, as of notebooks."""
    layout: Literal["host", "classic"] = "host"
    """``host``: workspace and mounts keep their paths of this machine. ``classic``: ``/workspace``, ``/context/<name>``."""
    mode: Literal["persistent", "ephemeral"] = "persistent"
    """``ephemeral``: every cell runs in a new container, so variables do not persist."""
    orphan_seconds: Annotated[float, Field(strict=True, ge=0)] = 300.0
    """How long a container whose owner was killed waits for the next executor in the same workspace before it ends itself;
    0 for not at all."""

    @model_validator(mode="after")
    def _apply_sudo(self) -> Self:
        if not self.sudo:
            return self
        lifted: dict[str, object] = {"image": tuple(map(sudo_variant, self.image)), "cap_add": CAPABILITIES}
        if "read_only_root" not in self.model_fields_set:
            lifted["read_only_root"] = False
        for name, value in lifted.items():  # not marked as set: an override without sudo restores the defaults
            object.__setattr__(self, name, value)
        return self

    @property
    def is_reusable(self) -> bool:
        """Return whether a second kernel can use the container, because the first kernel cannot change the root directory."""
        return self.mode == "persistent" and self.read_only_root and not self.sudo

    @property
    def needs_account(self) -> bool:
        """Return whether the image needs an account of the user, as sudo and ssh require."""
        return self.sudo or bool(self.credentials)

    @property
    def memory_directories(self) -> dict[str, int]:
        """Return the sizes in bytes of the directories in memory, by their paths in the container."""
        sizes = {**_IN_MEMORY, **self.tmpfs}
        directories = [HOME_INSIDE] if self.credentials else []
        if "gh_config" in self.credentials:
            directories.append(f"{HOME_INSIDE}/.config")  # else the engine makes it, as root
        return {**dict.fromkeys(directories, sizes["/tmp"]), **sizes}  # noqa: S108 - the container's

    @property
    def ids(self) -> tuple[int, int]:
        """Return the user and group id of kernels. A user without a group gets the group of the same number."""
        if self.user is None:
            return os.getuid(), os.getgid()
        uid, _, gid = self.user.partition(":")
        return int(uid), int(gid or uid)
