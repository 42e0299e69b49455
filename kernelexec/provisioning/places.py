"""Where a session's kernels run: what their kernelspec, their environment and their directory are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.containers import ContainerPlace
from kernelexec.provisioning.environment import scrubbed
from kernelexec.provisioning.forks import Forks
from kernelexec.provisioning.installed import Installed, InstalledSpec, Transport
from kernelexec.provisioning.runtime import RuntimeDirectory
from kernelexec.provisioning.spec import guarded_spec, kernel_spec


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

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """What the first result of a kernel says of it, and of the way in which it is reached."""
        ...

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """The kernelspec of a new kernel with that private directory."""
        ...

    def environment(self) -> dict[str, str]:
        """The environment of a new kernel."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """This machine, with the caller's own rights."""

    config: Config
    cwd: str
    patience: float = 0.0
    user: None = None
    reached_by: Transport = "ipc"
    forks: Forks | None = None
    root: Path | None = None

    @property
    def isolation(self) -> str:
        """What results say: whether this machine is a container itself."""
        return "container-host" if self.config.isolation == "container-host" else "local"

    @property
    def python(self) -> str:
        """The chosen interpreter."""
        return self.config.python

    def inside(self, path: str) -> str:
        """The same."""
        return path

    def outside(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """The same."""
        return path

    @property
    def memory_bytes(self) -> int | None:
        """No limit of its own."""
        return None

    @property
    def cpus(self) -> float | None:
        """No limit of its own."""
        return None

    def limited(self, config: Config) -> Place | None:  # noqa: ARG002 - of the protocol
        """There are no limits of a kernel's memory and processors here."""
        return None

    @property
    def specs_where(self) -> str:
        """On this machine."""
        return "that are installed here"

    async def installed(self) -> Installed:
        """This machine's."""
        return Installed.here()

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """By unix sockets, where the kernel can have them."""
        return installed.transport if installed else self.reached_by

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - of the protocol
        """Have a fork server, if one is wanted."""
        if self.forks is not None and self.root is not None:
            await self.forks.prepare(self.root)

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """That a kernel can be reached by others too; that it was not forked, though it could be."""
        if installed is None or transport != "tcp":
            failure = self.forks.failure if self.forks is not None and installed is None else None
            return () if failure is None else (failure,)
        return (f"The kernel {installed.name!r} cannot use unix sockets: it listens on a loopback port.",)

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Our launcher in the chosen interpreter, or another kernel under our guard."""
        file = runtime.connection_file
        if installed is not None:
            return guarded_spec(installed, file)
        server = None if self.forks is None else self.forks.serving()
        return kernel_spec(self.config.python, file, forked_by=server)

    def environment(self) -> dict[str, str]:
        """This process's, without what looks like a secret."""
        return scrubbed(self.config.environment)


def unavailable(config: Config) -> str | None:
    """Why kernels cannot run where the configuration says, in a sentence; None where they can. It takes two seconds at most."""
    if config.isolation != "container":
        return None
    try:
        from kernelexec.provisioning.engine import probe  # noqa: PLC0415 - who runs code locally needs no docker package
    except ImportError as exc:
        return f"The package docker cannot be imported ({exc}): install it with `pip install docker`."
    return probe()


def place_of(
    config: Config, *, session: str, workspace: Path, root: Path, own: bool = True, forks: Forks | None = None
) -> Place:
    """Where the kernels of a session run, as the configuration says; ``own`` says that the workspace was made for it.

    Raises:
        InvalidConfig, InvalidWorkDir: they could not start there, or not write.
    """
    if config.isolation == "container":
        place = ContainerPlace(config, session, workspace, root)
        place.check(own=own)
        return place
    return LocalPlace(config, str(workspace), forks=forks, root=root)
