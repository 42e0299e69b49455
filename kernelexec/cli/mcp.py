"""The commands about the MCP server: serve, describe the server to clients, make tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import anyio
import typer

from kernelexec.cli.options import IsolationOptions, TimeoutOption, filled, with_isolation_options
from kernelexec.cli.stdio import OURSELVES, SIGNAL_BASE, CommandFailed, eprint, here, write_any
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest
from kernelexec.provisioning import platform

if TYPE_CHECKING:
    from kernelexec.mcp.clients import MCPClient
    from kernelexec.mcp.toolsets import ServerOptions, Source
from typer.core import TyperCommand

install_app = typer.Typer(add_completion=False)
_WORD = "install"
#: What clients take as a server's name; their commands would take a dash at its beginning for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The exit status where a server has the name already.
_NAME_TAKEN = 1
#: How long a client's own command may take, in seconds.
_CLIENT_SECONDS = 60.0


@install_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; 1 where a server of that name is there, which stays; {OURSELVES} where nothing could be done.",
)
def install(
    context: typer.Context,
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="claude-code, claude-desktop, cursor, vscode, codex or gemini.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the client calls the server.")] = "kernelexec",
    scope: Annotated[
        str, typer.Option("--scope", metavar="user|project", help="For all that you do, or in this directory.")
    ] = "user",
    show: Annotated[bool, typer.Option("--print", help="Print the entry for its settings, and change nothing.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a server that has the name already.")] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", callback=filled, help="A server over HTTP, instead of one that the client starts."
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env", metavar="VARIABLE", callback=filled, help="The client's variable that has the token for it."
        ),
    ] = None,
) -> int:
    """Add this server to an MCP client, by the client's own command; all other options are those of `kernelexec mcp`."""
    from kernelexec.mcp.clients import find_client, make_http_entry, make_server_entry, make_stdio_entry, render_settings

    known, options = find_client(client), list(context.args)
    _check_installation(name, scope, url, token_env, options)
    if url is None:
        TyperCommand.make_context(_mcp_command(context), "mcp", list(options))  # refuses unknown options of the server
        entry = make_stdio_entry(known, make_server_entry(options, cwd=here()))
    else:
        entry = make_http_entry(known, url, token_env)
    path, text = _settings_path(known, scope), render_settings(known, name, entry)
    if show:
        write_any(sys.stdout, text)
        eprint(f"{known.title}: this belongs into {path}")
        return 0
    try:
        return _install(known, scope, name, entry, path, replace=replace)
    except CommandFailed as exc:
        if exc.status != _NAME_TAKEN:
            write_any(sys.stdout, text)
        raise


def _check_installation(name: str, scope: str, url: str | None, variable: str | None, options: Sequence[str]) -> None:
    """Refuse options that do not fit, or not together.

    Raises:
        CommandFailed: the message names the option.
    """
    if not _NAME.fullmatch(name):
        raise CommandFailed(f"--name {name!r:.100}: it is 1 to 64 letters, digits, dashes and underscores, no dash first.")
    if scope not in ("user", "project"):
        raise CommandFailed(f"--scope {scope!r:.50}: it is user or project.")
    if variable is not None and (url is None or not _VARIABLE.fullmatch(variable)):
        message = "--token-env: it is the name of an environment variable that has the token, for a server at --url."
        raise CommandFailed(message)
    if url is None and "--http" in options:
        raise CommandFailed("--http: clients do not start such a server: start it yourself, and give its address by --url.")
    if url is not None and options:
        raise CommandFailed(f"{options[0]}: a server at --url has options of its own: give it to `kernelexec mcp --http`.")
    if url is not None and not _is_address(url):
        raise CommandFailed(f"--url {url!r:.200}: it is the server's address, as http://127.0.0.1:8000/mcp.")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _settings_path(client: MCPClient, scope: str) -> Path:
    from kernelexec.mcp.clients import find_settings_path

    try:
        home = Path.home()
    except RuntimeError as exc:
        raise CommandFailed("This user has no home directory: set HOME.") from exc
    return find_settings_path(client, scope, platform=platform.HERE.name, home=home, cwd=here(), environ=os.environ)


