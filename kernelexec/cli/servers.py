"""Commands to running servers: list sessions, show their journals, run cells, stop sessions and servers."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelexec.cli.console import show_table
from kernelexec.cli.options import not_blank
from kernelexec.cli.sessions import select_session, show_journal
from kernelexec.cli.stdio import OWN_FAILURE, CommandFailed, eprint, write_text
from kernelexec.cli.terminal.text_filter import RESET, TerminalFilter, TerminalStream
from kernelexec.errors import InvalidRequest, UnknownSession
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY, LiveSession, list_live_roots, list_live_sessions
from kernelexec.provisioning.runtime.locations import runtime_bases
from kernelexec.untrusted_text import escape_line

server_app = typer.Typer(add_completion=False)
_STATUS = f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a process that accepts no commands."
_ANSWER_SECONDS, _FOLLOW_SECONDS = 30.0, 0.5
_KEY_BYTES = 200
#: Requests that a server answers immediately, unless it is stopped or hangs.
_QUICK_REQUESTS = ("look", "stop", "restart")


NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", callback=not_blank, help="The session, as NAME or NAME@PROCESS. Default: the only one."),
]


@server_app.command(epilog=_STATUS)
def ps(as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False) -> int:
    """Show the state of your sessions on this machine, and servers without sessions."""
    rows: list[dict[str, Any]] = []
    known = list_live_sessions(runtime_bases())
    for root, pid in list_live_roots(runtime_bases()):
        answer, mine = _read_sessions(root), [session for session in known if session.root == root]
        states = {row["name"]: row for row in answer or ()}
        for session in mine:
            row = states.get(session.name, {})
            state = "" if not row else "busy" if row["busy"] else "idle"
            cells, client = row.get("running", []), row.get("client", "")
            rows.append(_row(session.name, pid, state, cells, session.epoch, session.workspace, client))
        if not mine and answer is not None:
            rows.append(_row("", pid, "no session", [], 0, ""))
    if as_json:
        write_text(sys.stdout, json.dumps(rows) + "\n")
        return 0
    shown = [[str(len(answer) if isinstance(answer, list) else answer) for answer in row.values()] for row in rows]
    show_table(("session", "process", "state", "cells", "epoch", "workspace", "client"), shown)
    return 0


@server_app.command(epilog=_STATUS)
def logs(
    name: NameArgument = None,
    last: Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=1, help="Only the newest N rows.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they are written, as JSON.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the journal's own lines.")] = False,
) -> int:
    """Show the journal of an open session by its name; `log` also shows journals of closed sessions."""
    session = select_session(name, list_live_sessions(runtime_bases()))
    if session.journal is None or not session.journal.is_file():
        raise CommandFailed(f"Session {session.name!r} has no journal.")
    journal = session.journal
    status = show_journal(str(journal), workspace=Path(session.workspace), last=last, as_json=as_json)
    if follow:
        _follow(session, journal)
    return status


@server_app.command(epilog=_STATUS)
def attach(name: NameArgument = None) -> int:
    """Run cells, one per line, in a session of a running server, in turn with its agent's cells; Ctrl+D leaves."""
    session = select_session(name, list_live_sessions(runtime_bases()))
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    eprint(f"session {session.name} of process {session.pid}: each line is one cell; Ctrl+D leaves, the session stays open")
    while True:
        try:
            line = input(f"{escape_line(session.name)}> ") if at_terminal else next(iter(sys.stdin.readline, ""))
        except (EOFError, StopIteration):
            return 0
        if line.strip():
            _run_cell(session, line)


