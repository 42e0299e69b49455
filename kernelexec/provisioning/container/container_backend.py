"""The backend for kernels in containers: kernelspec, environment, mounts and transport."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import WORKSPACE_INSIDE, Config
from kernelexec.docker.labels import LAUNCHER_INSIDE, OWNER, ROOT, RUNTIME, SESSION, WORKSPACE, container_name
from kernelexec.errors import EngineFailed, InvalidConfig, KernelStartFailed
from kernelexec.launcher import protocol
from kernelexec.provisioning.container.mounts import (
    Bind,
    build_mounts,
    choose_python,
    chosen_python,
    describe_python,
    find_launcher,
    give_workspace,
    list_credentials,
    python_of,
)
from kernelexec.provisioning.host.confinement_rules import record_directories
from kernelexec.provisioning.host.interpreters import BootstrapEnvironment
from kernelexec.provisioning.launch import GUARD
from kernelexec.provisioning.launch.environment import container_environment
from kernelexec.provisioning.launch.kernelspec import (
    InstalledSpec,
    KernelReadyTimeout,
    KernelspecCatalog,
    create_guarded_spec,
    create_kernel_spec,
)
from kernelexec.provisioning.launch.one_shot_task import Network, OneShotTask, TaskResult
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory, Transport
from kernelexec.provisioning.runtime.owned_directory import OwnerRecord
from kernelexec.rules.secrets import SecretStore
from kernelexec.workspace.contexts import CONTEXT_INSIDE, contexts

#: Name of the init's socket in the kernel's private directory; the length of a socket's path is limited.
_SOCKET_NAME = "w"
_NO_CREDENTIALS = "The credentials {} are not given to the container: there is no {} on this machine."


def _translate(path: str | os.PathLike[str], pairs: list[tuple[Path, Path]]) -> str | os.PathLike[str]:
    """Return the path moved from the first to the second directory of the first matching pair; other paths stay."""
    return next((new / Path(path).relative_to(old) for old, new in pairs if Path(path).is_relative_to(old)), path)


@dataclass(frozen=True, slots=True)
class ContainerBackend:
    """Containers with the session's workspace and other mounts, a container for each kernel."""

    config: Config
    session: str
    workspace: Path
    """The mounted workspace: for a branch the outer workspace."""
    root: Path
    secrets: SecretStore | None = None
    isolation: str = "container"
    directory: Path | None = None
    """The working directory of a branch, inside ``workspace``."""

    @property
    def cwd(self) -> str:
        """The working directory of kernels, as a path in containers."""
        return self._workspace_inside if self.directory is None else self.to_kernel_path(str(self.directory))

    @property
    def _workspace_inside(self) -> str:
        return str(self.workspace) if self.config.container.layout == "host" else WORKSPACE_INSIDE

    @property
    def user(self) -> tuple[int, int]:
        """The caller's user and group, or the chosen ones."""
        return self.config.container.ids

    def check_user(self, user: str) -> bool:  # noqa: ARG002 - as in the other backend
        """Return True: kernels cannot become another user, so the engine starts such commands and knows the accounts."""
        return True

    def to_kernel_path(self, path: str) -> str:
        """Return the path in containers of a path in the workspace or in a context path."""
        return str(_translate(path, self._path_pairs))

    def to_host_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return the path on this machine of a path in containers."""
        pairs = self._path_pairs if isinstance(path, str | os.PathLike) else []
        return _translate(path, [(inside, outside) for outside, inside in pairs])

    @property
    def _path_pairs(self) -> list[tuple[Path, Path]]:
        """The workspace and the context paths on this machine and in containers, the deeper paths first."""
        pairs = [(self.workspace, Path(self._workspace_inside))]
        if self.config.container.layout == "classic":
            pairs += [(context.path, Path(CONTEXT_INSIDE, context.name)) for context in contexts(self.config)]
        return sorted(pairs, key=lambda pair: len(pair[0].parts), reverse=True)

    @property
    def adoption_seconds(self) -> float:
        """Seconds for a takeover of kernels by a new executor of the same workspace; 0 without adoption."""
        options = self.config.container
        return options.orphan_seconds if options.mode == "persistent" else 0.0

    @property
    def python(self) -> str:
        """The image's or the mounted interpreter, for a message."""
        options = self.config.container
        return f"{python_of(options)[0]} in the image {options.image[0]}"

    @property
    def memory_bytes(self) -> int | None:
        """Memory limit of a container."""
        return self.config.container.memory_bytes

    @property
    def cpus(self) -> float | None:
        """Processor limit of a container."""
        return self.config.container.cpus

    def with_limits(self, config: Config) -> ContainerBackend:
        """Return the same backend with other limits."""
        return replace(self, config=config)

    @property
    def kernelspec_location(self) -> str:
        """The place of kernelspecs, for a message."""
        return f"in the image {' or '.join(self.config.container.image)}"

    async def list_kernelspecs(self) -> KernelspecCatalog:
        """Return the kernelspecs of the image, as listed once in this process by a container."""
        from kernelexec.docker.images.image_python import known_facts  # noqa: PLC0415 - local kernels need no docker package

        options = self.config.container
        try:
            return KernelspecCatalog.in_image(await anyio.to_thread.run_sync(known_facts, options.image, options.python))
        except EngineFailed as exc:
            raise KernelStartFailed(str(exc)) from exc

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets, the kernel's or the guard's, or the launcher's relay if sockets are unreachable.

        Raises:
            KernelStartFailed: a kernel without our launcher has neither.
        """
        from kernelexec.provisioning.container.socket_probe import are_sockets_reachable  # noqa: PLC0415 - docker, as above

        if are_sockets_reachable():
            return "ipc" if installed is None or installed.transport == "ipc" else "bridged"
        if installed is None:
            return "relayed"
        message = (
            f"The kernel {installed.name!r} cannot be reached: unix sockets do not reach this engine's containers, and the"
            f" relay serves only the session's own Python. Run {installed.label} by execute_command, or run kernelexec on the"
            " engine's machine."
        )
        raise KernelStartFailed(message)

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:
        """Mount a Python after a failure of the image's own, and probe whether unix sockets reach containers.

        After a kernel without a readiness report, the probe is repeated before the next start.
        """
        await choose_python(self.config.container, failure)
        if isinstance(failure, KernelReadyTimeout):
            from kernelexec.provisioning.container.socket_probe import forget  # noqa: PLC0415 - docker, as above

            forget()
        elif failure is None:
            await self._probe_sockets()

    async def _probe_sockets(self) -> None:
        from kernelexec.provisioning.container.socket_probe import probe_sockets  # noqa: PLC0415 - docker, as above

        options = self.config.container
        mounted = chosen_python(options)
        try:
            await anyio.to_thread.run_sync(probe_sockets, self.config, self.root, *python_of(options))
        except EngineFailed as exc:  # the image may have no Python for the probe either
            failure = KernelStartFailed(str(exc))
            await choose_python(options, failure)
            if chosen_python(options) is mounted:  # nothing has changed, so another probe would fail too
                raise failure from exc
            await self._probe_sockets()

    def is_transient(self, failure: str) -> bool:  # noqa: ARG002 - as in the other backend
        """Return False: no failure of a container's start is transient."""
        return False

    def describe_start(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:  # noqa: ARG002 - as in the other backend
        """Return notes on a mounted Python, and on missing credentials."""
        if installed is not None:
            return ()
        wanted = list_credentials(self.config.container)
        missing = [_NO_CREDENTIALS.format(name, path) for name, path, _ in wanted if not path.exists()]
        return (*describe_python(self.config.container), *missing)

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """Return the kernelspec of our launcher, or of another kernel under our guard, in a container of the chosen image.

        The private directory is mounted at the same path. With a relay, the container has another directory there instead.
        """
        options = self.config.container
        python, python_mounts = python_of(options)
        has_init = self.config.fork_server and not runtime.is_relayed and installed is None and options.is_reusable
        init_socket = str(runtime.path / _SOCKET_NAME) if has_init else ""
        if installed:
            guard = (python, *GUARD, LAUNCHER_INSIDE, protocol.GUARD_ALONE_FLAG)
            spec = create_guarded_spec(installed, runtime.connection_file, guard=guard)
        else:
            spec = create_kernel_spec(python, runtime.connection_file, launcher=LAUNCHER_INSIDE)
            if init_socket:
                spec.argv[2:2] = [protocol.CONTAINER_INIT_FLAG, init_socket]
        private = [] if runtime.is_relayed else [(str(runtime.path), str(runtime.path), False)]
        own_mounts = (*python_mounts, (find_launcher(self.root), LAUNCHER_INSIDE, True), *private)
        name_parts = (options.name, installed.label if installed else None, options.instance)
        name = options.name and "-".join(filter(None, name_parts))
        settings = {
            "container": options.model_dump(mode="json"),
            "limits": self.config.limits.model_dump(mode="json"),
            "mounts": [*self._mounts_at_start(), *own_mounts],
            "labels": build_labels(
                session=self.session,
                workspace=self.config.absolute_workspace,
                root=self.root,
                runtime=runtime.path,
            ),
            "init_socket": init_socket,
            "relay": str(runtime.path) if runtime.is_relayed else "",
            "name": name or container_name(self.session, token, options.instance),
        }
        spec.metadata["kernel_provisioner"] = {"provisioner_name": "kernelexec-container", "config": settings}
        return spec

    def environment(self) -> dict[str, str]:
        """Return the environment of kernels, as ``container_environment`` does."""
        return container_environment(self.config, self.cwd)

    def bootstrap(self) -> BootstrapEnvironment:
        """Return environment and directory of the first process, unchanged: nothing of this machine is loaded."""
        return BootstrapEnvironment(self.environment(), self.cwd)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether a checkpoint, a stopped copy of a kernel, outlives the kernel and can become a kernel again."""
        return self.config.keeps_checkpoints

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:  # noqa: ARG002 - as in the other backend
        """Return None: the container confines its kernel."""
        return None

    def add_temporary_directory(self, parent: RuntimeDirectory, branch: RuntimeDirectory) -> None:
        """Return None: all kernels of a container share the temporary directory."""

    @property
    def keeps_path(self) -> bool:
        """Whether commands keep their PATH, because PATH is set on purpose or the kernel's Python is mounted."""
        return "PATH" in self.config.environment.set or chosen_python(self.config.container) is not None

    @property
    def network(self) -> Network:
        """The network of the containers."""
        chosen = self.config.container.network
        return False if chosen == "none" else chosen

    async def run(self, task: OneShotTask, session: Path) -> TaskResult:  # noqa: ARG002 - as in the other backend
        """Run a task in a separate container, with the workspace only for a task with ``sees_workspace``."""
        from kernelexec.provisioning.container.containers import run_in_container  # noqa: PLC0415 - docker, as above

        labels = build_labels(
            session=self.session, workspace=self.config.absolute_workspace, root=self.root, runtime=task.directory
        )
        binds = self._mounts_at_start() if task.sees_workspace else []
        return await run_in_container(task, self.config, self.environment(), labels, binds, self.cwd)

    def check(self, *, is_own_workspace: bool) -> None:
        """Check the mounts and the write access of kernels; the kernels' user becomes the owner of a session's own workspace.

        Raises:
            InvalidConfig: a mount is missing, or is refused to containers.
            InvalidWorkDir: kernels could not write in the workspace.
        """
        self._mounts()
        give_workspace(self.workspace, self.user, is_own_workspace=is_own_workspace)

    def _mounts_at_start(self) -> list[Bind]:
        try:
            return self._mounts()
        except InvalidConfig as exc:
            raise KernelStartFailed(str(exc)) from exc

    def _mounts(self) -> list[Bind]:
        context_paths = contexts(self.config, self.workspace)
        return build_mounts(
            self.config.container,
            workspace=self.workspace,
            root=self.root,
            records=record_directories(self.config),
            contexts=context_paths,
        )


def build_labels(*, session: str, workspace: Path, root: Path, runtime: Path) -> dict[str, str]:
    """Return the labels of a container: owning process, session, workspace and private directories."""
    return {
        OWNER: json.dumps(asdict(OwnerRecord.of_this_process(locked=True))),
        SESSION: session,
        WORKSPACE: str(workspace),
        ROOT: str(root),
        RUNTIME: str(runtime),
    }
