"""The backends that run a session's kernels on this machine: as processes, or in namespaces of bubblewrap."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import MIB, Config
from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.protocol import GUARD_ALONE_FLAG, GUARD_FLAG, ONE_SHOT_FLAG
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.confinement_rules import MACHINE_STORES, confinement_rules
from kernelexec.provisioning.host.fork_servers import ForkServers
from kernelexec.provisioning.host.interpreters import (
    BootstrapEnvironment,
    all_writable_directories,
    bootstrap,
    choose_interpreter,
    import_path,
    is_beneath,
    own_code_paths,
    run_confined,
)
from kernelexec.provisioning.launch.environment import kernel_environment
from kernelexec.provisioning.launch.kernelspec import (
    GUARD,
    LAUNCHER,
    InstalledSpec,
    KernelspecCatalog,
    check_directory,
    check_program,
    create_guarded_spec,
    create_kernel_spec,
)
from kernelexec.provisioning.launch.one_shot_task import Network, OneShotTask, TaskResult, run_process
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory, Transport
from kernelexec.secrets import SecretStore
from kernelexec.workspace.directory import contexts, permissions

#: Directories that are empty but for mounts: homes, sockets and files of other programs, other file systems.
_EMPTY_DIRECTORIES = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv")  # noqa: S108 - that of the sandbox
_TMPFS_BYTES, _SHM_BYTES = 1024 * MIB, 256 * MIB
_LISTING_CODE = (
    "import json, site, sys;"
    "print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, site.getusersitepackages()]))"
)
#: The directories that interpreters read, as they listed them.
_directories: dict[str, tuple[str, ...]] = {}
_MISSING = "bubblewrap is not installed: install the package bubblewrap, 0.8 or newer, or choose another isolation."
_RESOLVER_FILE = "/etc/resolv.conf"
#: The stderr of bubblewrap 0.8 when a file system was unmounted before it could be made read-only.
_MOUNT_VANISHED = "bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags"
#: Own namespaces of processes, network, users and names; an end with the executor; all files read-only.
_BASE_ARGUMENTS = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 - that of the sandbox
)


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Processes with the caller's rights, less those that their confinement takes away."""

    config: Config
    cwd: str
    adoption_seconds: float = 0.0
    _guard_flag: ClassVar[str] = GUARD_FLAG
    user: None = None
    memory_bytes: None = None
    cpus: None = None
    kernelspec_location: str = "that are installed here"
    transport: Transport = "ipc"
    fork_servers: ForkServers | None = None
    root: Path | None = None
    secrets: SecretStore | None = None

    @property
    def isolation(self) -> str:
        """The isolation that results report; ``container-host`` means that this machine is a container itself."""
        return self.config.isolation if self.config.isolation in ("container-host", "bubblewrap") else "local"

    @property
    def python(self) -> str:
        """The chosen interpreter, that of a virtual environment, or the one behind a prefix, for a message."""
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

    def with_limits(self, config: Config) -> None:
        """Return None: single kernels have no limits here."""

    async def list_kernelspecs(self) -> KernelspecCatalog:
        """Return the kernelspecs of this machine."""
        return KernelspecCatalog.on_this_machine()

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets where the kernel and the system support them, else ports, which need a network."""
        transport = installed.transport if installed else self.transport
        if transport == "ipc" and platform.PLATFORM.transport != "ipc":
            transport = "tcp"  # a kernel without our launcher does not support encrypted ports
        if transport != "ipc" and not self.config.has_local_network:
            name = installed.name if installed is not None else "python"
            message = (
                f"The kernel {name!r} listens on ports, but has no network"
                " (confinement.network=False): choose containers for it, or leave kernels on this machine their network."
            )
            raise KernelStartFailed(message)
        return transport

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - as in the other backend
        """Start a fork server if one is configured."""
        if self.fork_servers is not None and self.root is not None:
            await self.fork_servers.prepare(self.root)

    def is_transient(self, failure: str) -> bool:  # noqa: ARG002 - as in the other backend
        """Return False: no failure of a start is transient here."""
        return False

    def describe_start(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:
        """Return notes on a loopback port, which other users can reach, and on a kernel that could not be forked."""
        if installed is None or transport != "tcp":
            failure = self.fork_servers.failure if self.fork_servers is not None and installed is None else None
            return () if failure is None else (failure,)
        return (f"The kernel {installed.name!r} cannot use unix sockets: it listens on a loopback port.",)

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - as in the other backend
        """Return the kernelspec of our launcher in the chosen interpreter, or of another kernel under our guard."""
        if installed is not None:
            guard = (sys.executable, *GUARD, str(LAUNCHER), self._guard_flag)
            return create_guarded_spec(installed, runtime.connection_file, guard=guard)
        python, programs = self._interpreter, self.config.programs
        confined = self.config.confines_kernels
        if programs.prefix_kernel:
            return create_kernel_spec(
                self._wrapped_interpreter, runtime.connection_file, prefix=programs.prefix_words, confined=confined
            )
        if confined:
            check_program(python, self.cwd)
        servers = self.fork_servers
        server = servers.find_serving() if servers is not None and servers.python == python else None
        return create_kernel_spec(python, runtime.connection_file, forked_by=server, confined=confined)

    def environment(self) -> dict[str, str]:
        """Return this process's environment without variables that look like secrets."""
        return kernel_environment(self.config)

    def bootstrap(self) -> BootstrapEnvironment:
        """Return the environment and the directory of the first process, which loads no file of confined kernels."""
        environ, places = self.environment(), self._writable_directories
        if not places:
            return BootstrapEnvironment(environ, self.cwd)
        check_directory(self.cwd)
        return bootstrap(environ, self.cwd, places)

    @property
    def _writable_directories(self) -> list[str]:
        return all_writable_directories(self.config, self.cwd)

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the rules that confine a kernel to its workspace, as configured."""
        return confinement_rules(self.config, self.cwd, runtime, self.root)

    @property
    def network(self) -> Network:
        """The machine's network, or none."""
        return self.config.has_local_network

    async def run(self, task: OneShotTask, session: Path) -> TaskResult:
        """Run a task as a process that confines itself to the task's directory and, if the task sees it, the workspace."""
        rules = self.confinement(RuntimeDirectory(session / task.directory.name))
        if rules is not None:
            directory = str(task.directory.resolve())
            own_rules = {"temporary": str(task.directory / "tmp"), "writable": [directory], "private": None}
            rules |= {**own_rules, "network": bool(task.network), "hidden": [*rules["hidden"], self.cwd]}
            rules["readable"] = [*rules["readable"], *self._extra_readable(task)]
        limits, bootstrap = self.config.limits.model_dump(exclude_none=True), self.bootstrap()
        launch_options = {"python": self._interpreter, "environment": bootstrap.deferred.get("environment", {})}
        task.write_order(workspace=self.cwd, confinement=rules, wheels=str(task.wheels or ""), limits=limits, **launch_options)
        argv = [sys.executable, *GUARD, str(LAUNCHER), ONE_SHOT_FLAG, str(task.directory)]
        return await run_process(self._wrap_command(argv, task), bootstrap.environ, task)

    def _extra_readable(self, task: OneShotTask) -> list[str]:
        """Return hidden paths that a task may read."""
        return [str(path) for path in (task.wheels, self.cwd if task.sees_workspace else None) if path is not None]

    def _wrap_command(self, argv: list[str], task: OneShotTask) -> list[str]:  # noqa: ARG002 - for subclasses
        return argv


