"""What lives on this machine: the sessions of this user, whichever process has them, and the variables in one of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import anyio

from kernelexec.cli.surroundings import write_any
from kernelexec.cli.table import show_table
from kernelexec.errors import InvalidRequest, KernelNotAnswering, UnknownSession, nearest
from kernelexec.kernel import ask_kernel
from kernelexec.provisioning.runtime.discovery import LiveSession, live_sessions
from kernelexec.provisioning.runtime.locations import bases
from kernelexec.results import Variable, Variables
from kernelexec.results.variables import VARIABLES_MAX

_ANSWER_SECONDS = 5.0
_LISTED = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def list_sessions(*, as_json: bool) -> int:
    """Show all living sessions of this user; exit status 0, also where there is none."""
    found = live_sessions(bases())
    if as_json:
        write_any(sys.stdout, json.dumps([_as_dict(session) for session in found]) + "\n")
        return 0
    rows = [[str(value) for value in _as_dict(session).values()] for session in found]
    show_table(("session", "workspace", "process", "epoch", "connection file"), rows)
    return 0


def list_variables(name: str | None, *, as_json: bool) -> int:
    """Show the variables of one living session, idle or busy.

    Raises:
        UnknownSession, InvalidRequest: no such session, or more than one.
        KernelNotAnswering: it has no living kernel, or the kernel does not answer in time.
    """
    session = choose(name, live_sessions(bases()))
    if session.kernel is None:
        message = f"Session {session.name!r} has no living kernel: its next cell starts one."
        raise KernelNotAnswering(message)
    said = anyio.run(_variables_of, session)
    found = Variables.of(said, VARIABLES_MAX)
    if as_json:
        write_any(sys.stdout, json.dumps(found.to_dict()) + "\n")
        return 0
    show_table(("name", "type", "shape", "size", "value"), [_row(variable) for variable in found])
    if found.total > len(found):
        write_any(sys.stderr, f"kernelexec: {len(found)} of {found.total} variables are shown\n")
    return 0


async def _variables_of(session: LiveSession) -> dict[str, object]:
    assert session.kernel is not None
    content = {"names": None, "limit": VARIABLES_MAX}
    return await ask_kernel(session.kernel, "kernelexec_variables_request", content, patience=_ANSWER_SECONDS)


def choose(name: str | None, sessions: list[LiveSession]) -> LiveSession:
    """The session of that name, given as NAME or NAME@PROCESS; the only one there is where no name is given."""
    if not sessions:
        raise UnknownSession("No session of yours lives on this machine: they end with the process that opened them.")
    wanted, _, pid = (name or "").partition("@")
    found = [session for session in sessions if name is None or (session.name == wanted and pid in ("", str(session.pid)))]
    listed = ", ".join(f"{session.name}@{session.pid}" for session in (found or sessions)[:_LISTED])
    if not found:
        message = f"No session {name!r} lives here{nearest(str(name), _names(sessions))}: there are {listed}."
        raise UnknownSession(message)
    if len(found) > 1:
        which = "sessions live here" if name is None else f"sessions are named {name!r}"
        message = f"{len(found)} {which}: name one as NAME@PROCESS, of {listed}."
        raise InvalidRequest(message)
    return found[0]


def _names(sessions: list[LiveSession]) -> Iterable[str]:
    for session in sessions:
        yield from (session.name, f"{session.name}@{session.pid}")


def _as_dict(session: LiveSession) -> dict[str, object]:
    file = str(session.kernel.connection_file) if session.kernel else None
    return {
        "name": session.name,
        "workspace": session.workspace,
        "pid": session.pid,
        "kernel_epoch": session.epoch,
        "connection_file": file,
    }


def _row(variable: Variable) -> list[str]:
    shape = "" if variable.shape is None else " x ".join(map(str, variable.shape))
    return [variable.name, variable.type, shape, _size(variable.size_bytes), variable.text]


def _size(size_bytes: float | None) -> str:
    if size_bytes is None:
        return ""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004 - of the units
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if not unit else f"{size_bytes:.1f} {_UNITS[unit]}"
