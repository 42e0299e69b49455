"""The commands that serve agents, and their options; what they do is in ``serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelexec.cli.install import WithInstall
from kernelexec.cli.options import Place, TimeoutOption, filled, placed
from kernelexec.cli.status import OURSELVES, CommandFailed
from kernelexec.config import seconds

servers_app = typer.Typer(add_completion=False)
#: How long kernels of many agents live that nobody uses, unless it is said otherwise.
_IDLE_SECONDS = 3600.0


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given).expanduser().absolute()


@servers_app.command(
    cls=WithInstall,
    epilog=f"Exit status: 0 when the client leaves; 128 and its number after a signal; {OURSELVES} where it cannot serve. "
    "`kernelexec mcp install CLIENT` tells a client of it.",
)
@placed
def mcp(
    place: Place,
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
    http: Annotated[  # noqa: FBT002 - typer's options are booleans
        bool, typer.Option("--http", help="Serve many clients over HTTP, not one over stdin and stdout.")
    ] = False,
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
    allow_input: Annotated[  # noqa: FBT002 - typer's options are booleans
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
    from kernelexec.cli.serve import serve_mcp, serve_mcp_http  # noqa: PLC0415 - see run
    from kernelexec.mcp.logs import logged_to  # noqa: PLC0415 - as above

    over_http: dict[str, Any] = {
        "host": host,
        "port": port,
        "socket": _path(socket),
        "tokens": _path(tokens),
        "hosts": tuple(allowed_host or ()),
        "origins": tuple(allowed_origin or ()),
    }
    over_http = {name: said for name, said in over_http.items() if said not in (None, ())}
    signed = {"keys": jwt_keys, "issuer": jwt_issuer, "audience": jwt_audience}
    if any(signed.values()) or jwt_algorithm or public_url:
        if None in signed.values():
            raise CommandFailed("Signed tokens need --jwt-keys, --jwt-issuer and --jwt-audience: all three.")
        more = {"algorithm": jwt_algorithm, "public_url": public_url}
        over_http["signed"] = signed | {name: said for name, said in more.items() if said is not None}
    if auth is not None:
        over_http["auth"] = {"place": auth, "scopes": None if auth_scopes is None else tuple(auth_scopes.split(","))}
    elif auth_scopes is not None:
        raise CommandFailed("--auth-scopes are of those whom a provider lets in: give --auth too.")
    if over_http and not http:
        raise CommandFailed(f"{', '.join(over_http)}: these are of a server over HTTP: give --http too.")
    options: dict[str, Any] = {} if timeout is None else {"budgets": {"timeout": seconds(timeout, "timeout")}}
    if idle is not None:
        options["capacity"] = {"idle_seconds": seconds(idle, "idle") if idle else None}
    config = place.config(workspace=workspace, **options)
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
    with logged_to(_path(log)):
        return serve_mcp_http(config, over_http, offered) if http else serve_mcp(config, offered)


@servers_app.command(
    name="mcp-config",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=f"Exit status: 0; {OURSELVES} after wrong usage.",
)
def mcp_config(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", callback=filled, help="What clients call the server.")] = "kernelexec",
    registry: Annotated[  # noqa: FBT002 - typer's options are booleans
        bool, typer.Option("--registry", help="Print server.json instead, which a registry of MCP servers takes.")
    ] = False,
) -> int:
    """Print the entry that has MCP clients start this server: all other options are those of `kernelexec mcp`."""
    from kernelexec.cli.serve import show_entry, show_publication  # noqa: PLC0415 - see run

    if registry:
        if context.args:
            raise CommandFailed(f"{context.args[0]}: --registry takes no option besides.")
        return show_publication()
    command: Any = typer.main.get_group(servers_app).commands["mcp"]
    command.make_context("mcp", list(context.args))  # refuses what it would refuse
    return show_entry(name, context.args)


@servers_app.command(name="mcp-token", epilog=f"Exit status: 0; {OURSELVES} where there is none.")
def mcp_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: all sessions of that name are one agent's.")],
    tokens: Annotated[str, typer.Option("--tokens", metavar="FILE", callback=filled, help="The file of tokens' hashes.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="read|execute|admin", help="What it is good for. Repeatable. Default: execute."),
    ] = None,
) -> int:
    """Make a bearer token for a client of `kernelexec mcp --http`, print it, and add its hash to the file."""
    from kernelexec.cli.serve import make_token  # noqa: PLC0415 - see run

    return make_token(name, Path(tokens).expanduser().absolute(), tuple(scope or ("execute",)))
