"""The MCP commands: serve, install into clients, print client settings, create tokens."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from typer.core import TyperCommand

from kernelexec.cli.options import IsolationOptions, TimeoutOption, absolute_path, not_blank, option, with_isolation_options
from kernelexec.cli.stdio import OWN_FAILURE, SIGNAL_BASE, CommandFailed, current_directory, eprint, write_text
from kernelexec.config import Config, check_seconds
from kernelexec.errors import InvalidConfig, InvalidRequest
from kernelexec.imports import import_without_collection
from kernelexec.provisioning import platform

if TYPE_CHECKING:
    from kernelexec.mcp.clients import MCPClient
    from kernelexec.mcp.http_server import HttpOptions
    from kernelexec.mcp.server_options import ServerOptions, Source

#: An option whose text must not be empty.
_text = partial(option, callback=not_blank)

install_app = typer.Typer(add_completion=False)
#: The server names that clients accept. A leading dash would be an option of their commands.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The exit status if a server already has the name.
_NAME_TAKEN = 1
#: The timeout of a client's own command, in seconds.
_CLIENT_SECONDS = 60.0


@install_app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; 1 if a server of that name exists, which is kept; {OWN_FAILURE} after any other failure.",
)
def install(
    context: typer.Context,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="claude-code, claude-desktop, cursor or gemini.")],
    name: Annotated[str, option("--name", "The server's name in the client.", "NAME")] = "kernelexec",
    scope: Annotated[
        str, option("--scope", "Install for your user, or for the project in this directory.", "user|project")
    ] = "user",
    show: Annotated[bool, option("--print", "Print the entry for the client's settings, and change nothing.")] = False,
    replace: Annotated[bool, option("--replace", "Replace an existing server of that name.")] = False,
    url: Annotated[str | None, _text("--url", "The URL of a running HTTP server, instead of a command.", "URL")] = None,
    token_env: Annotated[
        str | None, _text("--token-env", "The client's environment variable with the token.", "VARIABLE")
    ] = None,
) -> int:
    """Add this server to an MCP client with the client's own command; all other options are those of `kernelexec mcp`."""
    from kernelexec.mcp import clients

    known, options = clients.find_client(client), list(context.args)
    _check_installation(name, scope, url, token_env, options)
    if url is None:
        TyperCommand.make_context(_mcp_command(), "mcp", list(options))  # rejects unknown options of the server
        entry = clients.make_stdio_entry(known, clients.make_server_entry(options, cwd=current_directory()))
    else:
        entry = clients.make_http_entry(known, url, token_env)
    try:
        home = Path.home()
    except RuntimeError as exc:
        raise CommandFailed("This user has no home directory: set HOME.") from exc
    system, cwd = platform.PLATFORM.name, current_directory()
    path = clients.find_settings_path(known, scope, platform=system, home=home, cwd=cwd, environ=os.environ)
    if show:
        write_text(sys.stdout, clients.render_settings(name, entry))
        eprint(f"{known.title}: add this to {path}")
        return 0
    exists = clients.has_server(path, name)
    if exists and not replace:
        message = f"{path} already has a server {name!r}: use --replace to replace it, or --name for another name."
        raise CommandFailed(message, _NAME_TAKEN)
    try:
        added = _add(known, scope, name, entry, path, exists=exists)
    except CommandFailed as exc:
        write_text(sys.stdout, clients.render_settings(name, entry))
        raise CommandFailed(f"{exc} Nothing was changed; the entry for {path} is on stdout.") from exc
    eprint(f"{known.title}: {name!r} was added {added}. Restart the client if it runs.")
    return 0


