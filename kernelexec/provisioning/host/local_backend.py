"""The backend for kernels as processes of this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest, KernelStartFailed
from kernelexec.launcher.protocol import GUARD_FLAG, ONE_SHOT_FLAG
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.confinement_rules import confinement_rules, private_session
from kernelexec.provisioning.host.fork_servers import ForkServers
from kernelexec.provisioning.host.interpreters import (
    BootstrapEnvironment,
    all_writable_directories,
    bootstrap,
    choose_interpreter,
)
from kernelexec.provisioning.launch import GUARD, LAUNCHER
from kernelexec.provisioning.launch.environment import kernel_environment
from kernelexec.provisioning.launch.kernelspec import (
    InstalledSpec,
    KernelspecCatalog,
    check_directory,
    check_program,
    create_guarded_spec,
    create_kernel_spec,
)
from kernelexec.provisioning.launch.one_shot_task import Network, OneShotTask, TaskResult, run_process
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory, Transport
from kernelexec.provisioning.runtime.owned_directory import create_temp_directory
from kernelexec.workspace.environments import has_module_of, own_environments

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Processes with the caller's rights, reduced by confinement."""

    config: Config
    cwd: str
    adoption_seconds: float = 0.0
    _guard_flag: ClassVar[str] = GUARD_FLAG
    user: None = None
    memory_bytes: None = None
    cpus: None = None
    kernelspec_location: str = "that are installed here"
    fork_servers: ForkServers | None = None
    root: Path | None = None
    within: Path | None = None
    """The outer workspace, if this is the backend of a branch."""
    secrets: SecretStore | None = None

    @property
    def workspace(self) -> Path:
        """The writable workspace of kernels: for a branch the outer workspace."""
        return self.within or Path(self.cwd)

    @property
    def isolation(self) -> str:
        """The isolation in results; ``container-host`` if this machine is itself a container."""
        return self.config.isolation if self.config.isolation in ("container-host", "bubblewrap") else "local"

    @property
    def python(self) -> str:
        """The interpreter of kernels, with the prefix if any, for a message."""
        programs = self.config.programs
        return f"{self._wrapped_interpreter} behind `{programs.prefix}`" if programs.prefix_kernel else self._interpreter

    @property
    def _interpreter(self) -> str:
        return choose_interpreter(self.config, self.cwd)

    @property
    def _wrapped_interpreter(self) -> str:
        return self.config.python if "python" in self.config.model_fields_set else platform.PLATFORM.venv_interpreter

    def to_kernel_path(self, path: str) -> str:
        """Return the same path."""
        return path

    def to_host_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the same path."""
        return path

    def check_user(self, user: str) -> bool:
        """Check commands as another account; return False, because the kernel itself runs such commands.

        Raises:
            InvalidRequest: there is no such account, or kernels have no right to become another user.
        """
        uid = platform.find_uid(user)
        if uid is None:
            raise InvalidRequest(f"user={user!r}: this machine has no such account.")
        if uid == os.geteuid():
            return False
        if os.geteuid() != 0:
            raise InvalidRequest(f"user={user!r}: only root can run commands as another user of this machine. Omit user.")
        if self.config.confines_kernels:
            raise InvalidRequest(
                f"user={user!r}: confined kernels have no right to become another user. Omit user, or choose"
                " isolation='container'; confinement={'level': 'off'} lifts all restrictions of kernels on this machine."
            )
        return False

    def with_limits(self, config: Config) -> None:
        """Return None: single kernels have no limits here."""

    async def list_kernelspecs(self) -> KernelspecCatalog:
        """Return the kernelspecs of this machine."""
        return KernelspecCatalog.on_this_machine()

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets if kernel and system have them, else ports, which need a network.

        Raises:
            KernelStartFailed: the system has no unix sockets for our launcher, or a kernel with ports has no network.
        """
        transport: Transport = "ipc" if installed is None else installed.transport
        if transport == "ipc" and not platform.PLATFORM.has_unix_sockets:
            if installed is None:
                message = "Kernels on this machine need unix sockets, which this system does not have: choose containers."
                raise KernelStartFailed(message)
            transport = "tcp"
        if installed is not None and transport != "ipc" and not self.config.has_local_network:
            message = (
                f"The kernel {installed.name!r} listens on ports, but has no network"
                " (confinement.network=False): choose containers for it, or leave kernels on this machine their network."
            )
            raise KernelStartFailed(message)
        return transport

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - as in the other backend
        """Start the configured fork server, if any."""
        if self.fork_servers is not None and self.root is not None:
            await self.fork_servers.prepare(self.root)

    def is_transient(self, failure: str) -> bool:  # noqa: ARG002 - as in the other backend
        """Return False: no failure of a start is transient here."""
        return False

    def describe_start(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """Return notes on a loopback port, open to other users, and on the reason for a kernel without fork server."""
        if installed is None or transport != "tcp":
            note = self.fork_servers.note if self.fork_servers is not None and installed is None else None
            return () if note is None else (note,)
        return (f"The kernel {installed.name!r} cannot use unix sockets: it listens on a loopback port.",)

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - as in the other backend
        """Return the kernelspec of our launcher in the chosen interpreter, or of another kernel under our guard."""
        if installed is not None:  # the guard runs in our own interpreter: a kernel in R or Julia has no Python of its own
            guard = (sys.executable, *GUARD, str(LAUNCHER), self._guard_flag)
            return create_guarded_spec(installed, runtime.connection_file, guard=guard)
        python, programs = self._interpreter, self.config.programs
        confined = self.config.confines_kernels
        if programs.prefix_kernel:
            return create_kernel_spec(
                self._wrapped_interpreter, runtime.connection_file, prefix=programs.prefix_words, confined=confined
            )
        if confined:  # our own interpreter starts first: a missing one would fail behind it, without this message
            check_program(python, self.cwd)
        servers = self.fork_servers
        server = servers.find_serving() if servers is not None and servers.python == python else None
        if server is not None and has_module_of(self.workspace, server.modules):
            server = None  # its kernels would have other versions of the workspace's modules in memory
        return create_kernel_spec(python, runtime.connection_file, forked_by=server, confined=confined)

    def environment(self) -> dict[str, str]:
        """Return this process's environment without likely secrets."""
        return kernel_environment(self.config)

    def bootstrap(self) -> BootstrapEnvironment:
        """Return environment and directory of a kernel's first process, which must not load files of confined kernels."""
        environ, places = self.environment(), self._writable_directories
        if not places:
            return BootstrapEnvironment(environ, self.cwd)
        check_directory(self.cwd)
        return bootstrap(environ, self.cwd, places)

    @property
    def _writable_directories(self) -> list[str]:
        return all_writable_directories(self.config, str(self.workspace))

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether a checkpoint, a stopped copy of a kernel, outlives the kernel and can become a kernel again."""
        return platform.PLATFORM.has_pidfd and self.config.keeps_checkpoints

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the configured confinement of a kernel to the workspace; branches also write the session's environments."""
        rules = confinement_rules(self.config, self.cwd, runtime, self.root)
        if rules is not None and self.within is not None:
            rules["writable"].append(str(own_environments(self.within)))
        return rules

    def add_temporary_directory(self, parent: RuntimeDirectory, branch: RuntimeDirectory) -> tuple[Path, Path] | None:
        """Create a branch's temporary directory; return the directories of the kernel and of the branch, None if shared.

        Raises:
            OSError: the directory cannot be created.
        """
        if not self.config.confines_kernels or "TMPDIR" in self.config.environment.set:
            return None
        shared = create_temp_directory(private_session(parent, self.root))
        added = shared / branch.path.name
        added.mkdir(mode=0o700)
        return shared / parent.path.name if parent.is_of_branch else shared, added

    @property
    def keeps_path(self) -> bool:
        """Whether commands keep a PATH set on purpose, instead of the kernel's interpreter first."""
        return "PATH" in self.config.environment.set

    @property
    def network(self) -> Network:
        """The machine's network, or none."""
        return self.config.has_local_network

    async def run(self, task: OneShotTask, session: Path) -> TaskResult:
        """Run a task as a process confined to the task's directory and, for a task with ``sees_workspace``, the workspace."""
        rules = self.confinement(RuntimeDirectory(session / task.directory.name))
        if rules is not None:
            directory = str(task.directory.resolve())
            own_rules = {"temporary": str(task.directory / "tmp"), "writable": [directory], "private": None}
            # The workspace is hidden like other secrets; ``_extra_readable`` shows it again to a task that fills it.
            rules |= {**own_rules, "network": bool(task.network), "hidden": [*rules["hidden"], self.cwd]}
            rules["readable"] = [*rules["readable"], *self._extra_readable(task)]
        limits, bootstrap = self.config.limits.list_set(), self.bootstrap()
        launch_options = {"python": self._interpreter, "environment": bootstrap.deferred.get("environment", {})}
        task.write_order(workspace=self.cwd, confinement=rules, wheels=str(task.wheels or ""), limits=limits, **launch_options)
        argv = [sys.executable, *GUARD, str(LAUNCHER), ONE_SHOT_FLAG, str(task.directory)]
        return await run_process(self._wrap_command(argv, task), bootstrap.environ, task)

    def _extra_readable(self, task: OneShotTask) -> list[str]:
        """Return the hidden paths readable for a task."""
        return [str(path) for path in (task.wheels, self.cwd if task.sees_workspace else None) if path is not None]

    def _wrap_command(self, argv: list[str], task: OneShotTask) -> list[str]:  # noqa: ARG002 - for subclasses
        return argv
