"""The sources and the target of an installation: a directory of wheels, a network, a virtual environment in the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelexec.config import system_refusal
from kernelexec.errors import InvalidRequest
from kernelexec.provisioning.launch.one_shot_task import Network
from kernelexec.session.context import SessionContext
from kernelexec.session.features.requirements import is_wheel

#: The seconds that an installation may take by default.
INSTALL_SECONDS = 600.0
_DEFAULT_VENV = ".venv"


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """The requirements of one installation, into the existing or into a new virtual environment."""

    requirements: tuple[str, ...] = ()
    exact: bool = False
    fresh: bool = False
    wheels: Path | None = None
    network: Network = False
    seconds: float = INSTALL_SECONDS


class InstallPlan:
    """The checks of sources and target of one session's installations."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def check_sources(
        self, requirements: Iterable[str], wheels: str | os.PathLike[str] | None, network: object
    ) -> tuple[Path | None, Network]:
        """Return a directory of wheels, and a network, for an installation of these requirements.

        Raises:
            InvalidRequest: the directory or network is invalid, or neither is available for requirements that need one.
        """
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
                message = f"network={network!r:.100} must be {choices}."
                raise InvalidRequest(message)
        if not install_network and wheels is None and not all(map(is_wheel, requirements)):
            argument = "network='bridge'" if is_container else "network=True"
            message = (
                f"Session {context.name!r} has no network to install from: pass a directory of wheels (wheels=...), or a"
                f" network for this installation ({argument})."
            )
            raise InvalidRequest(message)
        return None if wheels is None else self._check_wheels(wheels), install_network

    @property
    def venv(self) -> tuple[str, ...]:
        """The path of the virtual environment in the workspace.

        Raises:
            InvalidRequest: the virtual environment is outside of the workspace.
        """
        context, venv = self._context, self._context.config.programs.venv
        if venv is None:
            return (_DEFAULT_VENV,)
        path = Path(os.path.normpath(context.kernels.backend.to_host_path(str(venv))))
        if not path.is_relative_to(context.workspace_path) or path == context.workspace_path:
            message = f"programs.venv={venv} is not in the session's workspace: install there with its own pip, or omit it."
            raise InvalidRequest(message)
        return path.relative_to(context.workspace_path).parts

    def resolve_path(self, path: str | os.PathLike[str]) -> Path:
        """Return a path on this machine for a path as kernels see it, or for a path relative to the workspace."""
        context = self._context
        return Path(os.path.normpath(context.workspace_path / Path(context.kernels.backend.to_host_path(path)).expanduser()))

    def map_into_workspace(self, path: Path | None) -> str | None:
        """Return a directory of the workspace as kernels see it, or None for other directories.

        Cells can change the path of such a directory on this machine, so it must not be used here.
        """
        return (
            self._context.to_kernel_path(path)
            if path is not None and path.is_relative_to(self._context.workspace_path)
            else None
        )

    def _check_wheels(self, wheels: object) -> Path:
        if not isinstance(wheels, str | os.PathLike):
            message = f"wheels={wheels!r:.100} must be the path of a directory of wheels."
            raise InvalidRequest(message)
        path = self.resolve_path(wheels)
        resolved = Path(os.path.realpath(path))
        if not resolved.is_dir() or (path.is_relative_to(self._context.workspace_path) and resolved != path):
            message = f"wheels={os.fspath(wheels)!r} must be a directory, and not a link in the workspace."
            raise InvalidRequest(message)
        if self._context.config.isolation == "container" and (reason := system_refusal(resolved)):
            message = (
                f"wheels={os.fspath(wheels)!r} must not be mounted into containers: {reason}. Name a directory with only"
                " wheels."
            )
            raise InvalidRequest(message)
        return resolved
