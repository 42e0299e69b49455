"""The backend that runs a session's kernels as processes of this machine."""

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
    """Processes with the caller's rights, less those that their confinement takes away."""

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
        """The isolation that results report: whether this machine is a container itself."""
        return "container-host" if self.config.isolation == "container-host" else "local"

    @property
    def python(self) -> str:
        """The chosen interpreter, that of a virtual environment, or the one behind a prefix, for a message."""
        programs = self.config.programs
        return f"{self._behind} behind `{programs.prefix}`" if programs.prefix_kernel else self._own

    @property
    def _own(self) -> str:
        return interpreter(self.config, self.cwd)

    @property
    def _behind(self) -> str:
        return self.config.python if "python" in self.config.model_fields_set else platform.HERE.interpreter

    def inside(self, path: str) -> str:
        """Return the same path."""
        return path

    def outside(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the same path."""
        return path

    @property
    def memory_bytes(self) -> int | None:
        """None: single kernels have no limit here."""
        return None

    @property
    def cpus(self) -> float | None:
        """None: single kernels have no limit here."""
        return None

    def limited(self, config: Config) -> None:
        """Return None: single kernels have no limits here."""

    @property
    def specs_where(self) -> str:
        """The place of kernelspecs, for a message."""
        return "that are installed here"

    async def installed(self) -> Installed:
        """Return the kernelspecs of this machine."""
        return Installed.here()

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets where the kernel and the system support them, else ports.

        Raises:
            KernelStartFailed: the kernel needs ports and has no network.
        """
        transport = installed.transport if installed else self.reached_by
        if transport == "ipc" and platform.HERE.transport != "ipc":
            transport = "tcp"  # a kernel without our launcher does not support encrypted ports
        if transport != "ipc" and not self.config.has_local_network:
            name = installed.name if installed is not None else "python"
            message = (
                f"The kernel {name!r} listens on ports, which there are none of without a network"
                " (confinement.network=False): choose containers for it, or leave kernels on this machine their network."
            )
            raise KernelStartFailed(message)
        return transport

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - of the protocol
        """Start a fork server if one is configured."""
        if self.forks is not None and self.root is not None:
            await self.forks.prepare(self.root)

    def passes(self, failure: str) -> bool:  # noqa: ARG002 - of the protocol
        """Return False: no failure of a start is transient here."""
        return False

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """Return notes on a loopback port, which other users can reach, and on a kernel that could not be forked."""
        if installed is None or transport != "tcp":
            failure = self.forks.failure if self.forks is not None and installed is None else None
            return () if failure is None else (failure,)
        return (f"The kernel {installed.name!r} cannot use unix sockets: it listens on a loopback port.",)

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Return the kernelspec of our launcher in the chosen interpreter, or of another kernel under our guard."""
        if installed is not None:
            return guarded_spec(installed, runtime.connection_file)
        return self._python_spec(runtime)

    def _python_spec(self, runtime: RuntimeDirectory) -> KernelSpec:
        python, programs = self._own, self.config.programs
        confined = self.config.confines_kernels
        if programs.prefix_kernel:
            return kernel_spec(self._behind, runtime.connection_file, prefix=programs.prefix_words, confined=confined)
        if confined:
            check_program(python, self.cwd)
        server = self.forks.serving() if self.forks is not None and self.forks.python == python else None
        return kernel_spec(python, runtime.connection_file, forked_by=server, confined=confined)

    def environment(self) -> dict[str, str]:
        """Return this process's environment without variables that look like secrets."""
        return environment_of(self.config)

    def first(self) -> First:
        """Return the environment and the directory of the first process, which loads no file of confined kernels."""
        environ, places = self.environment(), self._written
        if not places:
            return First(environ, self.cwd)
        check_directory(self.cwd)
        return first(environ, self.cwd, places)

    @property
    def _written(self) -> list[str]:
        return written_by_any(self.config, self.cwd)

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the rules that confine a kernel to its workspace, as configured."""
        return confinement(self.config, self.cwd, runtime, self.root)

    @property
    def network(self) -> Network:
        """The machine's network, or none."""
        return self.config.has_local_network

    async def run(self, errand: Errand, session: Path) -> Done:
        """Run an errand as a process that confines itself to the errand's directory and the paths that it fills."""
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
        """Return hidden paths that an errand reads all the same."""
        return [str(path) for path in (errand.wheels, self.cwd if errand.fills else None) if path is not None]

    def _wrapped(self, argv: list[str], errand: Errand) -> list[str]:  # noqa: ARG002 - for subclasses
        return argv
