"""Serving agents over a protocol: the command's part of it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from kernelexec.cli.status import SIGNAL_BASE, CommandFailed
from kernelexec.cli.surroundings import here, say, write_any
from kernelexec.config import Config
from kernelexec.config.clients import add_server, server_entry
from kernelexec.config.publication import server_json
from kernelexec.errors import InvalidRequest

if TYPE_CHECKING:
    from kernelexec.mcp.toolsets import Offer, Source

_MISSING = "MCP needs fastmcp, which is not installed here: pip install 'kernelexec[mcp]'."


def serve_mcp(config: Config, offered: Mapping[str, Any]) -> int:
    """Serve MCP over stdin and stdout; the exit status: 0 at the end of stdin, 128 and the signal's number after one.

    Raises:
        CommandFailed: fastmcp is missing, or the server failed.
        InvalidRequest: there is no such group of tools, or no such directory.
    """
    here()
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp import Broken, serve  # noqa: PLC0415 - only where MCP is served

    offer = _offer(**offered)
    try:
        signum = anyio.run(partial(serve, offer=offer), config)
    except Broken as exc:
        raise CommandFailed(str(exc)) from exc
    return 0 if signum is None else SIGNAL_BASE + signum


def serve_mcp_http(config: Config, door: Mapping[str, Any], offered: Mapping[str, Any]) -> int:
    """Serve MCP over HTTP, with these options of ``Door``; the exit status: 128 and the number of the signal that ended it.

    Raises:
        CommandFailed: fastmcp is missing, it cannot listen there, or the server failed.
        InvalidRequest: see ``serve_mcp``.
    """
    here()
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp.http.app import Door, serve_http  # noqa: PLC0415 - only where MCP is served
    from kernelexec.mcp.http.authentication import Signed  # noqa: PLC0415 - the same
    from kernelexec.mcp.http.oauth import Provided  # noqa: PLC0415 - the same
    from kernelexec.mcp.run import Broken  # noqa: PLC0415 - the same

    _check_reach(config, door)
    signed = Signed(**door["signed"]) if "signed" in door else None
    auth = Provided(**door["auth"]) if "auth" in door else None
    chosen, offer = Door(**{**door, "signed": signed, "auth": auth}), _offer(**offered)
    chosen.check()

    def told(where: str) -> None:
        if chosen.open and chosen.socket is None:
            say("without --tokens everybody on this machine can connect and run code as you, whatever agent they say they are.")
        say(f"serving MCP at {where}")

    try:
        signum = anyio.run(partial(serve_http, offer=offer, told=told), config, chosen)
    except OSError as exc:
        place = chosen.socket or f"{chosen.host}:{chosen.port}"
        raise CommandFailed(f"{place}: it cannot listen there: {exc.strerror or exc}.") from exc
    except Broken as exc:
        raise CommandFailed(str(exc)) from exc
    return 0 if signum is None else SIGNAL_BASE + signum


def _check_reach(config: Config, door: Mapping[str, Any]) -> None:
    """Refuse what says who may call, where a cell could change it: in a session's directory.

    Raises:
        InvalidRequest: such a file lies there.
    """
    named = {
        "--tokens": str(door.get("tokens") or ""),
        "--jwt-keys": door.get("signed", {}).get("keys", ""),
        "--auth": door.get("auth", {}).get("place", "").rpartition(":")[0],
    }
    shared, workspaces = config.work_dir and config.work_dir.expanduser().resolve(), config.workspaces.expanduser().resolve()
    for option, place in named.items():
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            continue  # an address, a module, or what is told as missing
        if (shared and path.is_relative_to(shared)) or workspaces in path.parents[1:]:
            message = f"{option} {place}: it lies where a session works, whose cells could change it: choose another place."
            raise InvalidRequest(message)


def _offer(
    tools: str | None,
    packages_from: str | None,
    max_sessions: int | None,
    calls_per_minute: int | None,
    *,
    allow_input: bool,
) -> Offer:
    from kernelexec.mcp.quotas import Quotas  # noqa: PLC0415 - as above
    from kernelexec.mcp.toolsets import EVERYTHING, Offer, chosen  # noqa: PLC0415 - only where MCP is served

    source: Source = None
    if packages_from == "network":
        source = "network"
    elif packages_from is not None and not (source := Path(packages_from).expanduser().absolute()).is_dir():
        message = f"--packages-from {packages_from!r}: it is no directory of wheels. Give one, or the word network."
        raise InvalidRequest(message)
    quotas = Quotas(max_sessions, calls_per_minute)
    quotas.check()
    return Offer(EVERYTHING.groups if tools is None else chosen(tools.split(",")), source, quotas, allow_input)


def make_token(name: str, file: Path, scopes: tuple[str, ...]) -> int:
    """Print a new token, whose hash is in the file now."""
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp.http.tokens import add_token  # noqa: PLC0415 - as above

    write_any(sys.stdout, f"{add_token(file, name, scopes)}\n")
    return 0


def show_entry(name: str, options: Sequence[str]) -> int:
    """Print what a client's settings hold of the server, which runs where this command does."""
    servers: dict[str, object] = {}
    add_server(servers, server_entry(options, cwd=here()), name=name)
    write_any(sys.stdout, json.dumps({"mcpServers": servers}, indent=2) + "\n")
    return 0


def show_publication() -> int:
    """Print what a registry of MCP servers is told."""
    write_any(sys.stdout, json.dumps(server_json(), indent=2) + "\n")
    return 0
