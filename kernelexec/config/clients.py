"""How MCP clients are told of the server: as an entry of their settings."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger("kernelexec")

#: What the engine's client goes by, where it is set.
_PASSED = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
#: Options whose values are paths, and what may stand before and behind the path in one.
_PATH = re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>)", re.DOTALL)
_PATHS = dict.fromkeys(
    ("--workspace", "--work-dir", "--log-dir", "--allowed-paths", "--python", "--socket", "--tokens"), _PATH
) | {
    "--context": re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>(?::r[ow])?)", re.DOTALL),
    "--config": re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>(?:#[^#]*)?)", re.DOTALL),
    "--packages-from": re.compile(r"(?P<before>)(?P<path>(?!network\Z).+?)(?P<behind>)", re.DOTALL),
    "--secret": re.compile(r"(?P<before>[^=]*=file:)(?P<path>.+?)(?P<behind>)", re.DOTALL),
}


def server_entry(options: Sequence[str] = (), *, cwd: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The server as clients take it: a program of this environment that speaks over its stdin and stdout.

    Args:
        options: what `kernelexec mcp` is given.
        cwd: where it runs; by default where the client does. Paths among the options are made absolute from there, since
            there are clients that start their servers elsewhere all the same.
    """
    options = list(options) if cwd is None else _anchored(options, Path(cwd).absolute())
    env = {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
    entry: dict[str, Any] = {"type": "stdio", "command": sys.executable, "args": ["-m", "kernelexec", "mcp", *options]}
    entry |= {"env": env} if env else {}
    return entry | ({} if cwd is None else {"cwd": str(Path(cwd).absolute())})


def _anchored(options: Sequence[str], base: Path) -> list[str]:
    """The options, with paths that are relative to a directory as absolute ones."""
    found: list[str] = []
    before = ""
    for each in options:
        name, equals, value = each.partition("=")
        if before in _PATHS:
            found.append(_absolute(before, each, base))
        elif equals and name in _PATHS:
            found.append(f"{name}={_absolute(name, value, base)}")
        else:
            found.append(each)
        before = "" if before in _PATHS else each
    return found


def _absolute(name: str, value: str, base: Path) -> str:
    parts = _PATHS[name].fullmatch(value)
    if parts is None or (name == "--python" and os.sep not in value):  # that is found on the PATH, or in the image
        return value
    path = Path(parts["path"])
    if name != "--config":  # which alone is taken as it stands
        with suppress(RuntimeError):
            path = path.expanduser()
    return f"{parts['before']}{base / path}{parts['behind']}"


def add_server(
    servers: MutableMapping[str, Any] | MutableSequence[Any], entry: MutableMapping[str, Any], *, name: str = "kernelexec"
) -> bool:
    """Put the server among a client's, which are a mapping by name, or a list of entries that have names.

    One that has the name already stays as it is, and the logger warns of it.

    Returns:
        Whether it was added.
    """
    if isinstance(servers, MutableMapping):
        known = name in servers
    else:
        known = any(isinstance(server, MutableMapping) and server.get("name") == name for server in servers)
    if known:
        logger.warning("kernelexec.server_known", extra={"server": name})
    elif isinstance(servers, MutableMapping):
        servers[name] = dict(entry)
    else:
        servers.append({"name": name, **entry})
    return not known