def _check_installation(name: str, scope: str, url: str | None, variable: str | None, options: Sequence[str]) -> None:
    """Reject invalid and contradicting options; the message names the option."""
    from kernelexec.mcp.server_options import read_host

    if not _NAME.fullmatch(name):
        raise CommandFailed(
            f"--name {name!r:.100}: must be 1 to 64 letters, digits, dashes and underscores, and not begin with a dash."
        )
    if scope not in ("user", "project"):
        raise CommandFailed(f"--scope {scope!r:.50}: must be user or project.")
    if variable is not None and (url is None or not _VARIABLE.fullmatch(variable)):
        message = "--token-env: must be the name of an environment variable with the token, for a server at --url."
        raise CommandFailed(message)
    if url is None and "--http" in options:
        raise CommandFailed("--http: clients cannot start an HTTP server: start it yourself, and set its address with --url.")
    if url is not None and options:
        raise CommandFailed(f"{options[0]}: must not be set for a server at --url: pass it to `kernelexec mcp --http`.")
    if url is not None and read_host(url) is None:
        raise CommandFailed(f"--url {url!r:.200}: must be the server's address, as http://127.0.0.1:8000/mcp.")


def _add(client: MCPClient, scope: str, name: str, entry: Mapping[str, Any], path: Path, *, exists: bool) -> str:
    """Add the entry with the client's own command, or else to the client's settings file; return where."""
    from kernelexec.mcp import clients

    commands = clients.make_commands(client, scope, name, entry, exists=exists)
    for command in commands:
        _run_client(command)
    if commands:
        return f"with `{' '.join(commands[-1][:3])}`"
    try:
        clients.write_entry(path, name, entry, mode=0o600 if scope == "user" else 0o644)
    except (OSError, RuntimeError, InvalidConfig) as exc:  # RuntimeError: a loop of links
        raise CommandFailed(f"{path} cannot be changed: {getattr(exc, 'strerror', None) or exc}.") from exc
    return f"to {path}"


