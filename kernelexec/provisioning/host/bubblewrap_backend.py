"""Bubblewrap as the place of a session's kernels: this machine's programs, in namespaces where little else is to be seen."""

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

#: What is empty in there but for what is put into it: homes, other programs' sockets and files, other file systems.
_EMPTY = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv")  # noqa: S108 - that of the sandbox
_ROOM_BYTES, _SHARED_BYTES = 1024 * MIB, 256 * MIB
_ASKING = (
    "import json, site, sys;"
    "print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, site.getusersitepackages()]))"
)
_MISSING = "bubblewrap is not installed: install the package bubblewrap, 0.8 or newer, or choose another isolation."
_NAMES_OF_HOSTS = "/etc/resolv.conf"
#: What bubblewrap 0.8 says, on stderr alone, of a file system that was unmounted before it could be made read only.
_VANISHED = "bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags"
#: Its own processes, network, users and names; it ends with the executor; of files it has what there is, to read.
_FIRST = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--size", str(_SHARED_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 - that of the sandbox
)


@dataclass(frozen=True, slots=True)
class BubblewrapPlace(LocalPlace):
    """Processes, network, users and temporary files of its own; the machine's programs, which can be read only."""

    @property
    def isolation(self) -> str:
        """What results say of it."""
        return "bubblewrap"

    def reach(self, installed: InstalledSpec | None) -> Transport:
        """By unix sockets, which may be its guard's: ports in there are of another network."""
        return "ipc" if installed is None or installed.transport == "ipc" else "bridged"

    async def prepare(self, failure: KernelStartFailed | None = None) -> None:  # noqa: ARG002 - of the protocol
        """Know what the interpreter needs.

        Raises:
            KernelStartFailed: it does not say.
        """
        for python in self._pythons:
            await anyio.to_thread.run_sync(_needs, python)

    def passes(self, failure: str) -> bool:
        """Whether a file system of the machine's went away while bubblewrap went through them all, as a container's does."""
        return _VANISHED in failure

    def notices(self, installed: InstalledSpec | None, transport: Transport) -> tuple[str, ...]:  # noqa: ARG002 - of the protocol
        """Nothing."""
        return ()

    def spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:  # noqa: ARG002 - of the protocol
        """Our launcher, or another kernel under our guard, which bubblewrap starts."""
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
        """As on this machine, in namespaces; once more where it did not begin for what has passed."""
        done = await LocalPlace.run(self, errand, session)
        return await LocalPlace.run(self, errand, session) if done.exit_code and self.passes(done.said) else done

    def confinement(self, runtime: RuntimeDirectory) -> dict[str, Any] | None:
        """As on this machine. The network is of its own, so nothing has to be refused in it; what is protected is mounted."""
        found = LocalPlace.confinement(self, runtime)
        if found is None:
            return None
        mounted = set(map(str, permissions(contexts(self.config))))
        writes = [(path, [one for one in kept if one not in mounted]) for path, kept in found["writes"]]
        return {**found, "network": True, "writes": writes}

    def _arguments(self, runtime: RuntimeDirectory, installed: InstalledSpec | None) -> Iterator[str]:
        confined = self.confinement(runtime)
        bound = dict.fromkeys(confined["readable"] if confined else (), "--ro-bind")
        bound |= dict.fromkeys(confined["writable"] if confined else (self.cwd, str(runtime.path)), "--bind")
        bound |= dict.fromkeys((path for path, _ in confined["writes"]) if confined else (), "--bind")
        ways = self._context(bound)
        return self._around(self._seen(installed), bound, self.cwd, networked=self.config.networked, ways=ways)

    def _wrapped(self, argv: list[str], errand: Errand) -> list[str]:
        """What an errand reads and writes; what it may do with the latter is its own confinement's to say."""
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
                continue  # which is empty
            yield from ("--tmpfs", hidden) if Path(hidden).is_dir() else ("--ro-bind", os.devnull, hidden)
        needed = [path for path in needed if not within(path, places)]  # cells may have put links there
        seen = {path: "--ro-bind" for path in needed if any(Path(path).is_relative_to(one) for one in empty)}
        seen |= bound
        for path in sorted(filter(os.path.exists, seen)):  # what is deeper comes later
            above = next((seen[str(parent)] for parent in Path(path).parents if str(parent) in seen), None)
            if above != seen[path] or path in ways:
                yield from (seen[path], path, path)
        yield from ("--chdir", cwd)

    def _context(self, seen: dict[str, str]) -> set[str]:
        """Add the context paths to what is seen, what can only be read in them or is this program's own; the ways there.

        These are put over themselves: else they could be moved away, and others put in their place.
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
        """The interpreters that are asked what they read: who confines, and the kernel's."""
        return list(dict.fromkeys([sys.executable, self._own]))

    def _seen(self, installed: InstalledSpec | None) -> Iterator[str]:
        """What programs need of what else would be empty."""
        yield str(LAUNCHER)
        for python in self._pythons:
            yield from _needs(python)
        yield from import_path(self.environment())
        if self.config.programs.venv is not None:
            yield str(self.config.programs.venv)
        if self.config.networked:
            yield os.path.realpath(_NAMES_OF_HOSTS)
        if installed is not None:
            yield installed.directory
            program = shutil.which(installed.spec.argv[0]) if installed.spec.argv else None
            yield from (program, os.path.realpath(program)) if program else ()


def missing(config: Config) -> str | None:
    """Why there are no such kernels on this machine, in a sentence; None where there may be."""
    return _MISSING if _program(written_by_any(config, None)) is None else None


def _program(places: Iterable[str]) -> str | None:
    """Bubblewrap's, in a directory of PATH that cells cannot write: they could put another one there."""
    directories = [path for path in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(path)]  # noqa: PTH117
    found = shutil.which("bwrap", path=os.pathsep.join(path for path in directories if not within(path, places)))
    return found and os.path.realpath(found)


@functools.cache
def _needs(python: str) -> tuple[str, ...]:
    """The directories that an interpreter reads, as it says itself; the first time in this process it is started for that.

    Raises:
        KernelStartFailed: it cannot be asked.
    """
    try:
        found = [path for path in json.loads(ask(python, _ASKING) or "") if isinstance(path, str) and path]
    except (ValueError, TypeError) as exc:
        message = f"{python} does not say where it is installed: choose another interpreter by the option `python`."
        raise KernelStartFailed(message) from exc
    program = shutil.which(python) or python
    return tuple(dict.fromkeys(name for path in (*found, program) for name in (path, os.path.realpath(path))))
