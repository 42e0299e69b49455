"""What a session's caller can have installed: packages in its virtual environment, without a cell, and told exactly."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest, KernelError, KernelexecError, KernelNotAnswering
from kernelexec.launcher import protocol
from kernelexec.provisioning.launch.one_shot import TIMED_OUT, Done, Errand, Network, copy_wheel, new_directory
from kernelexec.results import ExecutionFailed, Installation, Package, PythonEnvironment
from kernelexec.session.behind import Behind
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.features.install_plan import INSTALL_SECONDS, Sources, Wish
from kernelexec.session.features.requirements import Lock, checked, is_wheel
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.lifecycle import Life
from kernelexec.workspace.rmtree import remove_tree
from kernelexec.workspace.safe_files import read_regular, replace_beneath

#: Where a workspace keeps what its virtual environment holds.
LOCK = Path(".kernelexec", "packages.lock")
_LOCK_BYTES = 4 * 1024 * 1024
_SEPARATORS = re.compile(r"[-_.]+")


class Packages(Behind, Secrecy):
    """The part of a session that concerns its packages. Whoever derives from it gives it its life and its kernels."""

    name: str
    life: Life
    workspace: Path
    _config: Config
    _kernels: Kernels
    _runtime: Path
    _inside: Callable[[str], str]
    _have: Callable[[str, float | None], Any]
    environment: Callable[[], Any]

    async def install(
        self,
        packages: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Install packages into the session's virtual environment, made where it is missing, and have cells find them at once.

        That is ``programs.venv``, where it lies in the workspace, or ``.venv`` there. pip runs beside the kernel, in a place
        like its own, also while a cell runs; that cells import what came takes its turn like a cell. What pip refuses is a
        result, and the state is kept. ``.kernelexec/packages.lock`` of the workspace then names all that the environment holds.

        Args:
            packages: names with versions, as ``numpy>=2,<3``, and paths of wheels; one, or several.
            wheels: a directory of wheels on this machine: they are taken from there, and no index is asked unless ``network``
                is given too.
            network: True, or ``bridge`` and ``host`` in containers, for this installation only: what has a network that cells
                have not gets wheels and sees nothing of the workspace. By default it is the kernels' own.
            timeout: seconds that it may take, 600 by default.

        Raises:
            InvalidRequest, InvalidTimeout, Closed: before anything ran.
            KernelError: it could not be begun.
        """
        self.life.check_open()
        requirements = checked(packages)
        found, online = self._sources.chosen(requirements, wheels, network)
        wish = Wish(requirements, wheels=found, network=online, seconds=_budget(timeout))
        return await self._fulfilled(wish)

    async def rebuild(
        self,
        lock: str | os.PathLike[str] | None = None,
        *,
        wheels: str | os.PathLike[str] | None = None,
        network: Network | None = None,
        timeout: float | None = None,
    ) -> Installation:
        """Make the virtual environment anew, with exactly what a lock says; by default its own. The rest is as in ``install``.

        Hashes are checked where the lock has all of them. What cells have imported they keep until a restart.

        Raises:
            InvalidRequest: there is no such lock, or what ``install`` raises.
            InvalidTimeout, Closed, KernelError: see ``install``.
        """
        self.life.check_open()
        path = self.workspace / LOCK if lock is None else self._sources.path(lock)
        try:
            known = Lock.read(await anyio.to_thread.run_sync(read_regular, path, _LOCK_BYTES), str(path))
        except OSError as exc:
            message = f"{path} cannot be read ({exc.strerror or exc}): name a lock that `install` has written."
            raise InvalidRequest(message) from exc
        found, online = self._sources.chosen(known.requirements, wheels, network)
        wish = Wish(tuple(known.requirements), exact=True, fresh=True, wheels=found, network=online, seconds=_budget(timeout))
        return await self._fulfilled(wish, known)

    async def _fresh_venv(self) -> None:
        """Make the virtual environment anew; it sees what the interpreter of cells has, and holds nothing of its own.

        Raises:
            KernelError: it could not be made.
        """
        made = await self._fulfilled(Wish(fresh=True), serve=False)
        if not made.ok:
            raise KernelError(f"The virtual environment {made.venv} cannot be made anew: {made.output}")

    async def _fulfilled(self, wish: Wish, lock: Lock | None = None, *, serve: bool = True) -> Installation:
        parts, began = self._sources.venv, anyio.current_time()
        await self._caught_up()
        async with self._kernels.installing:
            done = await self._done(wish, parts)
            before = await anyio.to_thread.run_sync(self._locked)
            result = _result(done)
            result = replace(result, output=self.mask(result.output), venv=self._inside(str(self.workspace.joinpath(*parts))))
            notes = _of_version(lock, done)
            if result.ok:
                result = replace(result, lock=await anyio.to_thread.run_sync(self._write, result, done, before))
                notes += await self._served(result, before) if serve else []
            return replace(result, notes=tuple(notes), seconds=anyio.current_time() - began)

    @property
    def _sources(self) -> Sources:
        return Sources(self.name, self.workspace, self._config, self._kernels.place)

    async def _done(self, wish: Wish, parts: tuple[str, ...]) -> Done:
        """How pip ended, after wheels were fetched for it where only that may have the network."""
        place, until = self._kernels.place, anyio.current_time() + wish.seconds
        apart = wish.network is not False and wish.network is not place.network
        order = {"requirements": self._named(wish), "exact": wish.exact, "online": bool(wish.network) and not apart, "find": []}
        wheels, inside = wish.wheels, self._sources.within(wish.wheels)
        try:
            async with self._directory(wish) as fetching, self._directory(wish) as filling:
                if apart:
                    errand = Errand(fetching, {**order, "fills": False}, wish.network, wheels, wish.seconds)
                    done = await place.run(errand, self._runtime)
                    if done.exit_code or done.answer.get("exit_code") != 0 or not _is_directory(fetching / "fetched"):
                        return done
                    wheels, inside = fetching / "fetched", None
                order |= {"fills": True, "venv": parts, "fresh": wish.fresh, "find": [inside] if inside else []}
                left = max(1.0, until - anyio.current_time())
                online = False if apart else wish.network
                return await place.run(Errand(filling, order, online, None if inside else wheels, left), self._runtime)
        except OSError as exc:
            raise KernelError(f"Nothing was installed: {exc}.") from exc

    @asynccontextmanager
    async def _directory(self, wish: Wish) -> AsyncIterator[Path]:
        """A private directory with the wheels that are named by their paths."""
        path = await anyio.to_thread.run_sync(new_directory, self._runtime, self._kernels.place.user)
        try:
            for one in filter(is_wheel, wish.requirements):
                try:
                    await anyio.to_thread.run_sync(copy_wheel, self._sources.path(one), path)
                except OSError as exc:
                    raise InvalidRequest(f"The wheel {one} cannot be had: {exc}.") from exc
            yield path
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, path)

    def _named(self, wish: Wish) -> list[str]:
        """The requirements, wheels by where an errand has them."""
        return [f"../wheels/{Path(one).name}" if is_wheel(one) else one for one in wish.requirements]

    def _locked(self) -> dict[str, Package]:
        """What the environment's own lock says, by normalised names; nothing where it says nothing."""
        with suppress(OSError, InvalidRequest):
            known = Lock.read(read_regular(self.workspace / LOCK, _LOCK_BYTES), "")
            return {_normal(package.name): package for package in known.packages}
        return {}

    def _write(self, result: Installation, done: Done, before: dict[str, Package]) -> str | None:
        """Write down what the environment holds; where that file is, or None where it cannot be written."""
        known = {**before, **{_normal(package.name): package for package in result.packages}}
        holds = done.answer.get("holds")
        said = [(name, version) for name, version in (holds if isinstance(holds, dict) else {}).items()]
        packages = (Package(str(name), str(version)) for name, version in said)
        found = tuple(known[one.name] if _same(known.get(one.name), one) else one for one in packages)
        with suppress(OSError):
            replace_beneath(self.workspace, LOCK, Lock(str(done.answer.get("python"))[:20], found).written())
            return self._inside(str(self.workspace / LOCK))
        return None

    async def _served(self, result: Installation, before: dict[str, Package]) -> list[str]:
        """Have cells find what is installed; what there is to say of that."""
        notes = []
        try:
            await self._have(protocol.SERVE_PACKAGES_SOURCE, None)
            found: PythonEnvironment = await self.environment()
        except (KernelNotAnswering, ExecutionFailed, KernelexecError) as exc:
            return [f"Python cells may not find it before the session is restarted: {exc}"]
        for package in result.packages:
            imported, earlier = found.packages.get(_normal(package.name)), before.get(_normal(package.name))
            if found.served == "packages" and imported not in (None, package.version):
                notes.append(f"Only commands have {package}: the interpreter of Python cells has {imported}, which goes first.")
            elif earlier is not None and earlier.version != package.version:
                notes.append(f"{package.name} was {earlier.version}: cells that have imported it keep that until a restart.")
        if found.served == "commands":
            notes.append(f"Only commands find it: {result.venv} has no packages for Python {found.version}, which runs cells.")
        if found.command_prefix:
            notes.append("Commands run behind programs.prefix, which may not use this virtual environment.")
        return notes