def _install(client: MCPClient, scope: str, name: str, entry: Mapping[str, Any], path: Path, *, replace: bool) -> int:
    """Add the entry by the client's own command, or to its settings where it has none.

    Raises:
        CommandFailed: a server has the name already, the command is missing or failed, or the file cannot be changed.
    """
    from kernelexec.mcp.clients import UnreadableSettings, has_server, make_add_command, make_remove_command, write_entry

    known = has_server(client, path, name)
    if known and not replace:
        message = f"{path} has a server {name!r}, which stays as it is: --replace replaces it, --name gives another name."
        raise CommandFailed(message, _NAME_TAKEN)
    command, manual = make_add_command(client, scope, name, entry), f"Nothing was changed; the entry for {path} is on stdout."
    if command is not None:
        removal = make_remove_command(client, scope, name) if known else None
        for each in filter(None, (removal, command)):
            _run_client(each, manual)
        eprint(f"{client.title}: {name!r} was added by `{' '.join(command[:3])}`. Restart it if it runs.")
        return 0
    if path.suffix != ".json":
        raise CommandFailed(f"{client.title} has no command for the settings of a project. {manual}")
    try:
        write_entry(client, path, name, entry, mode=0o600 if scope == "user" else 0o644)
    except (OSError, RuntimeError, UnreadableSettings) as exc:  # RuntimeError: a link that leads to itself
        message = f"{path} cannot be changed: {getattr(exc, 'strerror', None) or exc}. {manual}"
        raise CommandFailed(message) from exc
    eprint(f"{client.title}: {name!r} is in {path} now. Restart it if it runs.")
    return 0


def _run_client(command: Sequence[str], manual: str) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise CommandFailed(f"The command `{command[0]}` is not installed here, or not on the PATH. {manual}")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_CLIENT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CommandFailed(f"`{' '.join(command[:3])}` failed: {exc!s:.300}. {manual}") from exc
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise CommandFailed(f"`{' '.join(command[:3])}` failed: {lines[-1]:.300}. {manual}")


class WithInstall(TyperCommand):
    """A command without arguments, replaced by another one if its first word is ``install``."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - see there
        """See click's ``Command``."""
        if args[:1] == [_WORD]:
            command: Any = typer.main.get_command(install_app)
            return command.make_context(f"{info_name} {_WORD}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _mcp_command(context: typer.Context) -> Any:  # noqa: ANN401 - typer's own kind of command
    group: Any = context.parent.command if context.parent else None
    return group.commands["mcp"]


mcp_app = typer.Typer(add_completion=False)
#: How long kernels of many agents live that nobody uses, unless it is said otherwise.
_IDLE_SECONDS = 3600.0


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value).expanduser().absolute()


