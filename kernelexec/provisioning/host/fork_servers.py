"""The fork servers of one executor: one for its interpreter, or two where the environment of new kernels has changed."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import anyio

from kernelexec.config import Config
from kernelexec.provisioning.host.fork_client import ForkServer, NoForkServer
from kernelexec.provisioning.host.interpreters import interpreter
from kernelexec.provisioning.host.writable_paths import imported_by, loaded_from, unloaded, written
from kernelexec.provisioning.launch.environment import environment_of

logger = logging.getLogger("kernelexec")

_MOST = 2


class Forks:
    """Starts fork servers when kernels are needed, and ends them."""

    def __init__(self, config: Config) -> None:
        self.failure: str | None = None
        """Why kernels are started as new processes, in a sentence; None if they are forked."""
        self.python = interpreter(config)
        self._config = config
        self._modules = config.preload
        self._servers: list[ForkServer] = []
        self._starting = anyio.Lock(fast_acquire=True)
        self._ahead: anyio.CancelScope | None = None
        self.mind(None)

    def mind(self, workspace: str | None) -> None:
        """Stop forking if cells in that workspace could write modules that the fork server imports unconfined."""
        path = imported_by(self.python, self._environ(), written(self._config, workspace))
        if path is not None and self.failure is None:
            self.failure = f"Kernels are started one by one: cells can write {path}, which a fork server would import from."

    def serving(self) -> ForkServer | None:
        """Return the living server whose environment is that of new kernels; None without one."""
        server = self._living() if self.failure is None else None
        return server if server is not None and server.serving else None

    async def begin(self, root: Path) -> None:
        """Prepare before the first session, unless cells could write the imported modules; ``ask_end`` cancels it."""
        if self.python != sys.executable or loaded_from(self._environ()):
            return
        with anyio.CancelScope() as self._ahead:
            await self.prepare(root)

    def ask_end(self) -> None:
        """Cancel the preparation that no session has asked for."""
        if self._ahead is not None:
            self._ahead.cancel()

    async def prepare(self, root: Path) -> None:
        """Have a server that serves; if that fails, kernels are started as new processes, and ``failure`` holds the reason.

        Its stderr goes to a file in ``root``.
        """
        async with self._starting:
            if self.failure is not None:
                await self.end()
            elif self.serving() is None:
                await self._drop_dead()
                await self._await(root / "forkserver")

    async def end(self) -> None:
        """End all servers."""
        while self._servers:
            await self._servers.pop().stop()

    def _environ(self) -> dict[str, str]:
        """Return the kernels' environment without paths relative to their directory: a fork server is not confined."""
        return unloaded(environment_of(self._config))

    def _living(self) -> ForkServer | None:
        environ = self._environ()
        return next((server for server in self._servers if server.alive and server.environ == environ), None)

    async def _await(self, stderr: Path) -> None:
        try:
            server = self._living()
            if server is None and len(self._servers) == _MOST:
                return
            if server is None:
                server = ForkServer(self.python, self._environ(), self._modules, stderr)
                self._servers.append(server)
            async with asyncio.timeout(self._config.budgets.start):
                await asyncio.shield(server.serves)
        except (NoForkServer, OSError, TimeoutError) as exc:
            self.failure = f"Kernels are started one by one, since none can be forked: {exc or 'the fork server is too slow'}."
            logger.info("kernelexec.no_fork_server", extra={"why": self.failure})
            await self.end()

    async def _drop_dead(self) -> None:
        for server in [server for server in self._servers if not server.alive]:
            if server.threaded is not None:  # the next server does not import it
                self._modules = tuple(name for name in self._modules if name != server.threaded)
            self._servers.remove(server)
            await server.stop()