@server_app.command(epilog=_STATUS)
def stop(
    name: NameArgument = None,
    cell: Annotated[bool, typer.Option("--cell", help="Only interrupt the running cell.")] = False,
    process: Annotated[int | None, typer.Option("--process", metavar="PID", help="End this whole server instead.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --process: leave its containers and cells to the next server.")
    ] = False,
) -> int:
    """Close a session of a running server, interrupt its cell, or stop the server."""
    if process is not None:
        if name is not None or cell:
            raise InvalidRequest("--process stops a whole server: it must not be combined with a session or --cell.")
        roots = [root for root, pid in list_live_roots(runtime_bases()) if pid == process and (root / CONTROL).exists()]
        if not roots:
            raise UnknownSession(f"No server of yours is process {process}: `kernelexec ps` shows them.")
        next(_send_request(roots[0], do="restart" if restart else "stop"))
        eprint(f"process {process} ends{', its kernels wait for the next server' * restart}")
        return 0
    if restart:
        raise InvalidRequest("--restart needs --process: it ends a whole server.")
    session = select_session(name, list_live_sessions(runtime_bases()))
    answer = next(_send_request(session.root, do="interrupt" if cell else "close", session=session.name))
    if cell and answer["interrupted"] is None:
        eprint(f"nothing runs in session {session.name}")
    else:
        eprint(f"session {session.name}: {'its cell was interrupted' if cell else 'it has ended'}")
    return 0


def _run_cell(session: LiveSession, code: str) -> None:
    text_filter = TerminalFilter()
    try:
        for answer in _send_request(session.root, do="execute", session=session.name, code=code):
            if "output" in answer:
                text = text_filter.feed(answer["output"]) if isinstance(sys.stdout, TerminalStream) else answer["output"]
                write_text(sys.stdout, text, is_filtered=True)
            elif (result := answer["result"])["status"] != "ok":
                eprint(f"{result['status']}, exit code {result['exit_code']}, state {result['state']}")
    except KeyboardInterrupt:
        eprint("the cell is interrupted")
    if text_filter.is_styled:
        write_text(sys.stdout, RESET, is_filtered=True)


def _row(name: str, pid: int, state: str, cells: list[str], epoch: int, workspace: str, client: str = "") -> dict[str, Any]:
    row = {"name": name, "pid": pid, "state": state, "cells": cells, "epoch": epoch, "workspace": workspace}
    return row | {"client": client}


def _read_sessions(root: Path) -> list[dict[str, Any]] | None:
    """Read a server's list of sessions; None if it does not answer."""
    with suppress(CommandFailed):
        sessions: list[dict[str, Any]] | None = next(_send_request(root, do="look")).get("sessions")
        return sessions
    return None


def _send_request(root: Path, **request: str) -> Iterator[dict[str, Any]]:
    """Send a request to a server and yield its answers as they arrive.

    Raises:
        CommandFailed: the process accepts no commands, does not answer, or refuses.
    """
    try:
        with (root / CONTROL_KEY).open(encoding="ascii") as file:
            key = file.read(_KEY_BYTES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(root / CONTROL))
            connection.sendall(json.dumps({"key": key, **request}).encode() + b"\n")
            connection.settimeout(_ANSWER_SECONDS if request["do"] in _QUICK_REQUESTS else None)
            with connection.makefile("rb") as lines:
                count = 0
                for count, line in enumerate(lines, 1):  # noqa: B007 - used after the loop
                    answer = json.loads(line)
                    if "error" in answer:
                        raise CommandFailed(answer["error"])
                    yield answer
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise CommandFailed(f"The session's process is not an MCP server, or does not answer: {reason}.") from exc
    if not count:
        raise CommandFailed("The server did not answer.")


def _follow(session: LiveSession, journal: Path) -> None:
    """Print the journal's new lines as JSON, until the session is closed or Ctrl+C."""
    with suppress(KeyboardInterrupt), journal.open(encoding="utf-8") as file:
        file.seek(0, 2)
        while True:
            if line := file.readline():
                write_text(sys.stdout, line)
            elif any(live.name == session.name and live.pid == session.pid for live in list_live_sessions(runtime_bases())):
                time.sleep(_FOLLOW_SECONDS)  # polling: there is no portable notification of file growth
            else:
                return
