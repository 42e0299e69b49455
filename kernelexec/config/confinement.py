"""Settings of the confinement of kernels on this machine."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from kernelexec.config.types import Directory, FrozenModel, Pinned


class Confinement(FrozenModel):
    """What a kernel on this machine may do, whatever its cells say (Linux). It is a fence; the container is the wall.

    It writes in its workspace and its temporary directory only, reads neither the places where people keep secrets nor what
    other sessions have, neither signals nor looks into other processes, and is root in name only.
    """

    level: Literal["best", "required", "off"] = "best"
    """``best`` applies what this machine has, and results say what it lacks; ``required`` starts no kernel where something is
    lacking; ``off`` lets kernels do all that their user can."""
    network: bool | None = None
    """Whether kernels have the machine's network: unset means yes, but for ``bubblewrap``. Without it they connect to nothing,
    unix sockets included; in ``bubblewrap`` to nothing but themselves."""
    writable: tuple[Pinned, ...] = ()
    """Directories and files that they may write too. Links are resolved when the configuration is read."""
    hidden: tuple[Directory, ...] = ()
    """What they cannot read either. What comes to be beside it once a kernel has started, they cannot read in that kernel."""
    readable: tuple[Pinned, ...] = ()
    """What they may read though it is hidden; as ``writable``."""

    @model_validator(mode="after")
    def _needs_a_fence(self) -> Self:
        if self.level == "off" and self.network is False:
            raise ValueError("network=False needs a confinement: leave level at 'best', or make it 'required'.")
        return self
