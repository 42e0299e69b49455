"""Installations into a session's virtual environment, with an exact lock, and of other packages before the first cell."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.config import check_seconds, system_refusal
from kernelexec.errors import InvalidRequest, KernelError, KernelexecError, KernelNotAnswering
from kernelexec.launcher import protocol
from kernelexec.provisioning.launch.one_shot_task import (
    TIMED_OUT,
    Network,
    OneShotTask,
    TaskResult,
    copy_wheel,
    create_task_directory,
)
from kernelexec.results import ExecutionFailed, Installation
from kernelexec.results.json_values import read_text
from kernelexec.results.session_contents import packages_notes
from kernelexec.session.context import SessionContext
from kernelexec.session.features import packages as locks  # its names import the library of locks at their first use
from kernelexec.session.features.inspection import Inspection
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.rmtree import remove_tree
from kernelexec.workspace.safe_files import closing_fd, open_regular, read_regular, replace_beneath
from kernelexec.workspace.system_calls import open_unlinked

#: The lock of a workspace's virtual environment.
LOCK = Path(OURS, "pylock.toml")
_LOCK_BYTES, _REQUIREMENTS_BYTES = 2 * 1024 * 1024, 256 * 1024
#: The largest wheel that is copied, in bytes.
_WHEEL_BYTES = 16 * 1024 * 1024 * 1024
Requirement = str | os.PathLike[str]
#: The seconds that an installation may take by default.
INSTALL_SECONDS = 600.0
_PATH_CHARS = 4096
#: The commands that install system packages and npm packages.
_SYSTEM = """
export DEBIAN_FRONTEND=noninteractive; as=; [ "$(id -u)" = 0 ] || as="sudo -n"
$as apt-get update -qq && $as apt-get install -qq -y --no-install-recommends -- {}
"""
_NPM = "npm install --no-audit --no-fund -- {}"
_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """The requirements of an installation, into the existing or a new virtual environment."""

    requirements: tuple[str, ...] = ()
    exact: bool = False
    fresh: bool = False
    wheels: Path | None = None
    network: Network = False
    seconds: float = INSTALL_SECONDS


class PackageInstaller:
    """The packages of a session."""

    def __init__(self, context: SessionContext, inspection: Inspection) -> None:
        self._context = context
        self._inspection = inspection

    async def install(
        self,
        packages: Requirement | Iterable[Requirement],
        *more: Requirement | Iterable[Requirement],
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Install packages into the session's virtual environment, and make them available to cells at once.

        The virtual environment is ``programs.venv``, if it is in the workspace, or else ``.venv`` there, or else the session's
        own. pip runs in a process of its own, in an environment like the kernel's, also while a cell runs. Making the
        packages available to Python cells waits for its place in the queue like a cell. A failure of pip is a result, and the
        state is kept. Afterwards ``.kernelexec/pylock.toml`` of the workspace names all installed packages.

        Args:
            packages: requirements such as ``numpy>=2,<3``, paths of wheels, or files with one in each line, as
                ``requirements.txt`` or ``-r requirements.txt``.
            *more: further ones.
            wheels: a directory of wheels on this machine, which pip uses instead of an index unless ``network`` is set too.
            network: True, or ``bridge`` or ``host`` in containers, for this installation only. A network that cells do not
                have is used only to download wheels, without access to the workspace. The kernels' own by default.
            timeout: the seconds that the installation may take, 600 by default.

        Raises:
            InvalidRequest, InvalidTimeout, Closed: before anything ran.
            KernelError: the installation could not be started.
        """
        self._context.scope.check_open()
        check = partial(locks.check_requirements, [packages, *more], self._read_requirements)
        return await self._install(self._make_request(await self._context.read_in_thread(check), wheels, network, timeout))

    async def rebuild(
        self,
        lock: str | os.PathLike[str] | None = None,
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Replace the virtual environment by one with exactly the packages of a lock, by default its own. See ``install``.

        Hashes are checked if the lock contains all of them. A ``pylock.toml`` of another tool must describe one environment.
        Cells keep imported modules until a restart.

        Raises:
            InvalidRequest: the lock is missing or invalid; and the errors of ``install``.
            InvalidTimeout, Closed, KernelError: see ``install``.
        """
        self._context.scope.check_open()
        path = self._context.workspace_path / LOCK if lock is None else self._resolve_path(lock)
        try:
            package_lock = await self._context.read_in_thread(_read_lock_file, path)
        except OSError as exc:
            message = f"{path} cannot be read ({exc.strerror or exc}): name a lock that `install` has written."
            raise InvalidRequest(message) from exc
        request = self._make_request(tuple(package_lock.pip_lines), wheels, network, timeout)
        return await self._install(replace(request, exact=True, fresh=True), package_lock)

    async def replace_venv(self) -> None:
        """Replace the environment by an empty environment on top of the cells' packages; a failure raises ``KernelError``."""
        installation = await self._install(InstallRequest(fresh=True), activate=False)
        if not installation.ok:
            raise KernelError(f"The virtual environment {installation.venv} cannot be replaced: {installation.output}")

    async def preinstall(self) -> None:
        """Install the configured system, Python and npm packages, for the executor. The next result reports a failure."""
        wanted = self._context.config.programs.preinstall
        if wanted.system and self._context.isolation != "container":
            self._warn_not_installed("system", wanted.system, "system packages are installed in containers only")
        elif wanted.system:
            await self._run_install_command("system", wanted.system, _SYSTEM)
        if wanted.python:
            await self._install_python(wanted.python)
        if wanted.npm:
            await self._run_install_command("npm", wanted.npm, _NPM)

    async def _install_python(self, names: tuple[str, ...]) -> None:
        try:
            installation = await self.install(names)
        except KernelexecError as exc:
            self._warn_not_installed("python", names, str(exc))
        else:
            self._context.kernels.python.notes.extend(installation.notes)
            if not installation.ok:
                self._warn_not_installed("python", names, installation.output)

    async def _run_install_command(self, kind: str, names: tuple[str, ...], command: str) -> None:
        """Run an internal command in the kernel's environment, without rules and without a record in the notebook."""
        context = self._context
        if not context.kernels.backend.network:
            self._warn_not_installed(kind, names, "the session has no network")
            return
        script = command.format(shlex.join(names)).strip()
        source = protocol.run_program_source(["sh", "-c", script])
        try:
            run, result = await context.run_internally(source, INSTALL_SECONDS, keeps_variables=True)
        except KernelexecError as exc:
            self._warn_not_installed(kind, names, str(exc))
        else:
            if result.status != "ok" or run.get_launcher_report().get("exit_code") != 0:
                self._warn_not_installed(kind, names, result.stderr or result.stdout)

    def _warn_not_installed(self, kind: str, names: Iterable[str], output: str) -> None:
        reason = output.strip()[-_REASON_CHARS:].strip() or "no reason was reported"
        message = f"programs.preinstall.{kind} ({', '.join(names)}) was not installed: {reason}"
        self._context.kernels.python.notes.append(message)

    async def _install(
        self, request: InstallRequest, lock: locks.PackageLock | None = None, *, activate: bool = True
    ) -> Installation:
        context, venv, began = self._context, self._find_venv(), anyio.current_time()
        async with context.kernels.install_lock:
            pip_run = await self._run_pip(request, venv)
            before = await context.read_in_thread(self._read_lock)
            installed = _read_installed_packages(pip_run)
            result = _build_installation(pip_run, installed)
            output = context.masking.mask_text(result.output)
            result = replace(result, output=output, venv=read_text(pip_run.answer.get("venv"), _PATH_CHARS))
            notes = _check_python_version(lock, pip_run)
            if result.ok:
                lock_path = await context.read_in_thread(self._write_lock, pip_run, {**before, **installed})
                result = replace(result, lock=lock_path)
                notes += await self._activate(result) if activate else []
            return replace(result, notes=tuple(notes), seconds=anyio.current_time() - began)

    async def _run_pip(self, request: InstallRequest, venv: tuple[str, ...]) -> TaskResult:
        """Run pip. If cells may not have the network, a separate process downloads the wheels first."""
        context, backend = self._context, self._context.kernels.backend
        deadline = anyio.current_time() + request.seconds
        fetches_separately = request.network is not False and request.network is not backend.network
        online = bool(request.network) and not fetches_separately
        requirements = [f"../wheels/{Path(text).name}" if locks.is_wheel(text) else text for text in request.requirements]
        task_fields = {"requirements": requirements, "exact": request.exact, "online": online, "find": []}
        wheels, inside = request.wheels, self._map_into_workspace(request.wheels)
        try:
            async with (
                self._one_shot_directory(request, deadline) as fetch_dir,
                self._one_shot_directory(request, deadline) as install_dir,
            ):
                if fetches_separately:
                    # building a source archive runs code of its author, so this process has the network, but no workspace
                    errand = OneShotTask(fetch_dir, {**task_fields, "fills": False}, request.network, wheels, request.seconds)
                    done = await backend.run(errand, context.runtime_dir)
                    if done.exit_code or done.answer.get("exit_code") != 0 or not _is_directory(fetch_dir / "fetched"):
                        return done
                    wheels, inside = fetch_dir / "fetched", None
                task_fields |= {"fills": True, "venv": venv, "fresh": request.fresh, "find": [inside] if inside else []}
                remaining_seconds = max(1.0, deadline - anyio.current_time())
                network = False if fetches_separately else request.network
                return await backend.run(
                    OneShotTask(install_dir, task_fields, network, None if inside else wheels, remaining_seconds),
                    context.runtime_dir,
                )
        except OSError as exc:
            raise KernelError(f"Nothing was installed: {exc}.") from exc

    @asynccontextmanager
    async def _one_shot_directory(self, request: InstallRequest, deadline: float) -> AsyncIterator[Path]:
        """Yield a private directory with copies of the wheels given by path."""
        context, created = self._context, list[Path]()
        make = partial(create_task_directory, context.runtime_dir, context.kernels.backend.user)
        try:
            await await_to_end(context.read_in_thread(lambda: created.append(make())))
            [path] = created
            copy = partial(copy_wheel, limit_bytes=_WHEEL_BYTES, deadline=deadline)
            for wheel in filter(locks.is_wheel, request.requirements):
                try:
                    await context.read_in_thread(copy, self._resolve_path(wheel), path)
                except OSError as exc:
                    raise InvalidRequest(f"The wheel {wheel} cannot be copied: {exc}.") from exc
            yield path
        finally:
            for path in created:
                await await_to_end(context.read_in_thread(remove_tree, path))

    def _make_request(
        self, requirements: tuple[str, ...], wheels: str | os.PathLike[str] | None, network: object, timeout: object
    ) -> InstallRequest:
        """Return the request for an installation; raise ``InvalidRequest`` if a source is invalid, or needed and missing."""
        context = self._context
        default_network, is_container = context.kernels.backend.network, context.config.isolation == "container"
        match network:
            case None:
                install_network: Network = default_network if wheels is None else False
            case "bridge" | "host" if is_container:
                install_network = network
            case bool():
                install_network = ("bridge" if is_container else True) if network else False
            case _:
                choices = "True, False, 'bridge' or 'host'" if is_container else "True or False; 'bridge' is for containers"
                raise InvalidRequest(f"network={network!r:.100} must be {choices}.")
        if not install_network and wheels is None and not all(map(locks.is_wheel, requirements)):
            argument = "network='bridge'" if is_container else "network=True"
            raise InvalidRequest(
                f"Session {context.name!r} has no network to install from: pass a directory of wheels (wheels=...), or a"
                f" network for this installation ({argument})."
            )
        directory = None if wheels is None else self._check_wheels(wheels)
        seconds = INSTALL_SECONDS if timeout is None else check_seconds(timeout, "timeout")
        return InstallRequest(requirements, wheels=directory, network=install_network, seconds=seconds)

    def _find_venv(self) -> tuple[str, ...]:
        """Return the path of the virtual environment in the workspace, empty for the session's own.

        Raises:
            InvalidRequest: the virtual environment is outside of the workspace.
        """
        context, venv = self._context, self._context.config.programs.venv
        if venv is None:
            return (protocol.PROJECT_VENV,) if (context.workspace_path / protocol.PROJECT_VENV).exists() else ()
        path = Path(os.path.normpath(context.kernels.backend.to_host_path(str(venv))))
        if not path.is_relative_to(context.workspace_path) or path == context.workspace_path:
            message = f"programs.venv={venv} is not in the session's workspace: install there with its own pip, or omit it."
            raise InvalidRequest(message)
        return path.relative_to(context.workspace_path).parts

    def _resolve_path(self, path: str | os.PathLike[str]) -> Path:
        """Return a path on this machine for a path as kernels see it, or for a path relative to the workspace."""
        context = self._context
        named = os.path.expanduser(context.kernels.backend.to_host_path(path))  # noqa: PTH111 - a user may be missing
        return Path(os.path.normpath(context.workspace_path / named))

    def _read_requirements(self, path: str) -> str:
        resolved = self._resolve_path(path)
        is_inside = resolved.is_relative_to(self._context.workspace_path)
        try:
            with closing_fd(open_unlinked(resolved) if is_inside else open_regular(resolved)) as fd:
                return os.read(fd, _REQUIREMENTS_BYTES).decode()
        except (OSError, UnicodeDecodeError) as exc:
            reason = (exc.strerror or str(exc)) if isinstance(exc, OSError) else "it is not UTF-8"
            raise InvalidRequest(f"{path} cannot be read ({reason}): name a file of requirements in the workspace.") from exc

    def _map_into_workspace(self, path: Path | None) -> str | None:
        """Return a workspace directory as seen by kernels, since cells can change the path here; None for other directories."""
        is_inside = path is not None and path.is_relative_to(self._context.workspace_path)
        return self._context.to_kernel_path(path) if path is not None and is_inside else None

    def _check_wheels(self, wheels: object) -> Path:
        if not isinstance(wheels, str | os.PathLike):
            raise InvalidRequest(f"wheels={wheels!r:.100} must be the path of a directory of wheels.")
        path = self._resolve_path(wheels)
        resolved = Path(os.path.realpath(path))
        if not resolved.is_dir() or (path.is_relative_to(self._context.workspace_path) and resolved != path):
            raise InvalidRequest(f"wheels={os.fspath(wheels)!r} must be a directory, and not a link in the workspace.")
        if self._context.config.isolation == "container" and (reason := system_refusal(resolved)):
            raise InvalidRequest(
                f"wheels={os.fspath(wheels)!r} must not be mounted into containers: {reason}. Name a directory with only"
                " wheels."
            )
        return resolved

    def _read_lock(self) -> dict[str, locks.LockedPackage]:
        """Return the packages of the environment's lock by name; none for an unreadable lock."""
        with suppress(OSError, InvalidRequest):
            return {package.key: package for package in _read_lock_file(self._context.workspace_path / LOCK).packages}
        return {}

    def _write_lock(self, done: TaskResult, known_packages: dict[str, locks.LockedPackage]) -> str | None:
        """Write the environment's lock; return the path as seen by kernels, or None after a failure."""
        locked = []
        versions = done.answer.get("holds")
        for name, version in versions.items() if isinstance(versions, dict) else ():
            with suppress(ValueError):
                package = locks.LockedPackage(str(name), str(version))
                earlier = known_packages.get(package.key)
                locked.append(earlier if earlier is not None and earlier.has_version(package.version) else package)
        with suppress(OSError):
            lock = locks.PackageLock(str(done.answer.get("python"))[:20], tuple(locked))
            replace_beneath(self._context.workspace_path, LOCK, lock.to_toml())
            return self._context.to_kernel_path(self._context.workspace_path / LOCK)
        return None

    async def _activate(self, result: Installation) -> list[str]:
        """Make the installed packages available to cells; return notes about packages out of cells' reach."""
        try:
            report = await self._context.call_launcher(protocol.SERVE_PACKAGES_SOURCE, None, keeps_variables=True)
            environment = await self._inspection.environment()
        except (KernelNotAnswering, ExecutionFailed, KernelexecError) as exc:
            return [f"Python cells may not find the packages before a restart of the session: {exc}"]
        notes = packages_notes(report)
        if environment.served == "commands":
            version = environment.version
            notes.append(f"Only commands find the packages: {result.venv} has none for Python {version}, which runs cells.")
        if environment.command_prefix:
            notes.append("Commands run behind programs.prefix, which may not use this virtual environment.")
        return notes


def _read_lock_file(path: Path) -> locks.PackageLock:
    return locks.PackageLock.parse(read_regular(path, _LOCK_BYTES), str(path))


def _build_installation(done: TaskResult, installed: dict[str, locks.LockedPackage]) -> Installation:
    """Return the installation reported by pip, without a lock."""
    failure, code = done.answer.get("failure"), done.answer.get("exit_code")
    output = done.output if not isinstance(failure, str) else f"{done.output}{failure}\n"
    if done.exit_code == TIMED_OUT:
        return Installation((), "", TIMED_OUT, f"{output}The time limit was reached.\n", 0.0)
    if done.exit_code or not isinstance(code, int) or isinstance(code, bool):
        return Installation((), "", done.exit_code or 1, output, 0.0)
    return Installation(tuple(package.package for package in installed.values()), "", code, output, 0.0)


def _read_installed_packages(done: TaskResult) -> dict[str, locks.LockedPackage]:
    """Return the packages reported by pip, by name. Cells may have changed the report: malformed entries are skipped."""
    entries = done.answer.get("installed")
    packages = {}
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case [str() as name, str() as version, None | str() as digest, str() as archive]:
                with suppress(ValueError):
                    package = locks.LockedPackage(name, version, archive, (digest,) if digest else ())
                    packages[package.key] = package
    return packages


def _check_python_version(lock: locks.PackageLock | None, done: TaskResult) -> list[str]:
    """Return a note if a lock was made with another version of Python."""
    version = done.answer.get("python")
    if lock is None or not lock.python or not isinstance(version, str) or version == lock.python:
        return []
    return [f"The lock was made with Python {lock.python}, but this environment has {version[:20]}."]


def _is_directory(path: Path) -> bool:
    """Return whether a path is a directory and not a link. A build may have created a link."""
    return path.is_dir() and not path.is_symlink()
