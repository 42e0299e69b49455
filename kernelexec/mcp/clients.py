"""Entries for this server in the settings of MCP clients."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelexec.errors import InvalidConfig, did_you_mean
from kernelexec.provisioning.platform import PLATFORM

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


def make_server_entry(options: Sequence[str] = (), *, cwd: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the server's entry: a program of this environment that uses stdin and stdout.

    Args:
        options: the options of `kernelexec mcp`.
        cwd: working directory of the server; by default the client's. Relative paths in the options become absolute from
            there, since some clients ignore the directory.
    """
    options = list(options) if cwd is None else _resolve_paths(options, Path(cwd).absolute())
    env = {name: os.environ[name] for name in _ENGINE_VARIABLES if os.environ.get(name)}
    entry: dict[str, Any] = {"type": "stdio", "command": sys.executable, "args": ["-m", "kernelexec", "mcp", *options]}
    entry |= {"env": env} if env else {}
    return entry | ({} if cwd is None else {"cwd": str(Path(cwd).absolute())})


def _resolve_paths(options: Sequence[str], base: Path) -> list[str]:
    """Return the options with relative paths made absolute from a directory."""
    anchored: list[str] = []
    before = ""
    for each in options:
        name, equals, value = each.partition("=")
        if before in _PATHS:
            anchored.append(_resolve_path(before, each, base))
        elif equals and name in _PATHS:
            anchored.append(f"{name}={_resolve_path(name, value, base)}")
        else:
            anchored.append(each)
        before = "" if before in _PATHS else each
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

    An existing server of that name is kept, and the logger warns about it.

    Returns:
        Whether it was added.
    """
    if isinstance(servers, MutableMapping):
        is_present = name in servers
    else:
        is_present = any(isinstance(server, MutableMapping) and server.get("name") == name for server in servers)
    if is_present:
        logger.warning("kernelexec.server_already_present", extra={"server": name})
    elif isinstance(servers, MutableMapping):
        servers[name] = dict(entry)
    else:
        servers.append({"name": name, **entry})
    return not is_present


@dataclass(frozen=True, slots=True)
class MCPClient:
    """One MCP client: its settings files, the form of their entries, and its command that adds an entry."""

    name: str
    title: str
    user: str
    """The file with the user's settings; the part in braces is a directory, see ``_find_directories``."""
    project: str | None
    """The file with a project's settings; None if there is none."""
    section: str = "mcpServers"
    """The key of the servers in the file."""
    has_type: bool = True
    """Whether an entry has a ``type``."""
    has_cwd: bool = False
    """Whether an entry may have the server's working directory."""
    url: str | None = "url"
    """The key of an HTTP server's address in an entry; None if the client only starts programs."""
    variable: str | None = "${{{}}}"
    """The form of an environment variable in a header; None if the entry has a key for the token's variable."""


#: The supported clients.
CLIENTS = {
    client.name: client
    for client in (
        MCPClient("claude-code", "Claude Code", "{claude}/.claude.json", ".mcp.json"),
        MCPClient(
            "claude-desktop",
            "Claude Desktop",
            "{settings}/Claude/claude_desktop_config.json",
            None,
            has_type=False,
            url=None,
        ),
        MCPClient("cursor", "Cursor", "{home}/.cursor/mcp.json", ".cursor/mcp.json", variable="${{env:{}}}"),
        MCPClient(
            "vscode",
            "VS Code",
            "{settings}/Code/User/mcp.json",
            ".vscode/mcp.json",
            section="servers",
            has_cwd=True,
            variable="${{env:{}}}",
        ),
        MCPClient(
            "codex",
            "Codex",
            "{codex}/config.toml",
            ".codex/config.toml",
            section="mcp_servers",
            has_type=False,
            variable=None,
        ),
        MCPClient(
            "gemini", "Gemini CLI", "{home}/.gemini/settings.json", ".gemini/settings.json", has_type=False, url="httpUrl"
        ),
    )
}