def _budget(timeout: object) -> float:
    return INSTALL_SECONDS if timeout is None else seconds(timeout, "timeout")


def _result(done: Done) -> Installation:
    """From how pip ended. What makes no sense is left out: cells may have had it say so."""
    said, failure, code = done.answer.get("installed"), done.answer.get("failure"), done.answer.get("exit_code")
    output = done.said if not isinstance(failure, str) else f"{done.said}{failure}\n"
    if done.exit_code == TIMED_OUT:
        return Installation((), "", TIMED_OUT, f"{output}The time was over.\n", 0.0)
    if done.exit_code or not isinstance(code, int) or isinstance(code, bool):
        return Installation((), "", done.exit_code or 1, output, 0.0)
    packages = (_package(one) for one in (said if isinstance(said, list) else []))
    return Installation(tuple(filter(None, packages)), "", code, output, 0.0)


def _package(said: object) -> Package | None:
    with suppress(InvalidRequest):
        match said:
            case [str() as name, str() as version, None | str() as digest]:
                one = {"name": name, "version": version, "sha256": digest}
                return Lock.of({"python": "", "packages": [one]}, "").packages[0]
    return None


def _of_version(lock: Lock | None, done: Done) -> list[str]:
    """That a lock was made with another version of Python."""
    has = done.answer.get("python")
    if lock is None or not isinstance(has, str) or has == lock.python:
        return []
    return [f"The lock was made with Python {lock.python}, and this is {has[:20]}."]


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def _same(known: Package | None, found: Package) -> bool:
    return known is not None and known.version == found.version


def _is_directory(path: Path) -> bool:
    """Whether it is one itself, when nobody can change it any more: what was built may have put a link there."""
    return path.is_dir() and not path.is_symlink()
