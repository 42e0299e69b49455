"""Where a session's kernels run: what their kernelspec, their environment and their directory are there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.container.backend import ContainerPlace
from kernelexec.provisioning.host.backend import LocalPlace
from kernelexec.provisioning.host.bubblewrap_backend import BubblewrapPlace, missing
from kernelexec.provisioning.host.fork_servers import Forks
from kernelexec.provisioning.host.interpreters import check_workspace
from kernelexec.provisioning.host.writable_paths import First
from kernelexec.provisioning.jupyter.installed import Installed, InstalledSpec, Transport
from kernelexec.provisioning.launch.one_shot import Done, Errand, Network
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.secrets import SecretStore
from kernelexec.workspace.contexts import contexts


class Place(Protocol):
    """What makes one way to have kernels different from another, besides the provisioner that its kernelspec names."""

    @property
    def isolation(self) -> str:
        """What results say of it."""
        ...

    @property
    def cwd(self) -> str:
        """The workspace as kernels see it."""
        ...

    @property
    def secrets(self) -> SecretStore | None:
        """What new kernels are told besides, and nobody is shown; None where there is nothing."""
        ...

    @property
    def python(self) -> str:
        """Where the interpreter of new kernels is, for a message."""
        ...

    @property
    def patience(self) -> float:
        """How long a kernel whose owner was killed waits for a new one, in seconds; 0 where it ends with its owner."""
        ...

    @property
    def user(self) -> tuple[int, int] | None:
        """The user and group that kernels run as, where that may be another than the caller."""
        ...

    def inside(self, path: str) -> str:
        """Where kernels see a path of the workspace; any other stays as it is."""
        ...

    def outside(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Which path a path of the workspace as kernels see it is here; any other stays as it is."""
        ...

    @property
    def memory_bytes(self) -> int | None:
        """How much memory a new kernel gets; None where there is no limit."""
        ...

    @property
    def cpus(self) -> float | None:
        """How many processors' time a new kernel gets; None where there is no limit."""
        ...

    def limited(self, config: Config) -> Place | None:
        """The same place with the limits of another configuration; None where kernels cannot be limited one by one."""
        ...

    @property
    def specs_where(self) -> str:
        """Where the kernelspecs of other kernels are, for a message."""
        ...

    async def installed(self) -> Installed:
        """The kernelspecs of other kernels.

        Raises:
            KernelStartFailed: nobody says what there is.
        """
        ...

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """How a kernel is reached, of which ``prepare`` found that it can be.

        Raises:
            KernelStartFailed: it cannot.
        """
        ...

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:
        """Have what the next kernel needs, before its start or after a failure of the one before.

        Raises:
            KernelStartFailed: no kernel can start.
        """
        ...

    def passes(self, failure: str) -> bool:
        """Whether what a start failed by may be over at once: nothing of the kernel's ran then."""
        ...

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """What the first result of a kernel says of it, and of the way in which it is reached."""
        ...

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """The kernelspec of a new kernel with that private directory."""
        ...

    def environment(self) -> dict[str, str]:
        """The environment of a new kernel."""
        ...

    def first(self) -> First:
        """How its first process begins."""
        ...

    @property
    def network(self) -> Network:
        """Which network kernels have."""
        ...

    async def run(self, errand: Errand, session: Path) -> Done:
        """Do an errand for a session, by its private directory.

        Raises:
            OSError, EngineFailed, KernelStartFailed: it could not be begun, or nobody says what became of it.
        """
        ...

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """What a new kernel with that private directory is to confine itself to; None where others see to that."""
        ...


def unavailable(config: Config) -> str | None:
    """Why kernels cannot run where the configuration says, in a sentence; None where they can. It takes two seconds at most."""
    if config.isolation == "bubblewrap":
        return missing(config)
    if config.isolation != "container":
        return None
    try:
        from kernelexec.docker.client import probe  # noqa: PLC0415 - who runs code locally needs no docker package
    except ImportError as exc:
        return f"The package docker cannot be imported ({exc}): install it with `pip install docker`."
    return probe()


def place_of(
    config: Config,
    *,
    session: str,
    workspace: Path,
    root: Path,
    own: bool = True,
    forks: Forks | None = None,
    secrets: SecretStore | None = None,
) -> Place:
    """Where the kernels of a session run, as the configuration says; ``own`` says that the workspace was made for it.

    Raises:
        InvalidConfig, InvalidWorkDir: they could not start there, or not write.
    """
    if config.isolation == "container":
        place = ContainerPlace(config, session, workspace, root, secrets)
        place.check(own=own)
        return place
    check_workspace(config, workspace)
    contexts(config, workspace)
    if config.isolation == "bubblewrap":
        return BubblewrapPlace(config, str(workspace), root=root, secrets=secrets)
    if forks is not None:
        forks.mind(str(workspace))
    reached = platform.HERE.transport
    return LocalPlace(config, str(workspace), reached_by=reached, forks=forks, root=root, secrets=secrets)
