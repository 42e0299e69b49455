"""The commands about open sessions, of all processes of this user: list them, look into them, use them, end them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from kernelexec.cli.console import ConsoleOutput, show_table
from kernelexec.cli.options import PicturesOption, complete_session, not_blank, option
from kernelexec.cli.stdio import OWN_FAILURE, eprint, print_json, write_text
from kernelexec.cli.terminal import TYPED_INPUT
from kernelexec.errors import InvalidRequest, KernelexecError, KernelNotAnswering, QueueFull, UnknownSession
from kernelexec.executor.control.control_client import ControlClient, find_session
from kernelexec.kernel import request_once
from kernelexec.launcher import protocol
from kernelexec.provisioning.runtime.discovery import LiveSession, list_live_executors, list_live_sessions
from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from kernelexec.provisioning.runtime.processes import read_live_status
from kernelexec.results import Restored, Variable, Variables
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.results.usage import format_size
from kernelexec.text import escape_line
from kernelexec.workspace.directory import read_owner

if TYPE_CHECKING:
    from kernelexec.executor.blocking import AttachedSession

live_app = typer.Typer()
_STATUS = f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a process that accepts no requests."
_ANSWER_SECONDS, _LOOK_SECONDS = 5.0, 1.0
ListJsonOption = Annotated[bool, option("--json", "Print them as JSON.")]
NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        callback=not_blank,
        autocompletion=complete_session,
        help="The session, as NAME or NAME@PROCESS. Default: the only one.",
    ),
]


@live_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed.")
def sessions(as_json: ListJsonOption = False) -> int:
    """List your open sessions on this machine, of all processes, and how to attach to their kernels."""
    listed = [_as_dict(session) for session in list_live_sessions(runtime_bases())]
    if as_json:
        return print_json(listed)
    headings = ("session", "workspace", "process", "epoch", "connection file")
    show_table(headings, [list(map(str, session.values())) for session in listed])
    return 0


@live_app.command(
    epilog=f"Exit status: 0; {OWN_FAILURE} if kernelexec itself failed: unknown session, or a kernel that does not answer."
)
def variables(
    name: NameArgument = None,
    as_json: ListJsonOption = False,
) -> int:
    """Show the variables of an open session on this machine, also while a cell runs, without running its code."""
    session = find_session(name)
    if (kernel := session.kernel) is None:
        message = f"Session {session.name!r} has no running kernel: its next cell starts one."
        raise KernelNotAnswering(message)

    async def request() -> dict[str, object]:
        content = {"names": None, "limit": VARIABLES_MAX}
        return await request_once(kernel, protocol.VARIABLES_REQUEST, content, patience=_ANSWER_SECONDS)

    listed = Variables.from_reply(anyio.run(request), VARIABLES_MAX)
    if as_json:
        return print_json(listed.to_dict())
    show_table(("name", "type", "shape", "size", "value"), [_variable_row(variable) for variable in listed])
    if listed.total > len(listed):
        write_text(sys.stderr, f"kernelexec: {len(listed)} of {listed.total} variables are shown\n")
    return 0


@live_app.command(epilog=_STATUS)
def ps(as_json: ListJsonOption = False) -> int:
    """Show the state of your sessions on this machine, and servers without sessions."""
    rows: list[dict[str, Any]] = []
    known = list_live_sessions(runtime_bases())
    for (root, pid), answer in anyio.run(_look, list_live_executors(runtime_bases())).items():
        mine = [session for session in known if session.root == root]
        states = {row["name"]: row for row in (answer or {}).get("sessions", ())}
        for session in mine:
            row = _row(session.name, pid, session.epoch, session.workspace, states.get(session.name, {}))
            rows.append(row if answer is not None else row | {"state": _describe_silence(pid)})
        if not mine and answer is not None and answer.get("serves"):
            rows.append(_row("", pid, 0, "", {}) | {"state": "no session"})
    if as_json:
        return print_json(rows)
    titles = [read_owner(row["name"]) for row in rows]
    for row, title in zip(rows, titles, strict=True):
        row["name"] = title if titles.count(title) == 1 else row["name"]
    shown = [[str(len(answer) if isinstance(answer, list) else answer) for answer in row.values()] for row in rows]
    show_table(("session", "process", "state", "cells", "epoch", "workspace", "client", "output"), shown)
    return 0


@live_app.command(epilog=_STATUS)
def attach(name: NameArgument = None, pictures: PicturesOption = "auto") -> int:
    """Run cells, one per line, in a session of another process, in turn with its owner's cells; Ctrl+D leaves."""
    from kernelexec.executor.blocking import attach as attach_session

    if sys.stdin is None:
        raise InvalidRequest("stdin is closed: there is no cell to run.")
    at_terminal = sys.stdin.isatty()
    console = ConsoleOutput(as_json=False, pictures=pictures)
    with attach_session(name) as session:
        eprint(
            f"session {session.name} of process {session.process}: each line is one cell; Ctrl+D leaves, the session stays open"
        )
        while True:
            try:
                line = _read_line(f"{escape_line(session.name)}> ") if at_terminal else next(iter(sys.stdin.readline, ""))
            except (EOFError, StopIteration):
                return 0
            if line.strip():
                _run_cell(session, line, console)