def _run_client(command: Sequence[str]) -> None:
    program, shown = shutil.which(command[0]), " ".join(command[:3])
    if program is None:
        raise CommandFailed(f"The command `{command[0]}` must be installed and on the PATH.")
    run = partial(subprocess.run, encoding="utf-8", errors="replace", check=True, timeout=_CLIENT_SECONDS)
    try:
        run([program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True)
    except subprocess.CalledProcessError as exc:
        lines = (exc.stderr or exc.stdout).strip().splitlines() or [f"exit status {exc.returncode}"]
        raise CommandFailed(f"`{shown}` failed: {lines[-1]:.300}.") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CommandFailed(f"`{shown}` failed: {exc!s:.300}.") from exc


class InstallCommand(TyperCommand):
    """A command with a subcommand: the first argument ``install`` runs ``install_app``."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401 - see there
        """Make the context of this command or of ``install``; see click's ``Command``."""
        if args[:1] == ["install"]:
            command: Any = typer.main.get_command(install_app)
            return command.make_context(f"{info_name} install", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


mcp_app = typer.Typer(add_completion=False)
#: The default idle time of kernels over HTTP, in seconds.
_IDLE_SECONDS = 3600.0


def _path(value: str | None) -> Path | None:
    return None if value is None else absolute_path(value)


@mcp_app.command(
    cls=InstallCommand,
    epilog="Exit status: 0 when the client leaves and after SIGTERM; 128 plus its number after another signal; "
    f"{OWN_FAILURE} if it cannot serve. "
    "`kernelexec mcp install CLIENT` adds the server to a client.",
)
@with_isolation_options
def mcp(
    isolation_options: IsolationOptions,
    workspace: Annotated[
        str | None, _text("--workspace", "The directory of the sessions' own directories. Default: ./workspaces.", "DIRECTORY")
    ] = None,
    timeout: TimeoutOption = None,
    http: Annotated[bool, option("--http", "Serve many clients over HTTP instead of one over stdin and stdout.")] = False,
    host: Annotated[str | None, _text("--host", "The address to listen at. Default: 127.0.0.1.", "ADDRESS")] = None,
    port: Annotated[int | None, option("--port", "The port; 0 for a free one. Default: 8000.", "N")] = None,
    socket: Annotated[str | None, _text("--socket", "Listen at a unix socket of this user instead.", "PATH")] = None,
    tokens: Annotated[
        str | None, _text("--tokens", "The file of allowed bearer tokens' hashes; see `kernelexec mcp-token`.", "FILE")
    ] = None,
    jwt_keys: Annotated[
        str | None,
        _text("--jwt-keys", "Accept signed tokens (JWT) too: the issuer's JWKS, or a public key in PEM.", "URL|FILE"),
    ] = None,
    jwt_issuer: Annotated[str | None, option("--jwt-issuer", "The required issuer of signed tokens.", "NAME")] = None,
    jwt_audience: Annotated[str | None, option("--jwt-audience", "The required audience of signed tokens.", "NAME")] = None,
    jwt_algorithm: Annotated[
        str | None, option("--jwt-algorithm", "The algorithm of signed tokens. Default: RS256.", "NAME")
    ] = None,
    public_url: Annotated[
        str | None,
        _text(
            "--public-url",
            "This server's address for clients: its name is allowed, and signed tokens' issuer announced.",
            "URL",
        ),
    ] = None,
    auth: Annotated[
        str | None,
        _text(
            "--auth",
            "An AuthProvider of fastmcp (GitHub, OIDC, ...), or a function that returns it.",
            "MODULE:NAME|FILE.py:NAME",
        ),
    ] = None,
    auth_scopes: Annotated[
        str | None,
        _text("--auth-scopes", "The rights of its users: read, execute, admin. Default: their tokens' scopes.", "SCOPE,..."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, option("--allowed-host", "A host name that clients may use for this server. Repeatable.", "NAME")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, option("--allowed-origin", "The origin of web pages that may send requests. Repeatable.", "URL")
    ] = None,
    tools: Annotated[
        str | None,
        _text(
            "--tools",
            "Tool groups besides core: files, variables, background, tests, packages; or all. Default: files,packages.",
            "GROUP,...",
        ),
    ] = None,
    packages_from: Annotated[
        str | None,
        _text(
            "--packages-from",
            "The source of packages: the network, also if cells have none, or a directory of wheels. Default: the cells'.",
            "network|DIRECTORY",
        ),
    ] = None,
    max_sessions: Annotated[
        int | None, option("--max-sessions", "Open sessions per client: the authenticated client, else the agent.", "N")
    ] = None,
    calls_per_minute: Annotated[int | None, option("--calls-per-minute", "Tool calls per minute and client.", "N")] = None,
    allow_input: Annotated[
        bool, option("--allow-input", "Let cells use input(): the client asks its user (elicitation).")
    ] = False,
    log: Annotated[str | None, _text("--log-file", "Log events to a file as JSON lines, without code.", "FILE")] = None,
    pictures: Annotated[
        str,
        _text("--pictures", "Where a model gets pictures: in answers, in files, or both. Default: both.", "inline|files|both"),
    ] = "both",
    links: Annotated[bool, option("--links", "Link to files in answers, for clients that read links.")] = False,
    keep_kernels: Annotated[
        bool, option("--keep-kernels", "Leave containers and running cells to the next server in the workspace.")
    ] = False,
    wait: Annotated[
        float | None, option("--wait", "How long a tool call blocks that does not say how long. Default: 45.", "SECONDS")
    ] = None,
    linger: Annotated[
        float | None,
        option(
            "--linger",
            "How long the sessions of an older client's silent connection live; 0 for ever. Default: 300.",
            "SECONDS",
        ),
    ] = None,
    idle: Annotated[
        float | None,
        option("--idle", "How long an unused kernel lives; 0 for ever. Default: 3600 over HTTP, else for ever.", "SECONDS"),
    ] = None,
) -> int:
    """Serve MCP: persistent sessions as tools, for one client over stdin and stdout, or with --http for many."""
    os.environ.setdefault("FASTMCP_ENV_FILE", os.devnull)  # else fastmcp reads .env where it runs, and cells may write there
    import_without_collection("kernelexec.mcp")
    from kernelexec.mcp.logs import log_to_file

    over_http = _drop_unset(
        host=host,
        port=port,
        socket=_path(socket),
        tokens=_path(tokens),
        public_url=public_url,
        hosts=tuple(allowed_host or ()),
        origins=tuple(allowed_origin or ()),
        jwt=_drop_unset(keys=jwt_keys, issuer=jwt_issuer, audience=jwt_audience, algorithm=jwt_algorithm),
        auth=_drop_unset(reference=auth, scopes=auth_scopes and tuple(auth_scopes.split(","))),
    )
    if "jwt" in over_http and None in (jwt_keys, jwt_issuer, jwt_audience):
        raise CommandFailed("signed tokens need --jwt-keys, --jwt-issuer and --jwt-audience: all three.")
    if auth_scopes is not None and auth is None:
        raise CommandFailed("--auth-scopes needs --auth.")
    if over_http and not http:
        raise CommandFailed(f"{', '.join(over_http)}: only for a server over HTTP: use --http too.")
    options: dict[str, Any] = {} if timeout is None else {"budgets": {"timeout": check_seconds(timeout, "timeout")}}
    if idle is not None:
        options["capacity"] = {"idle_seconds": check_seconds(idle, "idle") if idle else None}
    config = isolation_options.load_config(workspace=workspace, **options)
    config = _set_defaults(config, over_http=http)
    current_directory()
    _require_fastmcp()
    quotas = {"sessions": max_sessions, "calls_per_minute": calls_per_minute}
    serving: dict[str, Any] = {"allow_input": allow_input, "keep_kernels": keep_kernels, "pictures": pictures, "links": links}
    if wait is not None:
        serving["wait"] = check_seconds(wait, "wait")
    if linger is not None:
        serving["silent_seconds"] = check_seconds(linger, "linger") if linger else None
    server_options = _make_server_options(tools, packages_from, quotas, serving)
    with log_to_file(_path(log)):
        return _serve(config, _make_http_options(config, over_http) if http else None, server_options)


def _drop_unset(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    return {name: value for name, value in options.items() if value not in (None, (), {})}


def _set_defaults(config: Config, *, over_http: bool) -> Config:
    """Return the settings with a server's own defaults where a file or option sets none."""
    if "fork_server" not in config.model_fields_set:
        config = config.model_copy(update={"fork_server": "first_session"})
    if over_http and "idle_seconds" not in config.capacity.model_fields_set:
        capacity = config.capacity.model_copy(update={"idle_seconds": _IDLE_SECONDS})
        config = config.model_copy(update={"capacity": capacity})
    return config


@mcp_app.command(
    name="mcp-config",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage.",
)
def mcp_config(
    context: typer.Context,
    name: Annotated[str, _text("--name", "The server's name in clients.")] = "kernelexec",
) -> int:
    """Print the settings entry with which MCP clients start this server; all other options are those of `kernelexec mcp`."""
    from kernelexec.mcp.clients import make_server_entry, render_settings

    _mcp_command().make_context("mcp", list(context.args))  # rejects invalid options
    write_text(sys.stdout, render_settings(name, make_server_entry(context.args, cwd=current_directory())))
    return 0


@mcp_app.command(name="mcp-token", epilog=f"Exit status: 0; {OWN_FAILURE} if no token was created.")
def mcp_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent of the token: it owns all sessions of that name.")],
    tokens: Annotated[str, _text("--tokens", "The file of token hashes.", "FILE")],
    scope: Annotated[
        list[str] | None, option("--scope", "The rights of the token. Repeatable. Default: execute.", "read|execute|admin")
    ] = None,
) -> int:
    """Create a bearer token for a client of `kernelexec mcp --http`, print it, and add its hash to the file."""
    _require_fastmcp()
    from kernelexec.mcp.authentication import add_token

    token = add_token(absolute_path(tokens), name, tuple(scope or ("execute",)))
    write_text(sys.stdout, f"{token}\n")
    return 0


def _require_fastmcp() -> None:
    if importlib.util.find_spec("fastmcp") is None:
        raise CommandFailed("MCP needs fastmcp, which is not installed: pip install fastmcp.")


def _mcp_command() -> Any:  # noqa: ANN401 - typer's own kind of command
    return typer.main.get_group(mcp_app).commands["mcp"]


def _serve(config: Config, http: HttpOptions | None, options: ServerOptions) -> int:
    """Serve MCP; return exit status 0 at the end of stdin and after SIGTERM, or 128 plus the number of another signal."""
    from kernelexec.mcp import ServerFailed, serve

    run = partial(serve, config, options=options)
    if http is not None:
        from kernelexec.mcp.http_server import serve_http

        run = partial(serve_http, config, http, options=options, on_listening=partial(_print_address, http))
    try:
        signum = anyio.run(run)
    except ServerFailed as exc:
        raise CommandFailed(str(exc)) from exc
    except OSError as exc:
        if http is None:
            raise
        address = http.socket or f"{http.host}:{http.port}"
        raise CommandFailed(f"{address}: cannot listen there: {exc.strerror or exc}.") from exc
    return 0 if signum in (None, signal.SIGTERM) else SIGNAL_BASE + signum


def _print_address(http: HttpOptions, where: str) -> None:
    if http.is_open and http.socket is None:
        eprint("without --tokens every user of this machine can connect and run code with your rights, as any agent.")
    eprint(f"serving MCP at {where}")


def _make_http_options(config: Config, values: Mapping[str, Any]) -> HttpOptions:
    """Make the options of the HTTP server, and reject options by which cells or strangers could run code."""
    import_without_collection("kernelexec.mcp.http_server")
    from kernelexec.mcp.authentication import JwtOptions, OperatorProvider
    from kernelexec.mcp.http_server import HttpOptions

    _check_key_files(config, values)
    jwt = JwtOptions(**values["jwt"]) if "jwt" in values else None
    auth = OperatorProvider(**values["auth"]) if "auth" in values else None
    return HttpOptions(**{**values, "jwt": jwt, "auth": auth})


def _check_key_files(config: Config, http_options: Mapping[str, Any]) -> None:
    """Reject authentication files in a session's directory, where cells could change them."""
    named = {
        "--tokens": str(http_options.get("tokens") or ""),
        "--jwt-keys": http_options.get("jwt", {}).get("keys", ""),
        "--auth": http_options.get("auth", {}).get("reference", "").rpartition(":")[0],
    }
    shared, workspaces = config.work_dir and config.work_dir.expanduser().resolve(), config.absolute_workspace.resolve()
    for name, location in named.items():
        path = absolute_path(location).resolve()
        if not path.is_file():
            continue  # an address, a module, or a missing file that is reported later
        # A file directly in the directory of workspaces belongs to no session.
        if (shared and path.is_relative_to(shared)) or workspaces in path.parents[1:]:
            reason = "must not be in a session's directory, whose cells could change it: choose another path"
            raise InvalidRequest(f"{name} {location}: {reason}.")


def _make_server_options(
    tools: str | None, packages_from: str | None, quotas: Mapping[str, int | None], values: Mapping[str, Any]
) -> ServerOptions:
    from kernelexec.mcp.server_options import DEFAULT_GROUPS, Quotas, ServerOptions, select_toolsets

    source: Source = None
    if packages_from == "network":
        source = "network"
    elif packages_from is not None and not (source := absolute_path(packages_from)).is_dir():
        raise InvalidRequest(f"--packages-from {packages_from!r}: must be a directory of wheels, or network.")
    groups = DEFAULT_GROUPS if tools is None else select_toolsets(tools.split(","))
    return ServerOptions(groups, source, Quotas(**quotas), **values)
