"""Packages in a session's virtual environment: installed without a cell, recorded exactly in a lock."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
from packaging.utils import canonicalize_name

from kernelexec.config import seconds
from kernelexec.errors import InvalidRequest, KernelError, KernelexecError, KernelNotAnswering
from kernelexec.launcher import protocol
from kernelexec.provisioning.launch.one_shot import TIMED_OUT, Done, Errand, Network, copy_wheel, new_directory
from kernelexec.results import ExecutionFailed, Installation
from kernelexec.session.context import SessionContext
from kernelexec.session.features.inspection import Inspection
from kernelexec.session.features.install_plan import INSTALL_SECONDS, InstallPlan, InstallRequest
from kernelexec.session.features.requirements import LockedPackage, PackageLock, checked, is_wheel
from kernelexec.workspace.rmtree import remove_tree
from kernelexec.workspace.safe_files import read_regular, replace_beneath

#: The lock of a workspace's virtual environment.
LOCK = Path(".kernelexec", "pylock.toml")
_LOCK_BYTES = 2 * 1024 * 1024


class PackageInstaller:
    """The packages of one session."""

    def __init__(self, context: SessionContext, inspection: Inspection) -> None:
        self._context = context
        self._inspection = inspection
        self._plan = InstallPlan(context)

    async def install(
        self,
        packages: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Install packages into the session's virtual environment, made where it is missing, and have cells find them at once.

        That is ``programs.venv``, where it lies in the workspace, or ``.venv`` there. pip runs beside the kernel, in an
        environment like its own, also while a cell runs; the import by cells takes its turn like a cell. A failure of pip is
        a result, and the state is kept. ``.kernelexec/pylock.toml`` of the workspace then names all installed packages.

        Args:
            packages: names with versions, as ``numpy>=2,<3``, and paths of wheels; one, or several.
            wheels: a directory of wheels on this machine: they are taken from there, and no index is asked unless ``network``
                is given too.
            network: True, or ``bridge`` and ``host`` in containers, for this installation only: a network that cells have not
                is used to fetch wheels without access to the workspace. By default it is the kernels' own.
            timeout: the seconds that it may take, 600 by default.

        Raises:
            InvalidRequest, InvalidTimeout, Closed: before anything ran.
            KernelError: it could not be started.
        """
        self._context.scope.check_open()
        requirements = checked(packages)
        directory, online = self._plan.sources(requirements, wheels, network)
        return await self._install(InstallRequest(requirements, wheels=directory, network=online, seconds=_budget(timeout)))

    async def rebuild(
        self,
        lock: str | os.PathLike[str] | None = None,
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Make the virtual environment anew, with exactly the packages of a lock; by default its own. See ``install``.

        Hashes are checked where the lock has all of them. A ``pylock.toml`` of another tool must be for one environment. Cells
        keep the modules that they have imported until a restart.

        Raises:
            InvalidRequest: there is no such lock; and as in ``install``.
            InvalidTimeout, Closed, KernelError: see ``install``.
        """
        self._context.scope.check_open()
        path = self._context.workspace / LOCK if lock is None else self._plan.path(lock)
        try:
            known = await anyio.to_thread.run_sync(_read, path)
        except OSError as exc:
            message = f"{path} cannot be read ({exc.strerror or exc}): name a lock that `install` has written."
            raise InvalidRequest(message) from exc
        requirements = tuple(known.requirements)
        directory, online = self._plan.sources(requirements, wheels, network)
        request = InstallRequest(
            requirements, exact=True, fresh=True, wheels=directory, network=online, seconds=_budget(timeout)
        )
        return await self._install(request, known)

    async def replace_venv(self) -> None:
        """Make the virtual environment anew and empty, with access to the packages of the cells' interpreter.

        Raises:
            KernelError: it could not be made.
        """
        installation = await self._install(InstallRequest(fresh=True), serve=False)
        if not installation.ok:
            raise KernelError(f"The virtual environment {installation.venv} cannot be made anew: {installation.output}")

    async def _install(self, request: InstallRequest, lock: PackageLock | None = None, *, serve: bool = True) -> Installation:
        context, venv, began = self._context, self._plan.venv, anyio.current_time()
        async with context.kernels.installing:
            done = await self._run_pip(request, venv)
            before = await anyio.to_thread.run_sync(self._read_lock)
            installed = _installed(done)
            result = _result(done, installed)
            output = context.masking.text(result.output)
            result = replace(result, output=output, venv=context.inside(context.workspace.joinpath(*venv)))
            notes = _version_notes(lock, done)
            if result.ok:
                result = replace(result, lock=await anyio.to_thread.run_sync(self._write_lock, done, {**before, **installed}))
                notes += await self._serve(result, before) if serve else []
            return replace(result, notes=tuple(notes), seconds=anyio.current_time() - began)

    async def _run_pip(self, request: InstallRequest, venv: tuple[str, ...]) -> Done:
        """Return the result of pip, after wheels were fetched for it where only a separate process may have the network."""
        context, backend = self._context, self._context.kernels.place
        until = anyio.current_time() + request.seconds
        apart = request.network is not False and request.network is not backend.network
        online = bool(request.network) and not apart
        order = {"requirements": _paths_in_errand(request), "exact": request.exact, "online": online, "find": []}
        wheels, inside = request.wheels, self._plan.within(request.wheels)
        try:
            async with self._errand_directory(request) as fetching, self._errand_directory(request) as filling:
                if apart:
                    errand = Errand(fetching, {**order, "fills": False}, request.network, wheels, request.seconds)
                    done = await backend.run(errand, context.runtime)
                    if done.exit_code or done.answer.get("exit_code") != 0 or not _is_directory(fetching / "fetched"):
                        return done
                    wheels, inside = fetching / "fetched", None
                order |= {"fills": True, "venv": venv, "fresh": request.fresh, "find": [inside] if inside else []}
                left = max(1.0, until - anyio.current_time())
                network = False if apart else request.network
                return await backend.run(Errand(filling, order, network, None if inside else wheels, left), context.runtime)
        except OSError as exc:
            raise KernelError(f"Nothing was installed: {exc}.") from exc

    @asynccontextmanager
    async def _errand_directory(self, request: InstallRequest) -> AsyncIterator[Path]:
        """Yield a private directory with the wheels that are named by their paths."""
        context = self._context
        path = await anyio.to_thread.run_sync(new_directory, context.runtime, context.kernels.place.user)
        try:
            for wheel in filter(is_wheel, request.requirements):
                try:
                    await anyio.to_thread.run_sync(copy_wheel, self._plan.path(wheel), path)
                except OSError as exc:
                    raise InvalidRequest(f"The wheel {wheel} cannot be had: {exc}.") from exc
            yield path
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, path)

    def _read_lock(self) -> dict[str, LockedPackage]:
        """Return the packages of the environment's own lock by name; none where it cannot be read."""
        with suppress(OSError, InvalidRequest):
            return {package.key: package for package in _read(self._context.workspace / LOCK).packages}
        return {}

    def _write_lock(self, done: Done, known: dict[str, LockedPackage]) -> str | None:
        """Write the environment's lock, and return its path as kernels see it; None where it cannot be written."""
        locked = []
        for name, version in _items(done.answer.get("holds")):
            with suppress(ValueError):
                package = LockedPackage(name, version)
                earlier = known.get(package.key)
                locked.append(earlier if earlier is not None and earlier.has_version(version) else package)
        with suppress(OSError):
            lock = PackageLock(str(done.answer.get("python"))[:20], tuple(locked))
            replace_beneath(self._context.workspace, LOCK, lock.written())
            return self._context.inside(self._context.workspace / LOCK)
        return None

    async def _serve(self, result: Installation, before: dict[str, LockedPackage]) -> list[str]:
        """Have cells find the installed packages, and return notes on those that they do not find."""
        notes = []
        try:
            await self._context.call_launcher(protocol.SERVE_PACKAGES_SOURCE, None)
            environment = await self._inspection.environment()
        except (KernelNotAnswering, ExecutionFailed, KernelexecError) as exc:
            return [f"Python cells may not find it before the session is restarted: {exc}"]
        for package in result.packages:
            key = canonicalize_name(package.name)
            imported, earlier = environment.packages.get(key), before.get(key)
            if environment.served == "packages" and imported not in (None, package.version):
                notes.append(f"Only commands have {package}: the interpreter of Python cells has {imported}, which goes first.")
            elif earlier is not None and not earlier.has_version(package.version):
                notes.append(f"{package.name} was {earlier.version}: cells that have imported it keep that until a restart.")
        if environment.served == "commands":
            version = environment.version
            notes.append(f"Only commands find it: {result.venv} has no packages for Python {version}, which runs cells.")
        if environment.command_prefix:
            notes.append("Commands run behind programs.prefix, which may not use this virtual environment.")
        return notes


def _paths_in_errand(request: InstallRequest) -> list[str]:
    """Return the requirements, wheels by their paths in an errand's directory."""
    return [f"../wheels/{Path(text).name}" if is_wheel(text) else text for text in request.requirements]


def _budget(timeout: object) -> float:
    return INSTALL_SECONDS if timeout is None else seconds(timeout, "timeout")


def _read(path: Path) -> PackageLock:
    return PackageLock.read(read_regular(path, _LOCK_BYTES), str(path))


def _result(done: Done, installed: dict[str, LockedPackage]) -> Installation:
    """Return the installation that pip reports, without its lock."""
    failure, code = done.answer.get("failure"), done.answer.get("exit_code")
    output = done.said if not isinstance(failure, str) else f"{done.said}{failure}\n"
    if done.exit_code == TIMED_OUT:
        return Installation((), "", TIMED_OUT, f"{output}The time was over.\n", 0.0)
    if done.exit_code or not isinstance(code, int) or isinstance(code, bool):
        return Installation((), "", done.exit_code or 1, output, 0.0)
    return Installation(tuple(package.result for package in installed.values()), "", code, output, 0.0)


def _installed(done: Done) -> dict[str, LockedPackage]:
    """Return the packages that pip reports, by name. Cells may have changed the report: malformed entries are left out."""
    entries = done.answer.get("installed")
    packages = {}
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case [str() as name, str() as version, None | str() as digest, str() as archive]:
                with suppress(ValueError):
                    package = LockedPackage(name, version, archive, (digest,) if digest else ())
                    packages[package.key] = package
    return packages


def _items(versions: object) -> list[tuple[str, str]]:
    return [(str(name), str(version)) for name, version in versions.items()] if isinstance(versions, dict) else []


def _version_notes(lock: PackageLock | None, done: Done) -> list[str]:
    """Return a note where a lock was made with another version of Python."""
    version = done.answer.get("python")
    if lock is None or not lock.python or not isinstance(version, str) or version == lock.python:
        return []
    return [f"The lock was made with Python {lock.python}, and this is {version[:20]}."]


def _is_directory(path: Path) -> bool:
    """Return whether it is a directory itself, after its last change: a build may have put a link there."""
    return path.is_dir() and not path.is_symlink()
