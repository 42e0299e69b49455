"""Serving agents over a protocol: the command's part of it."""

from __future__ import annotations

import importlib.util

import anyio

from kernelexec.cli.status import SIGNAL_BASE, CommandFailed
from kernelexec.cli.surroundings import here
from kernelexec.config import Config

_MISSING = "MCP needs fastmcp, which is not installed here: pip install 'kernelexec[mcp]'."


def serve_mcp(config: Config) -> int:
    """Serve MCP over stdin and stdout; the exit status: 0 at the end of stdin, 128 and the signal's number after one.

    Raises:
        CommandFailed: fastmcp is missing, or the server failed.
    """
    here()
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp import Broken, serve  # noqa: PLC0415 - only where MCP is served

    try:
        signum = anyio.run(serve, config)
    except Broken as exc:
        raise CommandFailed(str(exc)) from exc
    return 0 if signum is None else SIGNAL_BASE + signum
