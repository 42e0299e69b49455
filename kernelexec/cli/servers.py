"""Commands to other processes: list sessions, show their journals, run cells, stop sessions and servers."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from kernelexec.cli.console import ConsoleOutput, show_table
from kernelexec.cli.options import not_blank
from kernelexec.cli.sessions import show_journal
from kernelexec.cli.stdio import OWN_FAILURE, CommandFailed, eprint, write_text
from kernelexec.control.control_client import ControlClient
from kernelexec.control.selection import find_session
from kernelexec.errors import InvalidRequest, KernelexecError, QueueFull, UnknownSession
from kernelexec.provisioning.runtime.discovery import LiveSession, list_live_roots, list_live_sessions
from kernelexec.provisioning.runtime.locations import runtime_bases
from kernelexec.untrusted_text import escape_line

if TYPE_CHECKING:
    from kernelexec.blocking import AttachedSession

server_app = typer.Typer(add_completion=False)
_STATUS = f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a process that accepts no requests."
_FOLLOW_SECONDS = 0.5


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
        answer, mine = _read_sessions(root, pid), [session for session in known if session.root == root]
        states = {row["name"]: row for row in (answer or {}).get("sessions", ())}
        for session in mine:
            row = states.get(session.name, {})
            state = "" if not row else "busy" if row["busy"] else "idle"
            cells, client = row.get("running", []), row.get("client", "")
            rows.append(_row(session.name, pid, state, cells, session.epoch, session.workspace, client))
        if not mine and answer is not None and answer.get("serves"):
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
    session = find_session(name)
    if session.journal is None or not session.journal.is_file():
        raise CommandFailed(f"Session {session.name!r} has no journal.")
    journal = session.journal
    status = show_journal(str(journal), workspace=Path(session.workspace), last=last, as_json=as_json)
    if follow:
        _follow(session, journal)
    return status


@server_app.command(epilog=_STATUS)
def attach(name: NameArgument = None) -> int:
    """Run cells, one per line, in a session of another process, in turn with its owner's cells; Ctrl+D leaves."""
    from kernelexec.blocking import attach as attach_session

    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    console = ConsoleOutput(as_json=False)
    with attach_session(name) as session:
        eprint(
            f"session {session.name} of process {session.process}: each line is one cell; Ctrl+D leaves, the session stays open"
        )
        while True:
            try:
                line = input(f"{escape_line(session.name)}> ") if at_terminal else next(iter(sys.stdin.readline, ""))
            except (EOFError, StopIteration):
                return 0
            if line.strip():
                _run_cell(session, line, console)


@server_app.command(epilog=_STATUS)
def stop(
    name: NameArgument = None,
    cell: Annotated[bool, typer.Option("--cell", help="Only interrupt the running cell.")] = False,
    process: Annotated[int | None, typer.Option("--process", metavar="PID", help="End this whole server instead.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --process: leave its containers and cells to the next server.")
    ] = False,
) -> int:
    """Close a session of another process, interrupt its cell, or stop a server."""
    if process is not None:
        if name is not None or cell:
            raise InvalidRequest("--process stops a whole server: it must not be combined with a session or --cell.")
        root = next((root for root, pid in list_live_roots(runtime_bases()) if pid == process), None)
        if root is None:
            raise UnknownSession(f"No server of yours is process {process}: `kernelexec ps` shows them.")
        _ask(root, process, "restart" if restart else "stop")
        eprint(f"process {process} ends{', its kernels wait for the next server' * restart}")
        return 0
    if restart:
        raise InvalidRequest("--restart needs --process: it ends a whole server.")
    session = find_session(name)
    answer = _ask(session.root, session.pid, "interrupt" if cell else "close", session=session.name)
    if cell and answer["interrupted"] is None:
        eprint(f"nothing runs in session {session.name}")
    else:
        eprint(f"session {session.name}: {'its cell was interrupted' if cell else 'it has ended'}")
    return 0


def _run_cell(session: AttachedSession, code: str, console: ConsoleOutput) -> None:
    try:
        result = session.execute(code, on_output=console.show_output)
    except KeyboardInterrupt:
        session.interrupt()
        eprint("the cell is interrupted")
        return
    except (InvalidRequest, QueueFull) as exc:
        eprint(str(exc))
        return
    console.end_line()
    console.show_result(result)


def _row(name: str, pid: int, state: str, cells: list[str], epoch: int, workspace: str, client: str = "") -> dict[str, Any]:
    row = {"name": name, "pid": pid, "state": state, "cells": cells, "epoch": epoch, "workspace": workspace}
    return row | {"client": client}


def _read_sessions(root: Path, pid: int) -> dict[str, Any] | None:
    """Read what a process says of its sessions; None if it does not answer."""
    with suppress(KernelexecError):
        return _ask(root, pid, "look")
    return None


def _ask(root: Path, pid: int, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
    """Return the answer of a process to a request.

    Raises:
        KernelexecError: the process accepts no requests, does not answer, or refuses.
    """
    return anyio.run(partial(ControlClient(root, pid).ask, do, **arguments))


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