@dataclass(frozen=True, slots=True)
class BubblewrapBackend(LocalBackend):
    """Namespaces with own processes, network, users and temporary files, and the machine's programs read-only."""

    _guard_flag: ClassVar[str] = GUARD_ALONE_FLAG

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets, which may be the guard's: ports in a network namespace are not reachable."""
        return "ipc" if installed is None or installed.transport == "ipc" else "bridged"

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - as in the other backend
        """Have the interpreters list the directories that they read."""
        for python in self._pythons:
            await anyio.to_thread.run_sync(_list_directories, python, self._writable_directories)

    def is_transient(self, failure: str) -> bool:
        """Return whether a file system, such as a container's, was unmounted while bubblewrap was mounting all of them."""
        return _MOUNT_VANISHED in failure

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """Return the kernelspec of our launcher, or of another kernel under our guard, started by bubblewrap."""
        spec = LocalBackend.build_spec(self, runtime, token, installed)
        rules = self.confinement(runtime)
        mounts = dict.fromkeys(rules["readable"] if rules else (), "--ro-bind")
        mounts |= dict.fromkeys(rules["writable"] if rules else (self.cwd, str(runtime.path)), "--bind")
        mounts |= dict.fromkeys((path for path, _ in rules["writes"]) if rules else (), "--bind")
        parents, has_network = self._mount_contexts(mounts), self.config.has_local_network
        needed = self._needed_paths(installed)
        arguments = list(self._sandbox_command(needed, mounts, self.cwd, has_network=has_network, parents=parents))
        config = {"arguments": arguments}
        spec.metadata["kernel_provisioner"] = {"provisioner_name": "kernelexec-bubblewrap", "config": config}
        return spec

    async def run(self, task: OneShotTask, session: Path) -> TaskResult:
        """Run a task in namespaces; try once more after a transient failure."""
        result = await LocalBackend.run(self, task, session)
        return await LocalBackend.run(self, task, session) if result.exit_code and self.is_transient(result.output) else result

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the confinement of a local kernel without the rules that its network namespace and its mounts replace."""
        local = LocalBackend.confinement(self, runtime)
        if local is None:
            return None
        mounted = set(map(str, permissions(contexts(self.config))))
        writes = [(path, [entry for entry in read_only if entry not in mounted]) for path, read_only in local["writes"]]
        return {**local, "network": True, "writes": writes}

    def _wrap_command(self, argv: list[str], task: OneShotTask) -> list[str]:
        """Return the command of a task in namespaces with its directories; its confinement decides where it may write."""
        mounts = dict.fromkeys(self._extra_readable(task), "--ro-bind")
        mounts |= dict.fromkeys([str(task.directory), *([self.cwd] if task.sees_workspace else [])], "--bind")
        around = self._sandbox_command(self._needed_paths(None), mounts, str(task.directory), has_network=bool(task.network))
        return [*around, "--", *argv]

    def _sandbox_command(
        self, needed: Iterable[str], chosen: Mapping[str, str], cwd: str, *, has_network: bool, parents: Container[str] = ()
    ) -> Iterator[str]:
        writable = self._writable_directories
        program = _find_bubblewrap(writable)
        if program is None:
            raise KernelStartFailed(_MISSING)
        yield from (program, *_BASE_ARGUMENTS)
        if has_network:
            yield "--share-net"
        empty = {
            path for path in (*_EMPTY_DIRECTORIES, str(Path.home())) if Path(path).is_dir() and not Path(path).is_symlink()
        } - {"/"}
        for path in sorted(empty):
            yield from ("--size", str(_TMPFS_BYTES), "--tmpfs", path)
        for hidden in filter(os.path.exists, MACHINE_STORES):
            if os.path.realpath(hidden).startswith("/run/"):
                continue  # the directory is empty already
            yield from ("--tmpfs", hidden) if Path(hidden).is_dir() else ("--ro-bind", os.devnull, hidden)
        needed = [path for path in needed if not is_beneath(path, writable)]  # cells may have put links there
        mounts = {path: "--ro-bind" for path in needed if any(Path(path).is_relative_to(parent) for parent in empty)}
        mounts |= chosen
        for path in sorted(filter(os.path.exists, mounts)):  # deeper paths come later
            above = next((mounts[str(parent)] for parent in Path(path).parents if str(parent) in mounts), None)
            if above != mounts[path] or path in parents:
                yield from (mounts[path], path, path)
        yield from ("--chdir", cwd)

    def _mount_contexts(self, mounts: dict[str, str]) -> set[str]:
        """Mount the context paths, with their read-only parts and this program's own files; return the directories above.

        The directories above are mounted over themselves: else a kernel could move them away and replace them.
        """
        writable_paths = [path for path, option in mounts.items() if option == "--bind"]
        rules = permissions(contexts(self.config)) | {
            path: False for path in own_code_paths() if is_beneath(path, writable_paths)
        }
        mounts |= {str(path): "--bind" if writable else "--ro-bind" for path, writable in rules.items()}
        parents: set[str] = set()
        for path in (path for path, writable in rules.items() if not writable):
            ancestors = list(map(str, path.parents))
            above = next((number for number, parent in enumerate(ancestors) if parent in mounts), None)
            if above is not None and mounts[ancestors[above]] == "--bind":
                parents |= set(ancestors[:above])
        mounts |= dict.fromkeys(parents, "--bind")
        return parents

    @property
    def _pythons(self) -> list[str]:
        """The interpreters whose directories are mounted: this process's, which confines, and the kernel's."""
        return list(dict.fromkeys([sys.executable, self._interpreter]))

    def _needed_paths(self, installed: InstalledSpec | None) -> Iterator[str]:
        """Yield paths that programs need in directories that would be empty."""
        yield str(LAUNCHER)
        for python in self._pythons:
            yield from _list_directories(python, self._writable_directories)
        yield from import_path(self.environment())
        if self.config.programs.venv is not None:
            yield str(self.config.programs.venv)
        if self.config.has_local_network:
            yield os.path.realpath(_RESOLVER_FILE)
        if installed is not None:
            yield installed.directory
            program = shutil.which(installed.spec.argv[0]) if installed.spec.argv else None
            yield from (program, os.path.realpath(program)) if program else ()


def explain_missing(config: Config) -> str | None:
    """Return why such kernels cannot run on this machine, in a sentence; None if they may."""
    return _MISSING if _find_bubblewrap(all_writable_directories(config, None)) is None else None


def _find_bubblewrap(writable: Iterable[str]) -> str | None:
    """Return the path of bubblewrap, in a directory of PATH that cells cannot write."""
    directories = [path for path in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(path)]  # noqa: PTH117
    program = shutil.which("bwrap", path=os.pathsep.join(path for path in directories if not is_beneath(path, writable)))
    return program and os.path.realpath(program)


def _list_directories(python: str, untrusted: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that an interpreter reads; once in this process it is started to list them."""
    if python in _directories:
        return _directories[python]
    try:
        listed = json.loads(run_confined(python, _LISTING_CODE, untrusted) or "")
        paths = [path for path in listed if isinstance(path, str) and path]
    except (ValueError, TypeError) as exc:
        message = f"{python} does not list its directories: choose another interpreter by the option `python`."
        raise KernelStartFailed(message) from exc
    program = shutil.which(python) or python
    names = (name for path in (*paths, program) for name in (path, os.path.realpath(path)))
    return _directories.setdefault(python, tuple(dict.fromkeys(names)))
