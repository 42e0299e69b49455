"""The provisioner of kernels that a fork server forks; its entry point is ``kernelexec-fork``."""

from __future__ import annotations

import os
from typing import Any

from traitlets import Instance

from kernelexec.provisioning.host.fork_client import ForkServer, ForkServerUnavailable
from kernelexec.provisioning.provisioners.local import LocalKernelProvisioner
from kernelexec.provisioning.runtime.processes import SessionLeader


class ForkedKernelProvisioner(LocalKernelProvisioner):
    """A local provisioner whose process the ``server`` forks, or this process starts where the server cannot."""

    server = Instance(ForkServer)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        if not os.path.isdir(kwargs["cwd"]):  # noqa: ASYNC240, PTH112 - the system itself says then what is wrong
            return await super()._launch(cmd, kwargs)
        try:
            self.process = await self.server.fork(cmd[-2:], kwargs["env"], kwargs["cwd"], kwargs["stderr"])
        except ForkServerUnavailable:
            return await super()._launch(cmd, kwargs)
        self.pid = self.pgid = self.process.pid
        self._leader = SessionLeader.of(self.process.pid)
        return self.connection_info
