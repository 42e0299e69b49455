"""Entries for this server in the settings of MCP clients."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidConfig, did_you_mean
from kernelexec.workspace.safe_files import read_regular, replace_file

logger = logging.getLogger("kernelexec")

#: Environment variables of the container engine's client, copied into the entry if set.
_ENGINE_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
#: Options whose values are paths, with the text allowed before and after the path.
_PATH = re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>)", re.DOTALL)
_PATHS = dict.fromkeys(
    ("--workspace", "--work-dir", "--log-dir", "--allowed-paths", "--python", "--socket", "--tokens"), _PATH
) | {
    "--context": re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>(?::r[ow])?)", re.DOTALL),
    "--config": re.compile(r"(?P<before>)(?P<path>.+?)(?P<behind>(?:#[^#]*)?)", re.DOTALL),
    "--packages-from": re.compile(r"(?P<before>)(?P<path>(?!network\Z).+?)(?P<behind>)", re.DOTALL),
    "--secret": re.compile(r"(?P<before>[^=]*=file:)(?P<path>.+?)(?P<behind>)", re.DOTALL),
}
#: The key of the servers in settings files.
_SECTION = "mcpServers"
#: The largest settings file that is changed.
_SETTINGS_BYTES = 16 * 1024 * 1024


def make_server_entry(options: Sequence[str] = (), *, cwd: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the server's entry: a program of this environment, served over stdin and stdout.

    Args:
        options: the options of `kernelexec mcp`.
        cwd: working directory of the server; by default the client's. Relative paths in the options become absolute from
            there, since some clients ignore the directory.
    """
    options = list(options) if cwd is None else _resolve_paths(options, Path(cwd).absolute())
    env = {name: os.environ[name] for name in _ENGINE_VARIABLES if os.environ.get(name)}
    # -P: clients start it where cells may write, and Python would look for modules there first
    entry: dict[str, Any] = {"type": "stdio", "command": sys.executable, "args": ["-P", "-m", "kernelexec", "mcp", *options]}
    entry |= {"env": env} if env else {}
    return entry | ({} if cwd is None else {"cwd": str(Path(cwd).absolute())})


def _resolve_paths(options: Sequence[str], base: Path) -> list[str]:
    """Return the options with relative paths made absolute from a directory."""
    anchored: list[str] = []
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        anchored.append(f"{name}={_resolve_path(name, value, base)}" if equals and name in _PATHS else word)
        if word in _PATHS:
            anchored += [_resolve_path(word, path, base) for path in islice(words, 1)]
    return anchored


def _resolve_path(name: str, value: str, base: Path) -> str:
    match = _PATHS[name].fullmatch(value)
    if match is None or (name == "--python" and os.sep not in value):  # a command on the PATH or in the image
        return value
    path = Path(match["path"])
    if name != "--config":  # --config takes its path literally
        with suppress(RuntimeError):
            path = path.expanduser()
    return f"{match['before']}{base / path}{match['behind']}"


def add_server(
    servers: MutableMapping[str, Any] | MutableSequence[Any], entry: MutableMapping[str, Any], *, name: str = "kernelexec"
) -> bool:
    """Add the server to a client's servers: a mapping by name, or a list of entries with names.

    An existing server of the same name is kept, with a warning in the log.

    Returns:
        Whether the server was added.
    """
    names = servers if isinstance(servers, MutableMapping) else [each.get("name") for each in servers if isinstance(each, dict)]
    if name in names:
        logger.warning("kernelexec.server_already_present", extra={"server": name})
        return False
    if isinstance(servers, MutableMapping):
        servers[name] = dict(entry)
    else:
        servers.append({"name": name, **entry})
    return True


@dataclass(frozen=True, slots=True)
class MCPClient:
    """MCP client: paths of the settings files with ``mcpServers``, and the form of entries there."""

    name: str
    title: str
    user: str
    """The file with the user's settings; the part in braces is a directory, see ``find_settings_path``."""
    project: str | None
    """The file with a project's settings; None if there is none."""
    has_type: bool = True
    """Whether entries have a ``type``."""
    url: str | None = "url"
    """The key of an HTTP server's address in an entry; None if the client only starts programs."""
    variable: str = "${{{}}}"
    """The form of an environment variable in a header."""


#: The supported clients.
CLIENTS = {
    client.name: client
    for client in (
        MCPClient("claude-code", "Claude Code", "{claude}/.claude.json", ".mcp.json"),
        MCPClient(
            "claude-desktop", "Claude Desktop", "{settings}/Claude/claude_desktop_config.json", None, has_type=False, url=None
        ),
        MCPClient("cursor", "Cursor", "{home}/.cursor/mcp.json", ".cursor/mcp.json", variable="${{env:{}}}"),
        MCPClient(
            "gemini", "Gemini CLI", "{home}/.gemini/settings.json", ".gemini/settings.json", has_type=False, url="httpUrl"
        ),
    )
}


def find_client(name: str) -> MCPClient:
    """Return the client with a name.

    Raises:
        InvalidConfig: the name is unknown; the message suggests the nearest name.
    """
    if name not in CLIENTS:
        raise InvalidConfig(
            f"{name!r:.50} is no client{did_you_mean(name, list(CLIENTS))}; it must be one of {', '.join(CLIENTS)}. "
            "`kernelexec mcp-config` prints the entry for any other."
        )
    return CLIENTS[name]


