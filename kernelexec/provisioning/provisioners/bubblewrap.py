"""The provisioner of kernels in namespaces that bubblewrap makes; its entry point is ``kernelexec-bubblewrap``."""

from __future__ import annotations

from typing import Any

from traitlets import List, Unicode

from kernelexec.provisioning.provisioners.wrapped import WrappedKernelProvisioner


class BubblewrapKernelProvisioner(WrappedKernelProvisioner):
    """A wrapped provisioner: when bubblewrap's own process ends, so does everything in its namespaces."""

    isolation = "bubblewrap"
    arguments = List(Unicode())
    """Bubblewrap's command line, without the kernel's command."""

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        return await super()._launch([*self.arguments, "--", *cmd], kwargs)
