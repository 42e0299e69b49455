"""Where a session's kernels run: what their kernelspec, their environment and their directory are there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, KernelStartFailed
from kernelexec.provisioning.environment import scrubbed
from kernelexec.provisioning.installed import InstalledSpec
from kernelexec.provisioning.labels import LAUNCHER_INSIDE, container_name, labels_of
from kernelexec.provisioning.mounts import WORKSPACE_INSIDE, Bind, binds, give
from kernelexec.provisioning.runtime import RuntimeDirectory
from kernelexec.provisioning.spec import LAUNCHER, guarded_spec, kernel_spec

#: What kernels are told that their user is called: an image need not know its number.
_USER = "kernel"
_CACHE = "/tmp/.home"  # noqa: S108 - the container's own

#: Where programs keep what they like to write: not in the workspace, and not where only reading is possible.
_CACHES = {
    "IPYTHONDIR": f"{_CACHE}/ipython",
    "JUPYTER_RUNTIME_DIR": f"{_CACHE}/jupyter",
    "MPLCONFIGDIR": f"{_CACHE}/matplotlib",
    "NUMBA_CACHE_DIR": f"{_CACHE}/numba",
    "XDG_CACHE_HOME": f"{_CACHE}/cache",
    "XDG_CONFIG_HOME": f"{_CACHE}/config",
}


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

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Our launcher in the chosen interpreter, or another kernel under our guard."""
        file = runtime.connection_file
        return guarded_spec(installed, file) if installed else kernel_spec(self.config.python, file)

    def environment(self) -> dict[str, str]:
        """This process's, without what looks like a secret."""
        return scrubbed(self.config.environment)


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """Containers, one for each kernel process, which see the session's workspace and what is mounted besides."""

    config: Config
    session: str
    workspace: Path
    root: Path

    @property
    def isolation(self) -> str:
        """What results say."""
        return "container"

    @property
    def cwd(self) -> str:
        """The workspace as kernels see it."""
        return str(self.workspace) if self.config.container.layout == "host" else WORKSPACE_INSIDE

    @property
    def user(self) -> tuple[int, int]:
        """The caller's own, or what is chosen."""
        return self.config.container.ids

    def inside(self, path: str) -> str:
        """Where kernels see a path of the workspace."""
        within = Path(path)
        return str(self.cwd / within.relative_to(self.workspace)) if within.is_relative_to(self.workspace) else path

    def outside(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Which path a path of the workspace as kernels see it is here."""
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(self.cwd):
            return self.workspace / Path(path).relative_to(self.cwd)
        return path

    @property
    def patience(self) -> float:
        """For an executor of the same workspace, if one is to take them over."""
        options = self.config.container
        return options.orphan_seconds if options.adopt and options.mode == "persistent" else 0.0

    @property
    def python(self) -> str:
        """The image's interpreter."""
        options = self.config.container
        return f"{options.python} in the image {options.image[0]}"

    @property
    def memory_bytes(self) -> int | None:
        """Of the container."""
        return self.config.container.memory_bytes

    @property
    def cpus(self) -> float | None:
        """Of the container."""
        return self.config.container.cpus

    def limited(self, config: Config) -> Place | None:
        """The same with other limits."""
        return replace(self, config=config)

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Our launcher, mounted into a container of the chosen image."""
        options, parent = self.config.container, self.config.workspace.expanduser().absolute()
        spec = kernel_spec(options.python, runtime.connection_file, launcher=LAUNCHER_INSIDE)
        settings = {
            "container": options.model_dump(mode="json"),
            "limits": self.config.limits.model_dump(mode="json"),
            "mounts": [*self._binds(), (str(LAUNCHER), LAUNCHER_INSIDE, True), (str(runtime.path), str(runtime.path), False)],
            "labels": labels_of(session=self.session, workspace=parent, root=self.root, runtime=runtime.path),
            "name": options.name or container_name(self.session, token, options.instance),
        }
        spec.metadata["kernel_provisioner"] = {"provisioner_name": "kernelexec-container", "config": settings}
        return spec

    def environment(self) -> dict[str, str]:
        """Nothing of this process's but what is named; programs keep their caches where they can write."""
        rules = self.config.environment
        named = {name: os.environ[name] for name in rules.pass_names if name in os.environ}
        fixed = {
            "HOME": self.cwd,
            "USER": _USER,
            "LOGNAME": _USER,
            **_CACHES,
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "LANG": "C.UTF-8",
        }
        return {**fixed, **named, **rules.set, **self.config.container.environment}

    def check(self, *, own: bool) -> None:
        """See to it that kernels could start here, and write; ``own`` says that the workspace was made for the session.

        Raises:
            InvalidConfig: a mount cannot be had, or is not given to containers.
            InvalidWorkDir: kernels could not write in the workspace.
        """
        self._mounts()
        give(self.workspace, self.user, own=own)

    def _binds(self) -> list[Bind]:
        try:
            return self._mounts()
        except InvalidConfig as exc:
            raise KernelStartFailed(str(exc)) from exc

    def _mounts(self) -> list[Bind]:
        journals = self.config.workspace.expanduser().absolute() / ".journals"
        return binds(self.config.container, workspace=self.workspace, root=self.root, journals=journals)


def unavailable(config: Config) -> str | None:
    """Why kernels cannot run where the configuration says, in a sentence; None where they can. It takes two seconds at most."""
    if config.isolation != "container":
        return None
    try:
        from kernelexec.provisioning.engine import probe  # noqa: PLC0415 - who runs code locally needs no docker package
    except ImportError as exc:
        return f"The package docker cannot be imported ({exc}): install it with `pip install docker`."
    return probe()


def place_of(config: Config, *, session: str, workspace: Path, root: Path, own: bool = True) -> Place:
    """Where the kernels of a session run, as the configuration says; ``own`` says that the workspace was made for it.

    Raises:
        InvalidConfig, InvalidWorkDir: they could not start there, or not write.
    """
    if config.isolation == "container":
        place = ContainerPlace(config, session, workspace, root)
        place.check(own=own)
        return place
    return LocalPlace(config, str(workspace))
