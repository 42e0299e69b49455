r"""The server of MCP: who is served, over what, for how long.

## Where it listens

`kernelexec mcp` speaks over stdin and stdout. `kernelexec mcp --http` listens at 127.0.0.1:8000, at `/mcp`, unless
`--host`, `--port` or `--socket PATH` say otherwise; at other addresses than loopback only with `--tokens`, `--jwt-keys` or
`--auth`. Foreign `Host` and `Origin` are refused with 403 (`--allowed-host`, `--allowed-origin`), bodies over 64 MiB with
413, and of who has no token no body is read, but forms up to 256 KiB where users of OAuth log in; `/healthz` and `/readyz`
need none. It speaks plain HTTP, and ends no connection that says nothing: where other machines connect, have a proxy before
it that speaks TLS and ends such connections. The server ends with all that it started when its client leaves, or at SIGTERM
or SIGINT.

`kernelexec mcp-config` prints the entry for clients' settings, with absolute paths and the options that it is given;
`kernelexec.mcp.clients` has it as functions, which put it into a client's mapping or list of servers and never twice.
`--tools core,files` serves groups of the tools: `core`, what concerns sessions and their cells, always; `variables`,
`background`, `tests`, `packages`, `files` as named.

## Who may call

`--tokens FILE` has a line for each client, of its token's hash; `kernelexec mcp-token` adds one. Scopes are `execute`,
`read` and `admin` (`mcp-token --scope`); taking a line out of the file ends a token at once. Tokens that an authorization
server has signed (JWT) count too: `--jwt-keys` names its JWKS or a file with its public key, `--jwt-issuer` and
`--jwt-audience` whose tokens and for whom, and with `--public-url` clients are told where tokens are had (RFC 9728).

OAuth: `--auth auth.py:provider --auth-scopes execute` takes one of fastmcp's providers (GitHub, OIDC, ...) out of a module
of yours; each of its users (`iss` and `sub`) is a client, with any program, and whomever it lets in has these scopes. The
name by which it is reached needs `--allowed-host`. The module is the server's own code: keep it where no cell can write,
and its secrets in the environment.

Without tokens everybody on this machine can connect, the code of local kernels too, and a name is only a name: agents that
must not reach each other need tokens.

## Whose a session is

That is told by the first of these that a request has, each within who is authenticated: the handle that `create_session`
gave, passed as `session`; `kernelexec/agent` in `_meta`, or the header `X-Kernelexec-Agent`; the token's name; the session
of an older client. Where none is there, tools ask for a handle. A stranger's handle is answered like one that never was.

`--max-sessions` and `--calls-per-minute` bound each client: who is authenticated, whatever agents they name, else the
agent; whoever cannot be known shares one quota. A refusal says what is in use, or when to call again.

A kernel that nobody uses for an hour ends over HTTP (`--idle SECONDS`, 0 for never): its session's next cell runs in a
new one and says what was lost. An older client's connection is kept twice as long, half an hour at least. Where
`capacity.sessions` are open, the session that lost its kernel first makes room for a new one.

## Long cells

A call blocks for `wait` seconds (45), then says `running` and an execution id: the cell goes on. While it blocks it tells
of progress every 5 s, with the newest line of output. Cancelling a call interrupts its cell, unless another call of the
same request waits for it. Over HTTP a client of the newest protocol that dies, or times out, cancels by that; an older one
that dies does not: its cell goes on, and its result can be had by `wait_execution`, from any connection, and of a
container's kernel also from the next server after a SIGKILL. A client that knows the protocol's tasks extension gets a task
for a cell of more than 0.5 s, unless its call says `wait`: only its own agent finds it, and cancelling it interrupts the
cell. A failed cell is an answer, not an MCP error: `isError` is for calls that ran nothing.

## Questions

With `--ask refused` or `--ask always` the client of a call is asked whether a cell may run (elicitation, in both eras of
the protocol); with `--allow-input` it is asked what the cell asks by `input()`, for as long as `budgets.approval` says,
which is not the cell's time. A cell that asks after its call has come back waits for the next `wait_execution`. Where
nobody can be asked `input()` is an error at once; passwords are not asked for.

## Pictures, long output, files

At most four pictures come with an answer, fitted to 1568 pixels and 500 kB, and 20,000 characters of text, head and tail;
what is cut is said with the way to it. Clients read a session's notebook, the files of its workspace and what a cell
printed as resources: `kernelexec://sessions/NAME/notebook`, `.../files/PATH`, `.../output/EXECUTION_ID`; up to 880 kB of
text as JSON has it, or 650 kB of anything else.

## Seeing what it does

`/metrics` has figures for Prometheus (cells, calls, kernels, the process); where there are tokens it needs one with the
scope `admin`. Each cell is a span of OpenTelemetry under its client's, where a provider is set, as by
`opentelemetry-instrument kernelexec mcp --http`. `--log-file FILE` has a line of JSON for each call, cell, kernel and
session: who asked, what became of it, how long it took; no code is in it. `kernelexec ps`, `logs`, `attach` and `stop`
reach a server that runs, as its user.
"""