@live_app.command(epilog=_STATUS)
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
        root = next((root for root, pid in list_live_executors(runtime_bases()) if pid == process), None)
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


@live_app.command(epilog=_STATUS)
def checkpoints(name: NameArgument = None, as_json: ListJsonOption = False) -> int:
    """List the checkpoints of a session: copies of its kernel to which it can go back."""
    session = find_session(name)
    listed = _ask(session.root, session.pid, "checkpoints", session=session.name)["checkpoints"]
    if as_json:
        return print_json(listed)
    rows = [[str(row["number"]), row["name"] or "", str(row["cell"])] for row in listed]
    show_table(("checkpoint", "name", "before cell"), rows)
    return 0


@live_app.command(epilog=_STATUS)
def undo(
    name: NameArgument = None,
    cells: Annotated[int, typer.Option("--cells", min=1, help="The number of cells.")] = 1,
    checkpoint: Annotated[
        str | None, typer.Option("--to", metavar="CHECKPOINT", help="Go back to this checkpoint instead: its name or number.")
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Put the workspace's files back too, if the checkpoint was made with its files.")
    ] = False,
) -> int:
    """Go back to the state before the last cells of a session of another process."""
    session = find_session(name)
    ask = partial(_ask, session.root, session.pid, session=session.name)
    answer = ask("undo", cells=cells, files=files) if checkpoint is None else ask("restore", saved=checkpoint, files=files)
    eprint(f"session {session.name}: {escape_line(Restored.from_dict(answer['restored']).text)}")
    return 0


@live_app.command(epilog=_STATUS)
def branch(
    name: NameArgument = None,
    branch_name: Annotated[
        str | None, typer.Option("--name", help="The branch's name; by default the session's with a number.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Work in the same workspace instead of a copy of its files.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Repeat the cells in a new kernel, in a container of its own, instead of a copy.")
    ] = False,
) -> int:
    """Open a branch of a session of another process: a session there whose kernel is a copy. Prints its name."""
    session = find_session(name)
    options = {"name": branch_name, "files": "shared" if shared else "copy", "kernel": "replay" if replay else "copy"}
    opened = _ask(session.root, session.pid, "branch", session=session.name, **options)["branch"]
    write_text(sys.stdout, f"{opened['name']}\n")
    eprint(f"branch of session {session.name}; `kernelexec attach {opened['name']}` reaches it")
    eprint(f"it works in {escape_line(opened['workspace'])}")
    return 0


@live_app.command(epilog=_STATUS)
def promote(name: NameArgument = None) -> int:
    """Have a branch take the place of the session that it was branched off."""
    session = find_session(name)
    answer = _ask(session.root, session.pid, "promote", session=session.name)
    eprint(f"session {session.name}: {escape_line(Restored.from_dict(answer['restored']).text)}")
    return 0


def _read_line(prompt: str) -> str:
    """Return a typed line, which may have begun during the last cell. Raise ``EOFError`` at end of input."""
    typed = TYPED_INPUT.take_line()
    if typed.endswith("\n"):
        write_text(sys.stdout, prompt + typed)
        return typed
    return typed + input(prompt + typed)


def _as_dict(session: LiveSession) -> dict[str, object]:
    file = str(session.kernel.connection_file) if session.kernel else None
    return {
        "name": session.name,
        "workspace": session.workspace,
        "pid": session.pid,
        "kernel_epoch": session.epoch,
        "connection_file": file,
    }


def _variable_row(variable: Variable) -> list[str]:
    shape = "" if variable.shape is None else " x ".join(map(str, variable.shape))
    size = "" if variable.size_bytes is None else format_size(variable.size_bytes)
    return [variable.name, variable.type, shape, size, variable.text]


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


def _row(name: str, pid: int, epoch: int, workspace: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return a session as a row, with the answer of the process; the fields stay empty without an answer."""
    return {
        "name": name,
        "pid": pid,
        "state": "" if not answer else "busy" if answer["busy"] else "idle",
        "cells": answer.get("running", []),
        "epoch": epoch,
        "workspace": workspace,
        "client": answer.get("client", ""),
        "output": answer.get("output", ""),
    }


def _describe_silence(pid: int) -> str:
    """Return why a process does not answer, if visible."""
    status = read_live_status(pid)
    return "stopped" if status is not None and status.is_stopped else "no answer"


async def _look(executors: Sequence[tuple[Path, int]]) -> dict[tuple[Path, int], dict[str, Any] | None]:
    """Return the answers of all executors about their sessions, within a second in all; None for a silent executor."""
    answers = dict[tuple[Path, int], dict[str, Any] | None].fromkeys(executors)

    async def look(executor: tuple[Path, int]) -> None:
        with suppress(KernelexecError):
            answers[executor] = await ControlClient(*executor).ask("look")

    async with anyio.create_task_group() as tasks:
        tasks.cancel_scope.deadline = anyio.current_time() + _LOOK_SECONDS
        for executor in answers:
            tasks.start_soon(look, executor)
    return answers


def _ask(root: Path, pid: int, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
    """Return the answer of a process to a request.

    Raises:
        KernelexecError: the process accepts no requests, does not answer, or refuses.
    """
    return anyio.run(partial(ControlClient(root, pid).ask, do, **arguments))
