"""The backend that runs a session's kernels in namespaces of bubblewrap, with this machine's programs and few other files."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import MIB, Config
from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.protocol import GUARD_ALONE_FLAG
from kernelexec.provisioning.container.mounts import own_code
from kernelexec.provisioning.host.backend import LocalPlace
from kernelexec.provisioning.host.confinement import MACHINE_STORES
from kernelexec.provisioning.host.interpreter_probe import ask
from kernelexec.provisioning.host.writable_paths import import_path, within, written_by_any
from kernelexec.provisioning.jupyter.installed import InstalledSpec, Transport
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER, guarded_spec
from kernelexec.provisioning.launch.one_shot import Done, Errand
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.workspace.contexts import contexts, permissions

#: Directories that are empty but for mounts: homes, sockets and files of other programs, other file systems.
_EMPTY = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv")  # noqa: S108 - that of the sandbox
_ROOM_BYTES, _SHARED_BYTES = 1024 * MIB, 256 * MIB
_ASKING = (
    "import json, site, sys;"
    "print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, site.getusersitepackages()]))"
)
_MISSING = "bubblewrap is not installed: install the package bubblewrap, 0.8 or newer, or choose another isolation."
_NAMES_OF_HOSTS = "/etc/resolv.conf"
#: The stderr of bubblewrap 0.8 when a file system was unmounted before it could be made read-only.
_VANISHED = "bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags"
#: Own namespaces of processes, network, users and names; an end with the executor; all files read-only.
_FIRST = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--size", str(_SHARED_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 - that of the sandbox
)


@dataclass(frozen=True, slots=True)
class BubblewrapPlace(LocalPlace):
    """Namespaces with own processes, network, users and temporary files, and the machine's programs read-only."""

    @property
    def isolation(self) -> str:
        """The isolation that results report."""
        return "bubblewrap"

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """Return unix sockets, which may be the guard's: ports in a network namespace are not reachable."""
        return "ipc" if installed is None or installed.transport == "ipc" else "bridged"

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - of the protocol
        """Find the directories that the interpreter reads.

        Raises:
            KernelStartFailed: it does not say.
        """
        for python in self._pythons:
            await anyio.to_thread.run_sync(_needs, python)

    def passes(self, failure: str) -> bool:
        """Return whether a file system, such as a container's, was unmounted while bubblewrap was mounting all of them."""
        return _VANISHED in failure

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:  # noqa: ARG002 - of the protocol
        """Nothing."""
        return ()

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Return the kernelspec of our launcher, or of another kernel under our guard, started by bubblewrap."""
        if installed is None:
            spec = self._python_spec(runtime)
        else:
            guard = (sys.executable, *GUARD, str(LAUNCHER), GUARD_ALONE_FLAG)
            spec = guarded_spec(installed, runtime.connection_file, guard=guard)
        arguments = list(self._arguments(runtime, installed))
        spec.metadata["kernel_provisioner"] = {
            "provisioner_name": "kernelexec-bubblewrap",
            "config": {"arguments": arguments},
        }
        return spec

    async def run(self, errand: Errand, session: Path) -> Done:
        """Run an errand in namespaces; try once more after a transient failure."""
        done = await LocalPlace.run(self, errand, session)
        return await LocalPlace.run(self, errand, session) if done.exit_code and self.passes(done.said) else done

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """Return the confinement of a local kernel without the rules that its network namespace and its mounts replace."""
        local = LocalPlace.confinement(self, runtime)
        if local is None:
            return None
        mounted = set(map(str, permissions(contexts(self.config))))
        writes = [(path, [entry for entry in kept if entry not in mounted]) for path, kept in local["writes"]]
        return {**local, "network": True, "writes": writes}

    def _arguments(self, runtime: RuntimeDirectory, installed: InstalledSpec | None) -> Iterator[str]:
        confined = self.confinement(runtime)
        bound = dict.fromkeys(confined["readable"] if confined else (), "--ro-bind")
        bound |= dict.fromkeys(confined["writable"] if confined else (self.cwd, str(runtime.path)), "--bind")
        bound |= dict.fromkeys((path for path, _ in confined["writes"]) if confined else (), "--bind")
        ways = self._context(bound)
        return self._around(self._seen(installed), bound, self.cwd, networked=self.config.has_local_network, ways=ways)

    def _wrapped(self, argv: list[str], errand: Errand) -> list[str]:
        """Return the command of an errand in namespaces with its directories; its confinement decides where it may write."""
        bound = dict.fromkeys(self._read(errand), "--ro-bind")
        bound |= dict.fromkeys([str(errand.directory), *([self.cwd] if errand.fills else [])], "--bind")
        around = self._around(self._seen(None), bound, str(errand.directory), networked=bool(errand.network))
        return [*around, "--", *argv]

    def _around(
        self, needed: Iterable[str], bound: Mapping[str, str], cwd: str, *, networked: bool, ways: Container[str] = ()
    ) -> Iterator[str]:
        places = self._written
        program = _program(places)
        if program is None:
            raise KernelStartFailed(_MISSING)
        yield from (program, *_FIRST)
        if networked:
            yield "--share-net"
        empty = {path for path in (*_EMPTY, str(Path.home())) if Path(path).is_dir() and not Path(path).is_symlink()} - {"/"}
        for path in sorted(empty):
            yield from ("--size", str(_ROOM_BYTES), "--tmpfs", path)
        for hidden in filter(os.path.exists, MACHINE_STORES):
            if os.path.realpath(hidden).startswith("/run/"):
                continue  # it is empty already
            yield from ("--tmpfs", hidden) if Path(hidden).is_dir() else ("--ro-bind", os.devnull, hidden)
        needed = [path for path in needed if not within(path, places)]  # cells may have put links there
        seen = {path: "--ro-bind" for path in needed if any(Path(path).is_relative_to(one) for one in empty)}
        seen |= bound
        for path in sorted(filter(os.path.exists, seen)):  # deeper paths come later
            above = next((seen[str(parent)] for parent in Path(path).parents if str(parent) in seen), None)
            if above != seen[path] or path in ways:
                yield from (seen[path], path, path)
        yield from ("--chdir", cwd)

    def _context(self, seen: dict[str, str]) -> set[str]:
        """Mount the context paths, with their read-only parts and this program's own files; return the directories above.

        The directories above are mounted over themselves: else a kernel could move them away and replace them.
        """
        places = [path for path, how in seen.items() if how == "--bind"]
        rules = permissions(contexts(self.config)) | {path: False for path in own_code() if within(path, places)}
        seen |= {str(path): "--bind" if writable else "--ro-bind" for path, writable in rules.items()}
        ways: set[str] = set()
        for path in (path for path, writable in rules.items() if not writable):
            parents = list(map(str, path.parents))
            above = next((number for number, parent in enumerate(parents) if parent in seen), None)
            if above is not None and seen[parents[above]] == "--bind":
                ways |= set(parents[:above])
        seen |= dict.fromkeys(ways, "--bind")
        return ways

    @property
    def _pythons(self) -> list[str]:
        """The interpreters whose directories are mounted: this process's, which confines, and the kernel's."""
        return list(dict.fromkeys([sys.executable, self._own]))

    def _seen(self, installed: InstalledSpec | None) -> Iterator[str]:
        """Yield paths that programs need in directories that would be empty."""
        yield str(LAUNCHER)
        for python in self._pythons:
            yield from _needs(python)
        yield from import_path(self.environment())
        if self.config.programs.venv is not None:
            yield str(self.config.programs.venv)
        if self.config.has_local_network:
            yield os.path.realpath(_NAMES_OF_HOSTS)
        if installed is not None:
            yield installed.directory
            program = shutil.which(installed.spec.argv[0]) if installed.spec.argv else None
            yield from (program, os.path.realpath(program)) if program else ()


def missing(config: Config) -> str | None:
    """Return why such kernels cannot run on this machine, in a sentence; None if they may."""
    return _MISSING if _program(written_by_any(config, None)) is None else None


def _program(places: Iterable[str]) -> str | None:
    """Return the path of bubblewrap, in a directory of PATH that cells cannot write."""
    directories = [path for path in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(path)]  # noqa: PTH117
    found = shutil.which("bwrap", path=os.pathsep.join(path for path in directories if not within(path, places)))
    return found and os.path.realpath(found)


@functools.cache
def _needs(python: str) -> tuple[str, ...]:
    """Return the directories that an interpreter reads; once in this process it is started to list them.

    Raises:
        KernelStartFailed: it cannot be started, or does not list them.
    """
    try:
        found = [path for path in json.loads(ask(python, _ASKING) or "") if isinstance(path, str) and path]
    except (ValueError, TypeError) as exc:
        message = f"{python} does not say where it is installed: choose another interpreter by the option `python`."
        raise KernelStartFailed(message) from exc
    program = shutil.which(python) or python
    return tuple(dict.fromkeys(name for path in (*found, program) for name in (path, os.path.realpath(path))))
