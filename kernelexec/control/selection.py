"""A session of another process by its name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kernelexec.errors import InvalidRequest, UnknownSession, did_you_mean
from kernelexec.provisioning.runtime.discovery import LiveSession, list_live_sessions
from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from kernelexec.workspace.session_names import find_names

_LISTED = 10


def find_session(name: str | None, *, process: int | None = None) -> LiveSession:
    """Return the open session of this user with a NAME, NAME@PROCESS or NAME@PROCESS.EXECUTOR; without a name the only one.

    Raises:
        UnknownSession: there is none; the message lists the open ones.
        InvalidRequest: there are several.
    """
    return select_session(name, list_live_sessions(runtime_bases()), process=process)


def select_session(name: str | None, sessions: Sequence[LiveSession], *, process: int | None = None) -> LiveSession:
    """Return the session of a name or address among others; raise as ``find_session``."""
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{name!r:.100} is no name of a session: it must be text.")
    if not sessions:
        raise UnknownSession("You have no open session on this machine: sessions end with the process that opened them.")
    wanted, _, pid = (name or "").partition("@")
    pid = pid or ("" if process is None else str(process))
    names = find_names(wanted, (session.name for session in sessions))
    matches = [session for session in sessions if name is None or session.name in names]
    if pid:
        matches = [session for session in matches if session.address.endswith(f"@{pid}") or str(session.pid) == pid]
    listed = ", ".join(islice((_short_address(session, sessions) for session in matches or sessions), _LISTED))
    if not matches:
        known = [*(session.name for session in sessions), *(_short_address(session, sessions) for session in sessions)]
        message = f"No open session {name!r}{did_you_mean(str(name), known)}: must be one of {listed}."
        raise UnknownSession(message)
    if len(matches) > 1:
        which = "sessions are open" if name is None else f"sessions are named {name!r}"
        message = f"{len(matches)} {which}: choose one of {listed}."
        raise InvalidRequest(message)
    return matches[0]


def _short_address(session: LiveSession, sessions: Sequence[LiveSession]) -> str:
    """Return NAME@PROCESS, with the executor where that process has several sessions of the name."""
    twins = sum((other.name, other.pid) == (session.name, session.pid) for other in sessions)
    return f"{session.name}@{session.pid}" if twins == 1 else session.address
