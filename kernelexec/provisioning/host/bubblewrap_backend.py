"""The backend for kernels in namespaces of bubblewrap, with this machine's programs and few other files."""

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
from kernelexec.launcher.protocol import GUARD_ALONE_FLAG
from kernelexec.provisioning.host.confinement_rules import MACHINE_STORES
from kernelexec.provisioning.host.interpreters import (
    all_writable_directories,
    import_path,
    is_beneath,
    links_of,
    own_code_paths,
    run_confined,
)
from kernelexec.provisioning.host.local_backend import LocalBackend
from kernelexec.provisioning.launch import LAUNCHER
from kernelexec.provisioning.launch.kernelspec import InstalledSpec
from kernelexec.provisioning.launch.one_shot_task import OneShotTask, TaskResult
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory, Transport
from kernelexec.workspace.contexts import contexts, permissions

#: Directories that are empty but for mounts: homes, sockets and files of other programs, other file systems.
_EMPTY_DIRECTORIES = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv")  # noqa: S108 - that of the sandbox
_TMPFS_BYTES, _SHM_BYTES = 1024 * MIB, 256 * MIB
_LISTING_CODE = (
    "import json, site, sys;"
    "print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, site.getusersitepackages()]))"
)
#: The directories that each interpreter reads, by its own list: once in this process, since it has to be started for that.
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
class BubblewrapBackend(LocalBackend):
    """Namespaces with own processes, network, users and temporary files, and the machine's programs read-only."""

    _guard_flag: ClassVar[str] = GUARD_ALONE_FLAG

    def transport_for(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets, the kernel's or the guard's: ports in a network namespace are not reachable."""
        return "ipc" if installed is None or installed.transport == "ipc" else "bridged"

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - as in the other backend
        """List the directories of the interpreters in threads, ahead of ``build_spec``."""
        for python in self._pythons:
            await anyio.to_thread.run_sync(_list_directories, python, self._writable_directories)

    def is_transient(self, failure: str) -> bool:
        """Return whether a file system, such as a container's, was unmounted while bubblewrap was mounting all file systems."""
        return _MOUNT_VANISHED in failure

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        """Return the kernelspec of our launcher, or of another kernel under our guard, started by bubblewrap."""
        spec = LocalBackend.build_spec(self, runtime, token, installed)
        rules = self.confinement(runtime)
        mounts = dict.fromkeys(rules["readable"] if rules else (), "--ro-bind")
        mounts |= dict.fromkeys((*(rules["writable"] if rules else [str(runtime.path)]), str(self.workspace)), "--bind")
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
        """Return a local kernel's confinement, less the rules replaced by the network namespace and the mounts."""
        local = LocalBackend.confinement(self, runtime)
        if local is None:
            return None
        mounted = set(map(str, permissions(contexts(self.config))))
        writes = [(path, [entry for entry in read_only if entry not in mounted]) for path, read_only in local["writes"]]
        return {**local, "network": True, "has_private_ipc": True, "writes": writes}

    def _wrap_command(self, argv: list[str], task: OneShotTask) -> list[str]:
        """Return the command of a task in namespaces with its directories; the task's confinement limits writing further."""
        mounts = dict.fromkeys(self._extra_readable(task), "--ro-bind")
        mounts |= dict.fromkeys([str(task.directory), *([str(self.workspace)] if task.sees_workspace else [])], "--bind")
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
        # Bubblewrap mounts in the order of its arguments: empty directories first, then what is shown again inside them.
        for path in sorted(empty):
            yield from ("--size", str(_TMPFS_BYTES), "--tmpfs", path)
        for hidden in filter(os.path.exists, MACHINE_STORES):
            if os.path.realpath(hidden).startswith("/run/"):
                continue  # the directory is empty already
            # Only paths that exist, see above, can be mount points: the root is mounted read-only.
            yield from ("--tmpfs", hidden) if Path(hidden).is_dir() else ("--ro-bind", os.devnull, hidden)
        needed = [path for path in needed if not is_beneath(path, writable)]  # cells may have put links there
        mounts = {path: "--ro-bind" for path in needed if any(Path(path).is_relative_to(parent) for parent in empty)}
        mounts |= chosen
        for path in sorted(filter(os.path.exists, mounts)):  # deeper paths come later
            above = next((mounts[str(parent)] for parent in Path(path).parents if str(parent) in mounts), None)
            if above != mounts[path] or path in parents:
                yield from (mounts[path], path, path)
        # An interpreter is often a link in the home (~/.local/bin, virtual environments): mounts show its target, and each link
        # on the way is made anew unless a mount shows it already.
        links = dict(link for python in self._pythons for link in links_of(shutil.which(python) or python))
        for link, target in links.items():
            is_shown = any(link.is_relative_to(path) or Path(path).is_relative_to(link) for path in mounts)
            if any(map(link.is_relative_to, empty)) and not is_shown and not any(map(link.is_relative_to, writable)):
                yield from ("--symlink", str(target), str(link))
        yield from ("--chdir", cwd)

    def _mount_contexts(self, mounts: dict[str, str]) -> set[str]:
        """Mount the context paths, the read-only parts inside, and this program's own files; return the directories above.

        The directories above are mounted over themselves: else a kernel could move and replace a directory.
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
        """The interpreters to mount: this process's own for confinement, and the kernel's."""
        return list(dict.fromkeys([sys.executable, self._interpreter]))

    def _needed_paths(self, installed: InstalledSpec | None) -> Iterator[str]:
        """Yield the paths needed by programs, to be shown in otherwise empty directories."""
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
    """Return why kernels cannot run in bubblewrap on this machine, in a sentence; None if possible."""
    return _MISSING if _find_bubblewrap(all_writable_directories(config, None)) is None else None


def _find_bubblewrap(writable: Iterable[str]) -> str | None:
    """Return bubblewrap's path from the PATH directories not writable by cells; None if missing."""
    directories = [path for path in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(path)]  # noqa: PTH117
    program = shutil.which("bwrap", path=os.pathsep.join(path for path in directories if not is_beneath(path, writable)))
    return program and os.path.realpath(program)


def _list_directories(python: str, untrusted: Iterable[str]) -> tuple[str, ...]:
    """Return the directories read by an interpreter, which is started once in this process for the list."""
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