@mcp_app.command(
    cls=WithInstall,
    epilog=f"Exit status: 0 when the client leaves; 128 and its number after a signal; {OURSELVES} where it cannot serve. "
    "`kernelexec mcp install CLIENT` tells a client of it.",
)
@with_isolation_options
def mcp(
    isolation_options: IsolationOptions,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace",
            metavar="DIRECTORY",
            callback=filled,
            help="Where every session gets a directory of its own. Default: ./workspaces.",
        ),
    ] = None,
    timeout: TimeoutOption = None,
    http: Annotated[bool, typer.Option("--http", help="Serve many clients over HTTP, not one over stdin and stdout.")] = False,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", callback=filled, help="The address to listen at. Default: 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", help="The port; 0 takes a free one. Default: 8000.")
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option("--socket", metavar="PATH", callback=filled, help="Listen at a unix socket of this user's instead."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="FILE", callback=filled, help="Who may call: bearer tokens' hashes; see `kernelexec mcp-token`."
        ),
    ] = None,
    jwt_keys: Annotated[
        str | None,
        typer.Option(
            "--jwt-keys",
            metavar="URL|FILE",
            callback=filled,
            help="Let signed tokens (JWT) in too: their signer's JWKS, or a public key in PEM.",
        ),
    ] = None,
    jwt_issuer: Annotated[str | None, typer.Option("--jwt-issuer", metavar="NAME", help="Who has to have made them.")] = None,
    jwt_audience: Annotated[
        str | None, typer.Option("--jwt-audience", metavar="NAME", help="Whom they have to be for: this server.")
    ] = None,
    jwt_algorithm: Annotated[
        str | None, typer.Option("--jwt-algorithm", metavar="NAME", help="How they are signed. Default: RS256.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url",
            metavar="URL",
            callback=filled,
            help="This server's address; clients are told that the issuer has tokens.",
        ),
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            "--auth",
            metavar="MODULE:NAME|FILE.py:NAME",
            callback=filled,
            help="Who says who calls: an AuthProvider of fastmcp (GitHub, OIDC, ...), or a function that gives one.",
        ),
    ] = None,
    auth_scopes: Annotated[
        str | None,
        typer.Option(
            "--auth-scopes",
            metavar="SCOPE,...",
            callback=filled,
            help="What everybody may whom it lets in: read, execute, admin. Default: what their tokens name of these.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="A name of this server that clients may use. Repeatable."),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option("--allowed-origin", metavar="URL", help="The origin of pages that may send requests. Repeatable."),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools",
            metavar="GROUP,...",
            callback=filled,
            help="The tools to serve: core and, of variables, background, tests, packages, files, what is named. Default: all.",
        ),
    ] = None,
    packages_from: Annotated[
        str | None,
        typer.Option(
            "--packages-from",
            metavar="network|DIRECTORY",
            callback=filled,
            help="Where packages come from: the network, though cells have none, or wheels. Default: what cells reach.",
        ),
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option("--max-sessions", metavar="N", help="Open sessions of each client: who is authenticated, else the agent."),
    ] = None,
    calls_per_minute: Annotated[
        int | None, typer.Option("--calls-per-minute", metavar="N", help="Tool calls of each client.")
    ] = None,
    allow_input: Annotated[
        bool, typer.Option("--allow-input", help="Let cells ask by input(): the client is asked (elicitation).")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log-file",
            metavar="FILE",
            callback=filled,
            help="Log what happens to a file, a line of JSON each, without code.",
        ),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle",
            metavar="SECONDS",
            help="How long a kernel may live that nobody uses; 0 is for ever. Default: 3600 over HTTP, else for ever.",
        ),
    ] = None,
) -> int:
    """Serve MCP: persistent sessions as tools, for one client over stdin and stdout, or with --http for many."""
    from kernelexec.mcp.logs import log_to_file

    over_http: dict[str, Any] = {
        "host": host,
        "port": port,
        "socket": _path(socket),
        "tokens": _path(tokens),
        "hosts": tuple(allowed_host or ()),
        "origins": tuple(allowed_origin or ()),
    }
    over_http = {name: value for name, value in over_http.items() if value not in (None, ())}
    signed = {"keys": jwt_keys, "issuer": jwt_issuer, "audience": jwt_audience}
    if any(signed.values()) or jwt_algorithm or public_url:
        if None in signed.values():
            raise CommandFailed("Signed tokens need --jwt-keys, --jwt-issuer and --jwt-audience: all three.")
        more = {"algorithm": jwt_algorithm, "public_url": public_url}
        over_http["jwt"] = signed | {name: value for name, value in more.items() if value is not None}
    if auth is not None:
        over_http["auth"] = {"reference": auth, "scopes": None if auth_scopes is None else tuple(auth_scopes.split(","))}
    elif auth_scopes is not None:
        raise CommandFailed("--auth-scopes are of those whom a provider lets in: give --auth too.")
    if over_http and not http:
        raise CommandFailed(f"{', '.join(over_http)}: these are of a server over HTTP: give --http too.")
    options: dict[str, Any] = {} if timeout is None else {"budgets": {"timeout": seconds(timeout, "timeout")}}
    if idle is not None:
        options["capacity"] = {"idle_seconds": seconds(idle, "idle") if idle else None}
    config = isolation_options.config(workspace=workspace, **options)
    if http and "idle_seconds" not in config.capacity.model_fields_set:
        capacity = config.capacity.model_copy(update={"idle_seconds": _IDLE_SECONDS})
        config = config.model_copy(update={"capacity": capacity})
    offered = {
        "tools": tools,
        "packages_from": packages_from,
        "max_sessions": max_sessions,
        "calls_per_minute": calls_per_minute,
        "allow_input": allow_input,
    }
    with log_to_file(_path(log)):
        return serve_mcp_http(config, over_http, offered) if http else serve_mcp(config, offered)


@mcp_app.command(
    name="mcp-config",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; {OURSELVES} after wrong usage.",
)
def mcp_config(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", callback=filled, help="What clients call the server.")] = "kernelexec",
    registry: Annotated[
        bool, typer.Option("--registry", help="Print server.json instead, which a registry of MCP servers takes.")
    ] = False,
) -> int:
    """Print the entry that has MCP clients start this server: all other options are those of `kernelexec mcp`."""
    if registry:
        if context.args:
            raise CommandFailed(f"{context.args[0]}: --registry takes no option besides.")
        return show_publication()
    command: Any = typer.main.get_group(mcp_app).commands["mcp"]
    command.make_context("mcp", list(context.args))  # refuses what it would refuse
    return show_entry(name, context.args)


@mcp_app.command(name="mcp-token", epilog=f"Exit status: 0; {OURSELVES} where there is none.")
def mcp_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: all sessions of that name are one agent's.")],
    tokens: Annotated[str, typer.Option("--tokens", metavar="FILE", callback=filled, help="The file of tokens' hashes.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="read|execute|admin", help="What it is good for. Repeatable. Default: execute."),
    ] = None,
) -> int:
    """Make a bearer token for a client of `kernelexec mcp --http`, print it, and add its hash to the file."""
    return make_token(name, Path(tokens).expanduser().absolute(), tuple(scope or ("execute",)))


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
    from kernelexec.mcp import ServerFailed, serve

    offer = _offer(**offered)
    try:
        signum = anyio.run(partial(serve, options=offer), config)
    except ServerFailed as exc:
        raise CommandFailed(str(exc)) from exc
    return 0 if signum is None else SIGNAL_BASE + signum


