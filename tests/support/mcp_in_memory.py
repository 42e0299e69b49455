"""An MCP server in the process of the test, for what is the same over every transport: no process is started for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer.main
from anyio.from_thread import BlockingPortal
from fastmcp import FastMCP

from kernelexec import AsyncExecutor
from kernelexec.cli.mcp import mcp_app
from kernelexec.config import Config
from kernelexec.mcp.logs import make_observers
from kernelexec.mcp.server import make_server
from kernelexec.mcp.server_options import ServerOptions
from kernelexec.mcp.sessions import SessionService
from tests.support.command_line import LOCAL_SERVER


class InMemory:
    """A server as ``kernelexec mcp`` makes it of these options, whose paths are absolute; its caller is the only client."""

    def __init__(self, cwd: Path, *args: str, **env: str) -> None:
        self.words = [*LOCAL_SERVER, "--workspace", str(cwd / "workspaces"), *args]
        self._env = env

    @contextmanager
    def opened(self, portal: BlockingPortal) -> Iterator[FastMCP]:
        """Keep the server's executor open in the portal's event loop."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            config, options = read_options(self.words)
            with portal.wrap_async_context_manager(AsyncExecutor(config=config, hooks=make_observers())) as executor:
                sessions = SessionService(executor, options=options)
                yield portal.call(make_server, sessions)


def read_options(words: list[str]) -> tuple[Config, ServerOptions]:
    """Return what ``kernelexec mcp`` would serve with these options."""
    served = list[tuple[Config, ServerOptions]]()

    async def serve(config: Config, *, options: ServerOptions) -> None:
        served.append((config, options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelexec.mcp.serve", serve)
        assert typer.main.get_command(mcp_app)(["mcp", *words], standalone_mode=False) == 0
    [options] = served
    return options
