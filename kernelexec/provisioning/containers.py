"""Containers as the place of a session's kernels: what their kernelspec, their environment and their directory are there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import EngineFailed, InvalidConfig, KernelStartFailed
from kernelexec.provisioning.installed import Home, Installed, InstalledSpec, Transport
from kernelexec.provisioning.labels import LAUNCHER_INSIDE, container_name, labels_of
from kernelexec.provisioning.mounts import WORKSPACE_INSIDE, Bind, binds, give
from kernelexec.provisioning.runtime import RuntimeDirectory
from kernelexec.provisioning.spec import GUARD, LAUNCHER, guarded_spec, kernel_spec
from kernelexec.provisioning.standin import INSIDE, find_stand_in, notice, stand_in
from kernelexec.provisioning.standin import PYTHON as STAND_IN

if TYPE_CHECKING:
    from kernelexec.provisioning.engine import ImageFacts

#: What kernels are told that their user is called: an image need not know its number.
_USER = "kernel"
_TMP = "/tmp"  # noqa: S108 - the container's own

#: Where programs keep what they like to write: not in the workspace, and not where only reading is possible.
_CACHES = {
    "IPYTHONDIR": f"{_TMP}/.ipython",
    "JUPYTER_RUNTIME_DIR": f"{_TMP}/.jupyter",
    "MPLCONFIGDIR": f"{_TMP}/.matplotlib",
    "NUMBA_CACHE_DIR": f"{_TMP}/.numba",
    "XDG_CACHE_HOME": f"{_TMP}/.cache",
    "XDG_CONFIG_HOME": f"{_TMP}/.config",
}


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
        """The image's interpreter, or a mounted one."""
        options = self.config.container
        python = STAND_IN if stand_in(options) else options.python
        return f"{python} in the image {options.image[0]}"

    @property
    def memory_bytes(self) -> int | None:
        """Of the container."""
        return self.config.container.memory_bytes

    @property
    def cpus(self) -> float | None:
        """Of the container."""
        return self.config.container.cpus

    def limited(self, config: Config) -> ContainerPlace:
        """The same with other limits."""
        return replace(self, config=config)

    @property
    def specs_where(self) -> str:
        """In the image."""
        return f"in the image {' or '.join(self.config.container.image)}"

    async def installed(self) -> Installed:
        """The image's own, whatever is installed here. A container of it is asked, the first time in this process.

        Raises:
            KernelStartFailed: there is no image, or the engine does not answer.
        """
        from kernelexec.provisioning.engine import known_facts  # noqa: PLC0415 - who runs code locally needs no docker package

        options = self.config.container
        try:
            return _in_image(await anyio.to_thread.run_sync(known_facts, options.image, options.python))
        except EngineFailed as exc:
            raise KernelStartFailed(str(exc)) from exc

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """By unix sockets always: those that a kernel cannot have are its guard's. The container's ports are its own."""
        return "ipc" if installed is None or installed.transport == "ipc" else "bridged"

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:
        """Have a Python mounted where the image's own is not wanted, or where a start failed that it could not have served.

        Raises:
            KernelStartFailed: none can be had.
        """
        await find_stand_in(self.config.container, failure)

    def notices(self, installed: InstalledSpec | None) -> tuple[str, ...]:
        """Whose Python it is, where it is not the image's."""
        return notice(self.config.container) if installed is None else ()

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """Our launcher, or another kernel under our guard, mounted into a container of the chosen image."""
        options, parent = self.config.container, self.config.workspace.expanduser().absolute()
        python = STAND_IN if stand_in(options) else options.python
        if installed:
            guard = (python, *GUARD, LAUNCHER_INSIDE, "--guard-alone")
            spec = guarded_spec(installed, runtime.connection_file, guard=guard)
        else:
            spec = kernel_spec(python, runtime.connection_file, launcher=LAUNCHER_INSIDE)
        name = options.name and (f"{options.name}-{installed.label}" if installed else options.name)
        settings = {
            "container": options.model_dump(mode="json"),
            "limits": self.config.limits.model_dump(mode="json"),
            "mounts": [*self._binds(), *self._ours(runtime.path)],
            "labels": labels_of(session=self.session, workspace=parent, root=self.root, runtime=runtime.path),
            "name": name or container_name(self.session, token, options.instance),
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

    def _ours(self, runtime: Path) -> list[Bind]:
        mounted = stand_in(self.config.container)
        found = [(mounted.volume, INSIDE, True)] if mounted else []
        return [*found, (str(LAUNCHER), LAUNCHER_INSIDE, True), (str(runtime), str(runtime), False)]

    def _binds(self) -> list[Bind]:
        try:
            return self._mounts()
        except InvalidConfig as exc:
            raise KernelStartFailed(str(exc)) from exc

    def _mounts(self) -> list[Bind]:
        journals = self.config.workspace.expanduser().absolute() / ".journals"
        return binds(self.config.container, workspace=self.workspace, root=self.root, journals=journals)


def _in_image(facts: ImageFacts) -> Installed:
    python = PurePosixPath(facts.executable or "/")
    version = tuple(int(part) for part in (facts.python or "").split(".")[:2] if part.isdigit())
    specs = {
        name: {
            "resource_dir": found.directory,
            "spec": {
                "argv": list(found.argv),
                "display_name": name,
                "language": found.language,
                "env": dict(found.environment),
                "interrupt_mode": found.interrupt_mode,
                "metadata": dict(found.metadata),
            },
        }
        for name, found in facts.kernelspecs.items()
    }
    return Installed(specs, Home(str(python), str(python.parent.parent), version))
