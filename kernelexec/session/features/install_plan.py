"""The sources and the target of an installation: a directory of wheels, a network, a virtual environment of the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelexec.config import system_refusal
from kernelexec.errors import InvalidRequest
from kernelexec.provisioning.launch.one_shot import Network
from kernelexec.session.context import SessionContext
from kernelexec.session.features.requirements import is_wheel

#: The seconds that an installation may take by default.
INSTALL_SECONDS = 600.0
_OWN = ".venv"


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Requirements to install: besides the packages that a virtual environment has, or in one that is made anew."""

    requirements: tuple[str, ...] = ()
    exact: bool = False
    fresh: bool = False
    wheels: Path | None = None
    network: Network = False
    seconds: float = INSTALL_SECONDS


class InstallPlan:
    """Checks from where and to where packages of one session are installed."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def sources(
        self, requirements: Iterable[str], wheels: str | os.PathLike[str] | None, network: object
    ) -> tuple[Path | None, Network]:
        """Return a directory of wheels, and a network, for an installation of these requirements.

        Raises:
            InvalidRequest: there is no such directory or network, or neither can provide them.
        """
        context = self._context
        own, contained = context.kernels.place.network, context.config.isolation == "container"
        match network:
            case None:
                online: Network = own if wheels is None else False
            case "bridge" | "host" if contained:
                online = network
            case bool():
                online = ("bridge" if contained else True) if network else False
            case _:
                known = "True, False, 'bridge' or 'host'" if contained else "True or False; 'bridge' is for containers"
                message = f"network={network!r:.100} must be {known}."
                raise InvalidRequest(message)
        if not online and wheels is None and not all(map(is_wheel, requirements)):
            argument = "network='bridge'" if contained else "network=True"
            message = (
                f"Session {context.name!r} has no network to install from: give a directory of wheels (wheels=...), or a"
                f" network for this installation ({argument})."
            )
            raise InvalidRequest(message)
        return None if wheels is None else self._checked_directory(wheels), online

    @property
    def venv(self) -> tuple[str, ...]:
        """The path of the virtual environment in the workspace.

        Raises:
            InvalidRequest: it is elsewhere.
        """
        context, venv = self._context, self._context.config.programs.venv
        if venv is None:
            return (_OWN,)
        path = Path(os.path.normpath(context.kernels.place.outside(str(venv))))
        if not path.is_relative_to(context.workspace) or path == context.workspace:
            message = f"programs.venv={venv} is not the session's own: install there by its own pip, or leave it out."
            raise InvalidRequest(message)
        return path.relative_to(context.workspace).parts

    def path(self, path: str | os.PathLike[str]) -> Path:
        """Return a path of this machine: of one as kernels see it, or as it is here, relative to the workspace."""
        context = self._context
        return Path(os.path.normpath(context.workspace / Path(context.kernels.place.outside(path)).expanduser()))

    def within(self, path: Path | None) -> str | None:
        """Return a directory of the workspace as kernels see it, None for others. Cells can change its path here."""
        return self._context.inside(path) if path is not None and path.is_relative_to(self._context.workspace) else None

    def _checked_directory(self, wheels: object) -> Path:
        if not isinstance(wheels, str | os.PathLike):
            message = f"wheels={wheels!r:.100} must be the path of a directory of wheels."
            raise InvalidRequest(message)
        path = self.path(wheels)
        resolved = Path(os.path.realpath(path))
        if not resolved.is_dir() or (path.is_relative_to(self._context.workspace) and resolved != path):
            message = f"wheels={os.fspath(wheels)!r} is no directory, or a link in the workspace."
            raise InvalidRequest(message)
        if self._context.config.isolation == "container" and (reason := system_refusal(resolved)):
            message = f"wheels={os.fspath(wheels)!r} is not given to containers: {reason}. Name a directory of wheels only."
            raise InvalidRequest(message)
        return resolved
