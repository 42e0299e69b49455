"""Where MCP clients have their settings, and how each wants to be told of a server: values, of any system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernelexec.errors import InvalidConfig, nearest

Scope = Literal["user", "project"]


@dataclass(frozen=True, slots=True)
class Client:
    """One MCP client, as far as its settings go."""

    name: str
    title: str
    user: str
    """Its file, for all that the user does; what stands in braces is a directory, see ``_directories``."""
    project: str | None
    """Its file in a project's directory; None where it has none."""
    section: str = "mcpServers"
    """Under which name servers stand in it."""
    form: Literal["json", "toml"] = "json"
    kind: bool = True
    """Whether an entry has a ``type``."""
    directory: bool = False
    """Whether an entry may say where the server is started."""
    url: str | None = "url"
    """What an entry calls the address of a server over HTTP; None where the file has only programs."""
    variable: str | None = "${{{}}}"
    """How a header names a variable of the environment; None where that has a setting of its own."""


#: All that can be set up.
CLIENTS = {
    client.name: client
    for client in (
        Client("claude-code", "Claude Code", "{claude}/.claude.json", ".mcp.json"),
        Client("claude-desktop", "Claude Desktop", "{settings}/Claude/claude_desktop_config.json", None, kind=False, url=None),
        Client("cursor", "Cursor", "{home}/.cursor/mcp.json", ".cursor/mcp.json", variable="${{env:{}}}"),
        Client(
            "vscode",
            "VS Code",
            "{settings}/Code/User/mcp.json",
            ".vscode/mcp.json",
            section="servers",
            directory=True,
            variable="${{env:{}}}",
        ),
        Client(
            "codex",
            "Codex",
            "{codex}/config.toml",
            ".codex/config.toml",
            section="mcp_servers",
            form="toml",
            kind=False,
            directory=True,
            variable=None,
        ),
        Client(
            "gemini",
            "Gemini CLI",
            "{home}/.gemini/settings.json",
            ".gemini/settings.json",
            kind=False,
            directory=True,
            url="httpUrl",
        ),
    )
}


def client_of(name: str) -> Client:
    """The client of that name.

    Raises:
        InvalidConfig: nobody knows it.
    """
    if name not in CLIENTS:
        raise InvalidConfig(f"{name!r:.50} is no client{nearest(name, list(CLIENTS))}: it is one of {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def settings_path(client: Client, scope: Scope, *, platform: str, home: Path, here: Path, environ: Mapping[str, str]) -> Path:
    """The file that is to hold the entry.

    Args:
        client: whose.
        scope: for all of the user's work, or for that in one directory.
        platform: the system, as ``sys.platform`` calls it.
        home: the user's directory.
        here: the project's.
        environ: may say where a client has its files.

    Raises:
        InvalidConfig: the client has no file for a project.
    """
    if scope == "project":
        if client.project is None:
            raise InvalidConfig(f"{client.title} has no settings for a project: leave --scope out.")
        return here / client.project
    first, _, rest = client.user.partition("/")
    return _directories(platform, home, environ)[first.strip("{}")] / rest


def _directories(platform: str, home: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    def said(variable: str, otherwise: Path) -> Path:
        return Path(environ[variable]) if environ.get(variable) else otherwise

    settings = {"darwin": home / "Library/Application Support", "win32": said("APPDATA", home / "AppData/Roaming")}
    return {
        "home": home,
        "settings": settings.get(platform) or said("XDG_CONFIG_HOME", home / ".config"),
        "claude": said("CLAUDE_CONFIG_DIR", home),
        "codex": said("CODEX_HOME", home / ".codex"),
    }


def started(client: Client, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of ``server_entry`` as the client wants it: a program that it starts."""
    left = set() if client.kind else {"type"}
    left |= set() if client.directory else {"cwd"}
    found = {name: value for name, value in entry.items() if name not in left}
    given = entry["args"]
    if "cwd" in left and not any(each.partition("=")[0] in ("--workspace", "--config") for each in given):
        found["args"] = [*given, "--workspace", str(Path(entry["cwd"]) / "workspaces")]  # it is started wherever that may be
    return found


def reached(client: Client, url: str, variable: str | None) -> dict[str, Any]:
    """The entry of a server over HTTP; its token is in a variable of the client's environment, never in the file.

    Raises:
        InvalidConfig: the client's file has only programs.
    """
    if client.url is None:
        message = f"{client.title} starts programs only: leave --url out, or add the server among its connectors."
        raise InvalidConfig(message)
    entry: dict[str, Any] = ({"type": "http"} if client.kind else {}) | {client.url: url}
    if variable is not None and client.variable is None:
        entry["bearer_token_env_var"] = variable
    elif variable is not None and client.variable is not None:
        entry["headers"] = {"Authorization": f"Bearer {client.variable.format(variable)}"}
    return entry
