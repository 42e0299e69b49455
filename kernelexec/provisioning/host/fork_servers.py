"""The fork servers of one executor: one for its interpreter, or two where the environment of new kernels has changed."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import anyio

from kernelexec.config import Config
from kernelexec.provisioning.host.fork_client import ForkServer, ForkServerUnavailable
from kernelexec.provisioning.host.interpreters import choose_interpreter
from kernelexec.provisioning.host.writable_paths import find_import, search_paths, without_untrusted, writable_directories
from kernelexec.provisioning.launch.environment import kernel_environment

logger = logging.getLogger("kernelexec")

_SERVERS_MAX = 2


class ForkServers:
    """Starts fork servers when kernels are needed, and ends them."""

    def __init__(self, config: Config) -> None:
        self.failure: str | None = None
        """Why kernels are started as new processes, in a sentence; None if they are forked."""
        self.python = choose_interpreter(config)
        self._config = config
        self._modules = config.preload
        self._servers: list[ForkServer] = []
        self._starting = anyio.Lock(fast_acquire=True)
        self._preparation: anyio.CancelScope | None = None
        self.disable_if_writable(None)

    def disable_if_writable(self, workspace: str | None) -> None:
        """Stop forking if cells in that workspace could write modules that the fork server imports unconfined."""
        path = find_import(self.python, self._environment(), writable_directories(self._config, workspace))
        if path is not None and self.failure is None:
            self.failure = f"Kernels are started one by one: cells can write {path}, which a fork server would import from."

    def find_serving(self) -> ForkServer | None:
        """Return the living server whose environment is that of new kernels; None without one."""
        server = self._find_alive() if self.failure is None else None
        return server if server is not None and server.is_serving else None

    async def prepare_ahead(self, root: Path) -> None:
        """Prepare before the first session, unless cells could write the imported modules; ``cancel_preparation`` ends it."""
        if self.python != sys.executable or search_paths(self._environment()):
            return
        with anyio.CancelScope() as self._preparation:
            await self.prepare(root)

    def cancel_preparation(self) -> None:
        """Cancel the preparation before the first session."""
        if self._preparation is not None:
            self._preparation.cancel()

    async def prepare(self, root: Path) -> None:
        """Start a server if none serves; if that fails, kernels are started as new processes, and ``failure`` holds the reason.

        Its stderr goes to a file in ``root``.
        """
        async with self._starting:
            if self.failure is not None:
                await self.stop()
            elif self.find_serving() is None:
                await self._remove_ended()
                await self._start_server(root / "forkserver")

    async def stop(self) -> None:
        """End all servers."""
        while self._servers:
            await self._servers.pop().stop()

    def _environment(self) -> dict[str, str]:
        """Return the kernels' environment without paths relative to their directory: a fork server is not confined."""
        return without_untrusted(kernel_environment(self._config))

    def _find_alive(self) -> ForkServer | None:
        environ = self._environment()
        return next((server for server in self._servers if server.is_alive and server.environ == environ), None)

    async def _start_server(self, stderr: Path) -> None:
        try:
            server = self._find_alive()
            if server is None and len(self._servers) == _SERVERS_MAX:
                return
            if server is None:
                server = ForkServer(self.python, self._environment(), self._modules, stderr)
                self._servers.append(server)
            async with asyncio.timeout(self._config.budgets.start):
                await asyncio.shield(server.ready)
        except (ForkServerUnavailable, OSError, TimeoutError) as exc:
            self.failure = f"Kernels are started one by one, since none can be forked: {exc or 'the fork server is too slow'}."
            logger.info("kernelexec.fork_server_failed", extra={"reason": self.failure})
            await self.stop()

    async def _remove_ended(self) -> None:
        for server in [server for server in self._servers if not server.is_alive]:
            if server.threaded is not None:  # the next server does not import it
                self._modules = tuple(name for name in self._modules if name != server.threaded)
            self._servers.remove(server)
            await server.stop()
