"""Commands to servers that run: what they do now, the log of a session, a cell in it, its end and theirs."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelexec.cli.log import show_journal
from kernelexec.cli.look import choose
from kernelexec.cli.status import CommandFailed
from kernelexec.cli.surroundings import say, write_any
from kernelexec.cli.table import show_table
from kernelexec.errors import InvalidRequest, UnknownSession
from kernelexec.provisioning.runtime.discovery import CONTROL, CONTROL_KEY, LiveSession, live_roots, live_sessions
from kernelexec.provisioning.runtime.locations import bases

_ANSWER_SECONDS, _FOLLOW_SECONDS = 30.0, 0.5
_KEY_BYTES = 200
#: What a server answers at once, unless it is stopped or hangs.
_SOON = ("look", "stop")


def show_servers(*, as_json: bool) -> int:
    """Show what the living sessions do, and servers that have none."""
    rows: list[dict[str, Any]] = []
    known = live_sessions(bases())
    for root, pid in live_roots(bases()):
        said = _looked(root)
        mine = {session.name: session for session in known if session.root == root}
        states = {row["name"]: row for row in said or ()}
        for name, session in mine.items():
            row = states.get(name, {})
            state = "" if not row else "busy" if row["busy"] else "idle"
            cells = row.get("running", [])
            rows.append(_row(name, pid, state, cells, session.epoch, session.workspace))
        if not mine and said is not None:
            rows.append(_row("", pid, "no session", [], 0, ""))
    if as_json:
        write_any(sys.stdout, json.dumps(rows) + "\n")
        return 0
    shown = [[str(len(said) if isinstance(said, list) else said) for said in row.values()] for row in rows]
    show_table(("session", "process", "state", "cells", "epoch", "workspace"), shown)
    return 0


def show_log(name: str | None, *, last: int | None, follow: bool, as_json: bool) -> int:
    """Show the journal of a living session, and with ``follow`` what is added to it, until the session ends."""
    session = choose(name, live_sessions(bases()))
    if session.journal is None or not session.journal.is_file():
        raise CommandFailed(f"Session {session.name!r} keeps no journal.")
    journal = session.journal
    status = show_journal(str(journal), workspace=Path(session.workspace), last=last, as_json=as_json)
    if follow:
        _follow(session, journal)
    return status


def stop(name: str | None, *, cell: bool, process: int | None) -> int:
    """End a session, or only interrupt its cell; or end the server that is that process."""
    if process is not None:
        if name is not None or cell:
            raise InvalidRequest("--process ends a whole server: it goes with no session, and not with --cell.")
        found = [root for root, pid in live_roots(bases()) if pid == process and (root / CONTROL).exists()]
        if not found:
            raise UnknownSession(f"No server of yours is process {process}: `kernelexec ps` shows them.")
        _only(_asked(found[0], do="stop"))
        say(f"process {process} ends")
        return 0
    session = choose(name, live_sessions(bases()))
    said = _only(_asked(session.root, do="interrupt" if cell else "close", session=session.name))
    if cell and said["interrupted"] is None:
        say(f"nothing runs in session {session.name}")
    else:
        say(f"session {session.name}: {'its cell was interrupted' if cell else 'it has ended'}")
    return 0


def attach(name: str | None) -> int:
    """Run cells, one for each line that is read, in a living session, in turn with its agent's, until the end of input."""
    session = choose(name, live_sessions(bases()))
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    say(f"session {session.name} of process {session.pid}: each line is a cell of its own; Ctrl+D leaves, the session stays")
    while True:
        try:
            line = input(f"{session.name}> ") if at_terminal else next(iter(sys.stdin.readline, ""))
        except (EOFError, StopIteration):
            return 0
        if line.strip():
            _run(session, line)


def _run(session: LiveSession, code: str) -> None:
    try:
        for said in _asked(session.root, do="execute", session=session.name, code=code):
            if "output" in said:
                write_any(sys.stdout, said["output"])
            elif (result := said["result"])["status"] != "ok":
                say(f"{result['status']}, exit code {result['exit_code']}, state {result['state']}")
    except KeyboardInterrupt:
        say("the cell is interrupted")


def _row(name: str, pid: int, state: str, cells: list[str], epoch: int, workspace: str) -> dict[str, Any]:
    return {"name": name, "pid": pid, "state": state, "cells": cells, "epoch": epoch, "workspace": workspace}


def _looked(root: Path) -> list[dict[str, Any]] | None:
    """What a server says of its sessions; None where nobody answers."""
    with suppress(CommandFailed, KeyError):
        found: list[dict[str, Any]] = _only(_asked(root, do="look"))["sessions"]
        return found
    return None


def _only(said: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return next(said)


def _asked(root: Path, **request: str) -> Iterator[dict[str, Any]]:
    """What a server says, as it comes.

    Raises:
        CommandFailed: it takes no commands, does not answer, or refuses.
    """
    try:
        with (root / CONTROL_KEY).open(encoding="ascii") as file:
            key = file.read(_KEY_BYTES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(root / CONTROL))
            connection.sendall(json.dumps({"key": key, **request}).encode() + b"\n")
            connection.settimeout(_ANSWER_SECONDS if request["do"] in _SOON else None)
            with connection.makefile("rb") as lines:
                count = 0
                for count, line in enumerate(lines, 1):  # noqa: B007 - counted behind the loop
                    said = json.loads(line)
                    if "error" in said:
                        raise CommandFailed(said["error"])
                    yield said
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or exc
        message = f"Its process takes no commands, since it is no server of MCP, or does not answer: {why}."
        raise CommandFailed(message) from exc
    if not count:
        raise CommandFailed("The server did not answer.")


def _follow(session: LiveSession, journal: Path) -> None:
    """Print the journal's new lines as they come, as JSON, until the session has ended or Ctrl+C."""
    with suppress(KeyboardInterrupt), journal.open(encoding="utf-8") as file:
        file.seek(0, 2)
        while True:
            if line := file.readline():
                write_any(sys.stdout, line)
            elif any(one.name == session.name and one.pid == session.pid for one in live_sessions(bases())):
                time.sleep(_FOLLOW_SECONDS)  # a file of another process tells nobody when it grows
            else:
                return
