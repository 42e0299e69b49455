"""This machine as the place of a session's kernels."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.protocol import ONE_SHOT_FLAG
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.confinement import confinement
from kernelexec.provisioning.host.fork_servers import Forks
from kernelexec.provisioning.host.interpreters import interpreter
from kernelexec.provisioning.host.writable_paths import First, first, written_by_any
from kernelexec.provisioning.jupyter.installed import Installed, InstalledSpec, Transport
from kernelexec.provisioning.launch.environment import environment_of
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER, check_directory, check_program, guarded_spec, kernel_spec
from kernelexec.provisioning.launch.one_shot import Done, Errand, Network, run_here
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.secrets import SecretStore


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """This machine, with the caller's rights as far as they are not given up."""

    config: Config
    cwd: str
    patience: float = 0.0
    user: None = None
    reached_by: Transport = "ipc"
    forks: Forks | None = None
    root: Path | None = None
    secrets: SecretStore | None = None

    @property
    def isolation(self) -> str:
        """What results say: whether this machine is a container itself."""
        return "container-host" if self.config.isolation == "container-host" else "local"

    @property
    def python(self) -> str:
        """The chosen interpreter, or that of a virtual environment, or what is behind a prefix."""
        programs = self.config.programs
        return f"{self._behind} behind `{programs.prefix}`" if programs.prefix_kernel else self._own

    @property
    def _own(self) -> str:
        return interpreter(self.config, self.cwd)

    @property
    def _behind(self) -> str:
        return self.config.python if "python" in self.config.model_fields_set else platform.HERE.interpreter

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

    def limited(self, config: Config) -> None:
        """There are no limits of a kernel's memory and processors here."""

    @property
    def specs_where(self) -> str:
        """On this machine."""
        return "that are installed here"

    async def installed(self) -> Installed:
        """This machine's."""
        return Installed.here()

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """By unix sockets, where the kernel and the system can have them.

        Raises:
            KernelStartFailed: it needs ports, and has no network.
        """
        found = installed.transport if installed else self.reached_by
        if found == "ipc" and platform.HERE.transport != "ipc":
            found = "tcp"  # a kernel that is not ours knows no encrypted ones
        if found != "ipc" and not self.config.networked:
            name = installed.name if installed is not None else "python"
            message = (
                f"The kernel {name!r} listens on ports, which there are none of without a network"
                " (confinement.network=False): choose containers for it, or leave kernels on this machine their network."
            )
            raise KernelStartFailed(message)
        return found

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - of the protocol
        """Have a fork server, if one is wanted."""
        if self.forks is not None and self.root is not None:
            await self.forks.prepare(self.root)

    def passes(self, failure: str) -> bool:  # noqa: ARG002 - of the protocol
        """Nothing of that kind is known."""
        return False

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """That a kernel can be reached by others too; that it was not forked, though it could be."""
        if installed is None or transport != "tcp":
            failure = self.forks.failure if self.forks is not None and installed is None else None
            return () if failure is None else (failure,)
        return (f"The kernel {installed.name!r} cannot use unix sockets: it listens on a loopback port.",)

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Our launcher in the chosen interpreter, or another kernel under our guard."""
        if installed is not None:
            return guarded_spec(installed, runtime.connection_file)
        return self._python_spec(runtime)

    def _python_spec(self, runtime: RuntimeDirectory) -> KernelSpec:
        python, programs = self._own, self.config.programs
        confined = self.config.confines
        if programs.prefix_kernel:
            return kernel_spec(self._behind, runtime.connection_file, prefix=programs.words, confined=confined)
        if confined:
            check_program(python, self.cwd)
        server = self.forks.serving() if self.forks is not None and self.forks.python == python else None
        return kernel_spec(python, runtime.connection_file, forked_by=server, confined=confined)

    def environment(self) -> dict[str, str]:
        """This process's, without what looks like a secret."""
        return environment_of(self.config)

    def first(self) -> First:
        """Loaded from nothing that kernels can write, where they are confined."""
        environ, places = self.environment(), self._written
        if not places:
            return First(environ, self.cwd)
        check_directory(self.cwd)
        return first(environ, self.cwd, places)

    @property
    def _written(self) -> list[str]:
        return written_by_any(self.config, self.cwd)

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """To its workspace, as far as that is wanted."""
        return confinement(self.config, self.cwd, runtime, self.root)

    @property
    def network(self) -> Network:
        """This machine's, or none."""
        return self.config.networked

    async def run(self, errand: Errand, session: Path) -> Done:
        """As a process that confines itself: to the errand's directory, and to what it fills in the workspace."""
        confined = self.confinement(RuntimeDirectory(session / errand.directory.name))
        if confined is not None:
            place = str(errand.directory.resolve())
            own = {"temporary": str(errand.directory / "tmp"), "writable": [place], "private": None}
            confined |= {**own, "network": bool(errand.network), "hidden": [*confined["hidden"], self.cwd]}
            confined["readable"] = [*confined["readable"], *self._read(errand)]
        limits, begins = self.config.limits.model_dump(exclude_none=True), self.first()
        then = {"python": self._own, "environment": begins.later.get("environment", {})}
        errand.write(workspace=self.cwd, confinement=confined, wheels=str(errand.wheels or ""), limits=limits, **then)
        argv = [sys.executable, *GUARD, str(LAUNCHER), ONE_SHOT_FLAG, str(errand.directory)]
        return await run_here(self._wrapped(argv, errand), begins.environ, errand)

    def _read(self, errand: Errand) -> list[str]:
        """What an errand reads, though it may be hidden."""
        return [str(path) for path in (errand.wheels, self.cwd if errand.fills else None) if path is not None]

    def _wrapped(self, argv: list[str], errand: Errand) -> list[str]:  # noqa: ARG002 - of who derives from it
        return argv
