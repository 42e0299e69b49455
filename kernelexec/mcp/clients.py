"""The server as an entry in the settings of MCP clients."""

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

from kernelexec.errors import InvalidConfig, nearest
from kernelexec.provisioning.platform import HERE

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
    """Return the server as clients take it: a program of this environment that speaks over its stdin and stdout.

    Args:
        options: the options of `kernelexec mcp`.
        cwd: the directory in which it runs; by default the client's. Paths among the options are made absolute from there,
            since some clients start their servers elsewhere all the same.
    """
    options = list(options) if cwd is None else _anchored(options, Path(cwd).absolute())
    env = {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
    entry: dict[str, Any] = {"type": "stdio", "command": sys.executable, "args": ["-m", "kernelexec", "mcp", *options]}
    entry |= {"env": env} if env else {}
    return entry | ({} if cwd is None else {"cwd": str(Path(cwd).absolute())})


def _anchored(options: Sequence[str], base: Path) -> list[str]:
    """Return the options with paths that are relative to a directory as absolute ones."""
    anchored: list[str] = []
    before = ""
    for each in options:
        name, equals, value = each.partition("=")
        if before in _PATHS:
            anchored.append(_absolute(before, each, base))
        elif equals and name in _PATHS:
            anchored.append(f"{name}={_absolute(name, value, base)}")
        else:
            anchored.append(each)
        before = "" if before in _PATHS else each
    return anchored


def _absolute(name: str, value: str, base: Path) -> str:
    parts = _PATHS[name].fullmatch(value)
    if parts is None or (name == "--python" and os.sep not in value):  # searched on the PATH, or in the image
        return value
    path = Path(parts["path"])
    if name != "--config":  # the only one that is taken literally
        with suppress(RuntimeError):
            path = path.expanduser()
    return f"{parts['before']}{base / path}{parts['behind']}"


def add_server(
    servers: MutableMapping[str, Any] | MutableSequence[Any], entry: MutableMapping[str, Any], *, name: str = "kernelexec"
) -> bool:
    """Add the server to a client's servers: a mapping by name, or a list of entries that have names.

    A server that has the name already stays as it is, and the logger warns of it.

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


@dataclass(frozen=True, slots=True)
class MCPClient:
    """One MCP client: its settings files, the form of their entries, and its own command for adding one."""

    name: str
    title: str
    user: str
    """The file with the user's settings; the part in braces is a directory, see ``_directories``."""
    project: str | None
    """The file with a project's settings; None where there is none."""
    section: str = "mcpServers"
    """The name under which the file keeps servers."""
    has_type: bool = True
    """Whether an entry has a ``type``."""
    has_cwd: bool = False
    """Whether an entry may have the directory in which the server starts."""
    url: str | None = "url"
    """The name of the address of a server over HTTP in an entry; None where a client only starts programs."""
    variable: str | None = "${{{}}}"
    """The form of an environment variable in a header; None where an entry names the token's variable by itself."""


#: The clients that can be set up.
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
    """A settings file that is not plain JSON, or has another form than expected."""


def find_client(name: str) -> MCPClient:
    """Return the client of that name.

    Raises:
        InvalidConfig: there is none; the message names the nearest.
    """
    if name not in CLIENTS:
        raise InvalidConfig(f"{name!r:.50} is no client{nearest(name, list(CLIENTS))}: it is one of {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def settings_path(client: MCPClient, scope: str, *, platform: str, home: Path, cwd: Path, environ: Mapping[str, str]) -> Path:
    """Return the file for the entry: the user's, or with the scope ``project`` the one in the current directory.

    Raises:
        InvalidConfig: the client has no file for a project.
    """
    if scope == "project":
        if client.project is None:
            raise InvalidConfig(f"{client.title} has no settings for a project: leave --scope out.")
        return cwd / client.project
    first, _, rest = client.user.partition("/")
    return _directories(platform, home, environ)[first.strip("{}")] / rest


def _directories(platform: str, home: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    def directory(variable: str, default: Path) -> Path:
        return Path(environ[variable]) if environ.get(variable) else default

    settings = {"darwin": home / "Library/Application Support", "win32": directory("APPDATA", home / "AppData/Roaming")}
    return {
        "home": home,
        "settings": settings.get(platform) or directory("XDG_CONFIG_HOME", home / ".config"),
        "claude": directory("CLAUDE_CONFIG_DIR", home),
        "codex": directory("CODEX_HOME", home / ".codex"),
    }


def stdio_entry(client: MCPClient, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``server_entry`` in the client's form: a program that it starts."""
    omitted = {name for name, kept in (("type", client.has_type), ("cwd", client.has_cwd)) if not kept}
    adapted = {name: value for name, value in entry.items() if name not in omitted}
    args = entry["args"]
    if "cwd" in omitted and not any(each.partition("=")[0] in ("--workspace", "--config") for each in args):
        adapted["args"] = [*args, "--workspace", str(Path(entry["cwd"]) / "workspaces")]  # wherever the client starts it
    return adapted


def http_entry(client: MCPClient, url: str, token_variable: str | None) -> dict[str, Any]:
    """Return the entry of a server over HTTP; its token stays in a variable of the client's environment.

    Raises:
        InvalidConfig: the client only starts programs.
    """
    if client.url is None:
        message = f"{client.title} starts programs only: leave --url out, or add the server among its connectors."
        raise InvalidConfig(message)
    entry: dict[str, Any] = ({"type": "http"} if client.has_type else {}) | {client.url: url}
    if token_variable is not None and client.variable is None:
        entry["bearer_token_env_var"] = token_variable
    elif token_variable is not None and client.variable is not None:
        entry["headers"] = {"Authorization": f"Bearer {client.variable.format(token_variable)}"}
    return entry


def render(client: MCPClient, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a settings file with only this entry: JSON, or TOML for Codex."""
    if client.name != "codex":
        return json.dumps({client.section: {name: dict(entry)}}, indent=2, ensure_ascii=False) + "\n"
    tables = {name: {key: value for key, value in entry.items() if not isinstance(value, dict)}}
    tables |= {f"{name}.{key}": value for key, value in entry.items() if isinstance(value, dict)}
    lines = []
    for table, values in tables.items():  # strings and lists of strings are written alike in JSON and TOML
        lines += [f"[{client.section}.{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def add_command(client: MCPClient, scope: str, name: str, entry: Mapping[str, Any]) -> list[str] | None:
    """Return the client's own command that adds the entry; None where the client has none for that scope."""
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


def remove_command(client: MCPClient, scope: str, name: str) -> list[str] | None:
    """Return the command that has to run before a server of that name can be added again; None where it is replaced."""
    return ["claude", "mcp", "remove", "--scope", scope, name] if client.name == "claude-code" else None


def has_server(client: MCPClient, path: Path, name: str) -> bool:
    """Return whether a settings file has a server of that name; a file that cannot be read has none."""
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        if not path.is_file():
            return False
        text = path.read_text(encoding="utf-8")
        servers = (tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)).get(client.section)
        return isinstance(servers, dict) and name in servers
    return False


def write_entry(client: MCPClient, path: Path, name: str, entry: Mapping[str, Any], *, mode: int = 0o600) -> None:
    """Put the entry into a settings file of plain JSON, whole or not at all; all other values stay.

    Args:
        client: the client.
        path: its file; a link is followed.
        name: the name of the server.
        entry: its entry.
        mode: the permissions of a file that is made; those of an existing one stay, as its owner does.

    Raises:
        UnreadableSettings: the file has another form, comments for example, or it changed meanwhile; it stays as it is.
        OSError, RuntimeError: it cannot be read or written.
    """
    target = path.resolve()
    before = _content(target)
    settings = _plain_json(before if before and before.strip() else b"{}")
    servers = settings.setdefault(client.section, {})
    if not isinstance(servers, dict):
        raise UnreadableSettings(f"{client.section}: an object is expected")
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
            if HERE.users:
                os.chown(temporary, target.stat().st_uid, target.stat().st_gid)
        if _content(target) != before:
            raise UnreadableSettings("it changed meanwhile")
        temporary.replace(target)


def _content(path: Path) -> bytes | None:
    """Return a file's content; None where there is no file.

    Raises:
        UnreadableSettings: it is a directory, a pipe or another file without a content of its own.
        OSError: it is a link that leads to itself, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise UnreadableSettings("it is no plain file")
    return path.read_bytes() if path.is_symlink() or path.exists() else None


def _plain_json(content: bytes) -> dict[str, Any]:
    """Return the object that a text in JSON has; a text whose rewriting would lose something is refused.

    Raises:
        UnreadableSettings: it is no plain JSON, no object, or has a name twice.
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
        raise UnreadableSettings(f"it is not plain JSON: {exc}") from exc
    if not isinstance(settings, dict):
        raise UnreadableSettings("an object is expected")
    return settings
