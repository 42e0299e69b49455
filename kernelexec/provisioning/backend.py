"""The backends that can run a session's kernels, and the choice of one by the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelexec.config import Config
from kernelexec.provisioning.host.fork_servers import ForkServers
from kernelexec.provisioning.host.interpreters import check_workspace
from kernelexec.provisioning.host.local_backend import LocalBackend
from kernelexec.workspace.contexts import contexts

if TYPE_CHECKING:
    from kernelexec.provisioning.container.container_backend import ContainerBackend
    from kernelexec.rules.secrets import SecretStore

    Backend: TypeAlias = LocalBackend | ContainerBackend
    """A kind of place for kernels, with all differences besides the provisioner, which the kernelspec names."""
else:  # readers of annotations import no backend
    Backend = Any


def backend_for(
    config: Config,
    *,
    session: str,
    workspace: Path,
    root: Path,
    within: Path | None = None,
    is_own_workspace: bool = True,
    fork_servers: ForkServers | None = None,
    secrets: SecretStore | None = None,
) -> Backend:
    """Return the configured backend of a session's kernels; ``is_own_workspace`` is True if the session created the workspace.

    A branch has a workspace ``within`` the first session's workspace. Containers and namespaces get the whole outer
    workspace: a kernel may replace the inner directory by a link, which then leads nowhere outside the mount.

    Raises:
        InvalidConfig, InvalidWorkDir: kernels could not start, or could not write in the workspace.
    """
    if config.isolation == "container":
        from kernelexec.provisioning.container.container_backend import ContainerBackend  # noqa: PLC0415 - of this kind only

        mounted, directory = (workspace, None) if within is None else (within, workspace)
        backend = ContainerBackend(config, session, mounted, root, secrets, directory=directory)
        backend.check(is_own_workspace=is_own_workspace)
        return backend
    check_workspace(config, workspace)
    contexts(config, workspace)  # raises InvalidConfig now; the backends read the contexts again at each start
    if config.isolation == "bubblewrap":
        from kernelexec.provisioning.host.bubblewrap_backend import BubblewrapBackend  # noqa: PLC0415 - as above

        return BubblewrapBackend(config, str(workspace), root=root, within=within, secrets=secrets)
    if fork_servers is not None:  # a server outside all confinement must not import what this session's cells can write
        fork_servers.disable_if_writable(str(workspace))
    return LocalBackend(config, str(workspace), fork_servers=fork_servers, root=root, within=within, secrets=secrets)
