"""The interface of the backends that run a session's kernels, and the choice of one by the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Config
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.container.container_backend import ContainerBackend
from kernelexec.provisioning.host.bubblewrap_backend import BubblewrapBackend, explain_missing
from kernelexec.provisioning.host.fork_servers import ForkServers
from kernelexec.provisioning.host.interpreters import check_workspace
from kernelexec.provisioning.host.local_backend import LocalBackend
from kernelexec.provisioning.host.writable_paths import BootstrapEnvironment
from kernelexec.provisioning.launch.installed_kernelspecs import InstalledSpec, KernelspecCatalog
from kernelexec.provisioning.launch.one_shot_task import Network, OneShotTask, TaskResult
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory, Transport
from kernelexec.secrets import SecretStore
from kernelexec.workspace.directory import contexts


class Backend(Protocol):
    """The differences between the ways to run kernels, besides the provisioner that the kernelspec names."""

    @property
    def isolation(self) -> str:
        """The isolation that results report."""
        ...

    @property
    def cwd(self) -> str:
        """The path of the workspace in kernels."""
        ...

    @property
    def secrets(self) -> SecretStore | None:
        """Secrets that new kernels get as environment variables; None without secrets."""
        ...

    @property
    def python(self) -> str:
        """The interpreter of new kernels, for a message."""
        ...

    @property
    def adoption_seconds(self) -> float:
        """Seconds for which a kernel waits for a new owner when its owner was killed; 0 if it ends with its owner."""
        ...

    @property
    def user(self) -> tuple[int, int] | None:
        """The user and group of kernels; None if these are the caller's."""
        ...

    def to_kernel_path(self, path: str) -> str:
        """Return the path in kernels of a path in the workspace; other paths stay as they are."""
        ...

    def to_host_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the path on this machine of a path in kernels; other paths stay as they are."""
        ...

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit of a new kernel in bytes; None means no limit."""
        ...

    @property
    def cpus(self) -> float | None:
        """Processor limit of a new kernel; None means no limit."""
        ...

    def with_limits(self, config: Config) -> Backend | None:
        """Return the same backend with the limits of another configuration; None if single kernels have no limits."""
        ...

    @property
    def kernelspec_location(self) -> str:
        """The place of the kernelspecs of other kernels, for a message."""
        ...

    async def list_kernelspecs(self) -> KernelspecCatalog:
        """Return the kernelspecs of other kernels.

        Raises:
            KernelStartFailed: they cannot be listed.
        """
        ...

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return the transport of a kernel's channels; ``prepare`` has probed it.

        Raises:
            KernelStartFailed: there is none.
        """
        ...

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:
        """Prepare the start of the next kernel, or another try after a ``failure``.

        Raises:
            KernelStartFailed: no kernel can start.
        """
        ...

    def is_transient(self, failure: str) -> bool:
        """Return whether a failed start may succeed at once if it is repeated: the kernel had not begun to run."""
        ...

    def describe_start(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """Return notes for the first result of a kernel on its process and its transport."""
        ...

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """Return the kernelspec of a new kernel with that private directory."""
        ...

    def environment(self) -> dict[str, str]:
        """Return the environment of a new kernel."""
        ...

    def bootstrap(self) -> BootstrapEnvironment:
        """Return the environment and the directory of the first process."""
        ...

    @property
    def network(self) -> Network:
        """The network of kernels."""
        ...

    async def run(self, task: OneShotTask, session: Path) -> TaskResult:
        """Run a task for the session with that private directory.

        Raises:
            OSError, EngineFailed, KernelStartFailed: the task could not be started, or its end is unknown.
        """
        ...

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the rules by which a new kernel with that private directory confines itself; None if it does not."""
        ...


def explain_unavailable(config: Config) -> str | None:
    """Return why the configured isolation is not available, in a sentence, within two seconds; None if it is."""
    if config.isolation == "bubblewrap":
        return explain_missing(config)
    if config.isolation != "container":
        return None
    try:
        from kernelexec.docker.client import probe  # noqa: PLC0415 - local kernels need no docker package
    except ImportError as exc:
        return f"The package docker cannot be imported ({exc}): install it with `pip install docker`."
    return probe()


def backend_for(
    config: Config,
    *,
    session: str,
    workspace: Path,
    root: Path,
    is_own_workspace: bool = True,
    fork_servers: ForkServers | None = None,
    secrets: SecretStore | None = None,
) -> Backend:
    """Return the configured backend of a session's kernels; ``is_own_workspace`` means that the session created it.

    Raises:
        InvalidConfig, InvalidWorkDir: kernels could not start, or could not write in the workspace.
    """
    if config.isolation == "container":
        backend = ContainerBackend(config, session, workspace, root, secrets)
        backend.check(is_own_workspace=is_own_workspace)
        return backend
    check_workspace(config, workspace)
    contexts(config, workspace)
    if config.isolation == "bubblewrap":
        return BubblewrapBackend(config, str(workspace), root=root, secrets=secrets)
    if fork_servers is not None:
        fork_servers.disable_if_writable(str(workspace))
    transport = platform.PLATFORM.transport
    return LocalBackend(config, str(workspace), transport=transport, fork_servers=fork_servers, root=root, secrets=secrets)