def serve_mcp_http(config: Config, door: Mapping[str, Any], offered: Mapping[str, Any]) -> int:
    """Serve MCP over HTTP, with these ``HttpOptions``; the exit status: 128 and the number of the signal that ended it.

    Raises:
        CommandFailed: fastmcp is missing, it cannot listen there, or the server failed.
        InvalidRequest: see ``serve_mcp``.
    """
    here()
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp.http.authentication import JwtOptions
    from kernelexec.mcp.http.http_server import HttpOptions, serve_http
    from kernelexec.mcp.http.oauth import OperatorProvider
    from kernelexec.mcp.run import ServerFailed

    _check_reach(config, door)
    signed = JwtOptions(**door["jwt"]) if "jwt" in door else None
    auth = OperatorProvider(**door["auth"]) if "auth" in door else None
    chosen, offer = HttpOptions(**{**door, "jwt": signed, "auth": auth}), _offer(**offered)
    chosen.check()

    def told(where: str) -> None:
        if chosen.is_open and chosen.socket is None:
            eprint(
                "without --tokens everybody on this machine can connect and run code as you, whatever agent they say they are."
            )
        eprint(f"serving MCP at {where}")

    try:
        signum = anyio.run(partial(serve_http, options=offer, on_listening=told), config, chosen)
    except OSError as exc:
        address = chosen.socket or f"{chosen.host}:{chosen.port}"
        raise CommandFailed(f"{address}: it cannot listen there: {exc.strerror or exc}.") from exc
    except ServerFailed as exc:
        raise CommandFailed(str(exc)) from exc
    return 0 if signum is None else SIGNAL_BASE + signum


def _check_reach(config: Config, door: Mapping[str, Any]) -> None:
    """Refuse what says who may call, where a cell could change it: in a session's directory.

    Raises:
        InvalidRequest: such a file lies there.
    """
    named = {
        "--tokens": str(door.get("tokens") or ""),
        "--jwt-keys": door.get("jwt", {}).get("keys", ""),
        "--auth": door.get("auth", {}).get("reference", "").rpartition(":")[0],
    }
    shared, workspaces = config.work_dir and config.work_dir.expanduser().resolve(), config.workspaces.expanduser().resolve()
    for option, location in named.items():
        path = Path(location).expanduser().resolve()
        if not path.is_file():
            continue  # an address, a module, or what is told as missing
        if (shared and path.is_relative_to(shared)) or workspaces in path.parents[1:]:
            message = f"{option} {location}: it lies where a session works, whose cells could change it: choose another place."
            raise InvalidRequest(message)


def _offer(
    tools: str | None,
    packages_from: str | None,
    max_sessions: int | None,
    calls_per_minute: int | None,
    *,
    allow_input: bool,
) -> ServerOptions:
    from kernelexec.mcp.quotas import Quotas
    from kernelexec.mcp.toolsets import ALL_TOOLS, ServerOptions, select_toolsets

    source: Source = None
    if packages_from == "network":
        source = "network"
    elif packages_from is not None and not (source := Path(packages_from).expanduser().absolute()).is_dir():
        message = f"--packages-from {packages_from!r}: it is no directory of wheels. Give one, or the word network."
        raise InvalidRequest(message)
    quotas = Quotas(max_sessions, calls_per_minute)
    quotas.check()
    return ServerOptions(ALL_TOOLS.groups if tools is None else select_toolsets(tools.split(",")), source, quotas, allow_input)


def make_token(name: str, file: Path, scopes: tuple[str, ...]) -> int:
    """Print a new token, whose hash is in the file now."""
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed(_MISSING)
    from kernelexec.mcp.http.tokens import add_token

    write_any(sys.stdout, f"{add_token(file, name, scopes)}\n")
    return 0


def show_entry(name: str, options: Sequence[str]) -> int:
    """Print what a client's settings hold of the server, which runs where this command does."""
    from kernelexec.mcp.clients import add_server, make_server_entry

    servers: dict[str, object] = {}
    add_server(servers, make_server_entry(options, cwd=here()), name=name)
    write_any(sys.stdout, json.dumps({"mcpServers": servers}, indent=2) + "\n")
    return 0


def show_publication() -> int:
    """Print what a registry of MCP servers is told."""
    from kernelexec.mcp.registry import make_server_json

    write_any(sys.stdout, json.dumps(make_server_json(), indent=2) + "\n")
    return 0