def find_settings_path(
    client: MCPClient, scope: str, *, platform: str, home: Path, cwd: Path, environ: Mapping[str, str]
) -> Path:
    """Return the user's settings file, or with the scope ``project`` the file in ``cwd``.

    Raises:
        InvalidConfig: the client has no file for a project.
    """
    if scope == "project":
        if client.project is None:
            raise InvalidConfig(f"{client.title} has no settings for a project; leave --scope out.")
        return cwd / client.project
    settings = {"darwin": home / "Library/Application Support", "win32": environ.get("APPDATA") or home / "AppData/Roaming"}
    directories = {
        "home": home,
        "settings": settings.get(platform) or environ.get("XDG_CONFIG_HOME") or home / ".config",
        "claude": environ.get("CLAUDE_CONFIG_DIR") or home,
    }
    return Path(client.user.format(**directories))


def make_stdio_entry(client: MCPClient, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``make_server_entry`` in the client's form. No client knows ``cwd``."""
    adapted = {name: value for name, value in entry.items() if name != "cwd" and (client.has_type or name != "type")}
    if not any(each.partition("=")[0] in ("--workspace", "--config") for each in entry["args"]):
        workspace = str(Path(entry["cwd"]) / "workspaces")  # independent of the client's directory
        adapted["args"] = [*entry["args"], "--workspace", workspace]
    return adapted


def make_http_entry(client: MCPClient, url: str, token_variable: str | None) -> dict[str, Any]:
    """Return the entry of an HTTP server; the token stays in a variable of the client's environment.

    Raises:
        InvalidConfig: the client only starts programs.
    """
    if client.url is None:
        raise InvalidConfig(f"{client.title} only starts programs; leave --url out, or add the server to its connectors.")
    entry: dict[str, Any] = ({"type": "http"} if client.has_type else {}) | {client.url: url}
    if token_variable is not None:
        entry["headers"] = {"Authorization": f"Bearer {client.variable.format(token_variable)}"}
    return entry


def render_settings(name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a settings file with this entry only."""
    return json.dumps({_SECTION: {name: dict(entry)}}, indent=2, ensure_ascii=False) + "\n"


def make_commands(client: MCPClient, scope: str, name: str, entry: Mapping[str, Any], *, exists: bool) -> list[list[str]]:
    """Return the client's own commands to add or replace the entry; empty for clients without such commands."""
    if client.name == "claude-code":
        removal = [["claude", "mcp", "remove", "--scope", scope, name]] if exists else []  # it does not replace entries
        return [*removal, ["claude", "mcp", "add-json", "--scope", scope, name, json.dumps(entry)]]
    if client.name != "gemini":
        return []
    add = ["gemini", "mcp", "add", "--scope", scope]
    if "httpUrl" in entry:
        headers = [word for key, value in entry.get("headers", {}).items() for word in ("--header", f"{key}: {value}")]
        return [[*add, "--transport", "http", *headers, name, entry["httpUrl"]]]
    variables = [word for key, value in entry.get("env", {}).items() for word in ("--env", f"{key}={value}")]
    return [[*add, *variables, name, entry["command"], "--", *entry["args"]]]


def has_server(path: Path, name: str) -> bool:
    """Return whether a settings file has a server of this name; False for an unreadable file."""
    with suppress(OSError, ValueError, AttributeError, RuntimeError):  # RuntimeError: a loop of links, or deep nesting
        servers = json.loads(read_regular(path.resolve(), _SETTINGS_BYTES).decode()).get(_SECTION)
        return isinstance(servers, dict) and name in servers
    return False


def write_entry(path: Path, name: str, entry: Mapping[str, Any], *, mode: int = 0o600) -> None:
    """Write the entry into a settings file of plain JSON, atomically; keep all other values. Links are followed.

    A new file has the permissions ``mode``; an existing file keeps its own.

    Raises:
        InvalidConfig: the file has changed meanwhile, or would lose something such as comments; it is not modified.
        OSError, RuntimeError: the file cannot be read or written.
    """
    target = path.resolve()  # replacing a link would cut it off from its file
    content = _read_settings(target)
    try:
        settings = json.loads(content.decode() if content.strip() else "{}", object_pairs_hook=_unique)
        settings.setdefault(_SECTION, {})[name] = dict(entry)
    except (ValueError, AttributeError, TypeError, RecursionError) as exc:
        raise InvalidConfig(f"it must be plain JSON with an object {_SECTION}: {exc}") from exc
    indent = re.search(rb'^([ \t]+)"', content, re.MULTILINE)
    text = json.dumps(settings, indent=indent[1].decode() if indent else 2, ensure_ascii=False) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(target.stat().st_mode)
    # Clients write their settings while they run. No lock is shared with them, so the check comes as late as possible.
    if _read_settings(target) != content:
        raise InvalidConfig("it has changed meanwhile")
    replace_file(target, text.encode(), mode=mode)


def _read_settings(path: Path) -> bytes:
    """Return a settings file's content, which is empty if there is no file."""
    with suppress(FileNotFoundError):
        return read_regular(path, _SETTINGS_BYTES)
    return b""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps only the last of equal names, so writing the file would lose the others.
    if len(members := dict(pairs)) < len(pairs):
        raise ValueError("it has a name twice")
    return members
