"""A kernel in namespaces that bubblewrap makes. jupyter_client calls it, by the entry point ``kernelexec-bubblewrap``."""

from __future__ import annotations

from typing import Any

from traitlets import List, Unicode

from kernelexec.provisioning.provisioners.wrapped import Provisioner as WrappedProvisioner


class Provisioner(WrappedProvisioner):
    """Bubblewrap's own process ends all in it with itself."""

    isolation = "bubblewrap"
    arguments = List(Unicode())
    """The program, and what it is to put into the namespaces."""

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        return await super()._launch([*self.arguments, "--", *cmd], kwargs)