class UnreadableSettings(ValueError):
    """Error for a settings file that is not plain JSON or has an unexpected form."""


def find_client(name: str) -> MCPClient:
    """Return the client of that name.

    Raises:
        InvalidConfig: there is no such client; the message names the nearest.
    """
    if name not in CLIENTS:
        raise InvalidConfig(
            f"{name!r:.50} is no client{did_you_mean(name, list(CLIENTS))}; it must be one of {', '.join(CLIENTS)}."
        )
    return CLIENTS[name]


def find_settings_path(
    client: MCPClient, scope: str, *, platform: str, home: Path, cwd: Path, environ: Mapping[str, str]
) -> Path:
    """Return the settings file: the user's, or with the scope ``project`` the one in the current directory.

    Raises:
        InvalidConfig: the client has no file for a project.
    """
    if scope == "project":
        if client.project is None:
            raise InvalidConfig(f"{client.title} has no settings for a project; leave --scope out.")
        return cwd / client.project
    first, _, rest = client.user.partition("/")
    return _find_directories(platform, home, environ)[first.strip("{}")] / rest


def _find_directories(platform: str, home: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    def directory(variable: str, default: Path) -> Path:
        return Path(environ[variable]) if environ.get(variable) else default

    settings = {"darwin": home / "Library/Application Support", "win32": directory("APPDATA", home / "AppData/Roaming")}
    return {
        "home": home,
        "settings": settings.get(platform) or directory("XDG_CONFIG_HOME", home / ".config"),
        "claude": directory("CLAUDE_CONFIG_DIR", home),
        "codex": directory("CODEX_HOME", home / ".codex"),
    }


def make_stdio_entry(client: MCPClient, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``make_server_entry`` in the client's form."""
    omitted = {name for name, is_kept in (("type", client.has_type), ("cwd", client.has_cwd)) if not is_kept}
    adapted = {name: value for name, value in entry.items() if name not in omitted}
    args = entry["args"]
    if "cwd" in omitted and not any(each.partition("=")[0] in ("--workspace", "--config") for each in args):
        adapted["args"] = [
            *args,
            "--workspace",
            str(Path(entry["cwd"]) / "workspaces"),
        ]  # independent of the client's directory
    return adapted


def make_http_entry(client: MCPClient, url: str, token_variable: str | None) -> dict[str, Any]:
    """Return the entry of an HTTP server; the token stays in a variable of the client's environment.

    Raises:
        InvalidConfig: the client only starts programs.
    """
    if client.url is None:
        message = f"{client.title} only starts programs; leave --url out, or add the server to its connectors."
        raise InvalidConfig(message)
    entry: dict[str, Any] = ({"type": "http"} if client.has_type else {}) | {client.url: url}
    if token_variable is not None and client.variable is None:
        entry["bearer_token_env_var"] = token_variable
    elif token_variable is not None and client.variable is not None:
        entry["headers"] = {"Authorization": f"Bearer {client.variable.format(token_variable)}"}
    return entry


def render_settings(client: MCPClient, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a settings file with this entry only: JSON, or TOML for Codex."""
    if client.name != "codex":
        return json.dumps({client.section: {name: dict(entry)}}, indent=2, ensure_ascii=False) + "\n"
    tables = {name: {key: value for key, value in entry.items() if not isinstance(value, dict)}}
    tables |= {f"{name}.{key}": value for key, value in entry.items() if isinstance(value, dict)}
    lines = []
    for table, values in tables.items():  # JSON and TOML write strings and lists of strings alike
        lines += [f"[{client.section}.{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def make_add_command(client: MCPClient, scope: str, name: str, entry: Mapping[str, Any]) -> list[str] | None:
    """Return the client's own command that adds the entry; None if it has none for that scope."""
    variables = [word for key, value in entry.get("env", {}).items() for word in ("--env", f"{key}={value}")]
    headers = [word for key, value in entry.get("headers", {}).items() for word in ("--header", f"{key}: {value}")]
    match client.name, scope:
        case "claude-code", _:
            return ["claude", "mcp", "add-json", "--scope", scope, name, json.dumps(entry)]
        case "vscode", "user":
            return ["code", "--add-mcp", json.dumps({"name": name, **entry})]
        case "codex", "user":
            program = [*variables, "--", entry["command"], *entry["args"]] if "command" in entry else ["--url", entry["url"]]
            token = ["--bearer-token-env-var", entry["bearer_token_env_var"]] if "bearer_token_env_var" in entry else []
            return ["codex", "mcp", "add", name, *program, *token]
        case "gemini", _:
            add = ["gemini", "mcp", "add", "--scope", scope]
            if "httpUrl" in entry:
                return [*add, "--transport", "http", *headers, name, entry["httpUrl"]]
            return [*add, *variables, name, entry["command"], "--", *entry["args"]]
    return None


def make_remove_command(client: MCPClient, scope: str, name: str) -> list[str] | None:
    """Return the command that must run before a server of that name is added again; None if the client replaces it."""
    return ["claude", "mcp", "remove", "--scope", scope, name] if client.name == "claude-code" else None


def has_server(client: MCPClient, path: Path, name: str) -> bool:
    """Return whether a settings file has a server of that name; an unreadable file has none."""
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        if not path.is_file():
            return False
        text = path.read_text(encoding="utf-8")
        servers = (tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)).get(client.section)
        return isinstance(servers, dict) and name in servers
    return False


def write_entry(client: MCPClient, path: Path, name: str, entry: Mapping[str, Any], *, mode: int = 0o600) -> None:
    """Write the entry into a settings file of plain JSON, atomically; keep all other values.

    Args:
        client: the client.
        path: its file; links are followed.
        name: name of the server.
        entry: its entry.
        mode: permissions of a new file; an existing file keeps its permissions and owner.

    Raises:
        UnreadableSettings: the file has another form, such as comments, or has changed meanwhile; it is not modified.
        OSError, RuntimeError: the file cannot be read or written.
    """
    target = path.resolve()
    before = _read_content(target)
    settings = _parse_json(before if before and before.strip() else b"{}")
    servers = settings.setdefault(client.section, {})
    if not isinstance(servers, dict):
        raise UnreadableSettings(f"{client.section} must be an object")
    servers[name] = dict(entry)
    indent = re.search(rb'^([ \t]+)"', before or b"", re.MULTILINE)
    text = json.dumps(settings, indent=indent[1].decode() if indent else 2, ensure_ascii=False) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as directory:
        temporary = Path(directory) / target.name
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        if before is not None:
            shutil.copymode(target, temporary)
            if PLATFORM.has_user_ids:
                os.chown(temporary, target.stat().st_uid, target.stat().st_gid)
        if _read_content(target) != before:
            raise UnreadableSettings("it has changed meanwhile")
        temporary.replace(target)


def _read_content(path: Path) -> bytes | None:
    """Return a file's content; None if there is no file.

    Raises:
        UnreadableSettings: the path is a directory, a pipe or another special file.
        OSError: the file is unreadable or a link to itself.
    """
    if path.exists() and not path.is_file():
        raise UnreadableSettings("it must be a regular file")
    return path.read_bytes() if path.is_symlink() or path.exists() else None


def _parse_json(content: bytes) -> dict[str, Any]:
    """Return the object of a JSON text; refuse a text that would lose something when rewritten.

    Raises:
        UnreadableSettings: the text is not plain JSON, is not an object, or has duplicate names.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise UnreadableSettings("it has a name twice")
        return members

    try:
        settings = json.loads(content.decode("utf-8"), object_pairs_hook=unique)
    except UnreadableSettings:
        raise
    except (ValueError, RecursionError) as exc:
        raise UnreadableSettings(f"it must be plain JSON: {exc}") from exc
    if not isinstance(settings, dict):
        raise UnreadableSettings("it must be an object")
    return settings
