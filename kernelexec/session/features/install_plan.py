"""Where packages come from and go to: a directory of wheels, a network, a virtual environment of the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelexec.config import Config, system_refusal
from kernelexec.errors import InvalidRequest
from kernelexec.provisioning import Place
from kernelexec.provisioning.launch.one_shot import Network
from kernelexec.session.features.requirements import is_wheel

#: How long an installation may take, in seconds, unless told otherwise.
INSTALL_SECONDS = 600.0
_OWN = ".venv"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be in a virtual environment: besides what is there, or in one that is made anew."""

    requirements: tuple[str, ...] = ()
    exact: bool = False
    fresh: bool = False
    wheels: Path | None = None
    network: Network = False
    seconds: float = INSTALL_SECONDS


@dataclass(frozen=True, slots=True)
class Sources:
    """Of one session: what it is called, what it works in, and where its kernels run."""

    name: str
    workspace: Path
    config: Config
    place: Place

    def chosen(
        self, requirements: Iterable[str], wheels: str | os.PathLike[str] | None, network: object
    ) -> tuple[Path | None, Network]:
        """A directory of wheels, and a network, for an installation of these.

        Raises:
            InvalidRequest: they cannot be had, or there is neither.
        """
        own, contained = self.place.network, self.config.isolation == "container"
        match network:
            case None:
                online: Network = own if wheels is None else False
            case "bridge" | "host" if contained:
                online = network
            case bool():
                online = ("bridge" if contained else True) if network else False
            case _:
                known = "True, False, 'bridge' or 'host'" if contained else "True or False; 'bridge' is for containers"
                message = f"network={network!r:.100}: it is {known}."
                raise InvalidRequest(message)
        if not online and wheels is None and not all(map(is_wheel, requirements)):
            way = "network='bridge'" if contained else "network=True"
            message = (
                f"Session {self.name!r} has no network to install from: give a directory of wheels (wheels=...), or a network"
                f" for this installation ({way})."
            )
            raise InvalidRequest(message)
        return None if wheels is None else self._checked_directory(wheels), online

    @property
    def venv(self) -> tuple[str, ...]:
        """Where the virtual environment is in the workspace.

        Raises:
            InvalidRequest: it is elsewhere.
        """
        named = self.config.programs.venv
        if named is None:
            return (_OWN,)
        path = Path(os.path.normpath(self.place.outside(str(named))))
        if not path.is_relative_to(self.workspace) or path == self.workspace:
            message = f"programs.venv={named} is not the session's own: install there by its own pip, or leave it out."
            raise InvalidRequest(message)
        return path.relative_to(self.workspace).parts

    def path(self, path: str | os.PathLike[str]) -> Path:
        """Of what is named: as kernels see it, or as it is here, relative to the workspace."""
        return Path(os.path.normpath(self.workspace / Path(self.place.outside(path)).expanduser()))

    def within(self, path: Path | None) -> str | None:
        """A directory of the workspace as kernels see it. Its path here, which cells can change, is given to nobody."""
        return self.place.inside(str(path)) if path is not None and path.is_relative_to(self.workspace) else None

    def _checked_directory(self, wheels: object) -> Path:
        if not isinstance(wheels, str | os.PathLike):
            message = f"wheels={wheels!r:.100}: it is the path of a directory of wheels."
            raise InvalidRequest(message)
        path = self.path(wheels)
        resolved = Path(os.path.realpath(path))
        if not resolved.is_dir() or (path.is_relative_to(self.workspace) and resolved != path):
            message = f"wheels={os.fspath(wheels)!r}: it is no directory, or a link in the workspace."
            raise InvalidRequest(message)
        if self.config.isolation == "container" and (why := system_refusal(resolved)):
            message = f"wheels={os.fspath(wheels)!r} is not given to containers: {why}. Name a directory of wheels only."
            raise InvalidRequest(message)
        return resolved
