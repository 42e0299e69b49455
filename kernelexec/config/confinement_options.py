"""Settings of the confinement of kernels on this machine."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from kernelexec.config.types import Directory, FrozenModel, ResolvedPath


class Confinement(FrozenModel):
    """Confinement of kernels on this machine (Linux). It is weaker than a container.

    A confined kernel can write only in its workspace and its temporary directory. It cannot read common locations of secrets
    or other sessions' files, cannot signal or inspect other processes, and has no privileges as root.
    """

    level: Literal["best", "required", "off"] = "best"
    """``best`` applies all layers that this machine supports, and results name the missing ones; ``required`` starts no kernel
    if a layer is missing; ``off`` gives kernels all rights of their user."""
    network: bool | None = None
    """Whether kernels can use the machine's network; by default yes, except for ``bubblewrap``. Without it they cannot connect
    to anything, unix sockets included; in ``bubblewrap`` only to themselves."""
    writable: tuple[ResolvedPath, ...] = ()
    """Further directories and files that kernels may write. Links are resolved when the configuration is read."""
    hidden: tuple[Directory, ...] = ()
    """Further directories that kernels cannot read. A running kernel cannot read new entries next to them either."""
    readable: tuple[ResolvedPath, ...] = ()
    """Hidden directories and files that kernels may read; links are resolved as in ``writable``."""

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        if self.level == "off" and self.network is False:
            raise ValueError("level must be 'best' or 'required' if network=False.")
        return self
