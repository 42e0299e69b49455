"""The blocking facade of an open session of another process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

from kernelexec.executor.blocking.parts import Checkpoint
from kernelexec.executor.blocking.portal import Portal, call_at_end, cancel_at_end, documented_as, iterate, make_blocking
from kernelexec.executor.control.attached_session import AsyncAttachedSession
from kernelexec.executor.control.control_client import find_session
from kernelexec.results import ExecutionResult, Output, Restored


def attach(name: str | None = None, *, process: int | None = None) -> AttachedSession:
    """Attach to an open session of this user on this machine, in any process; cells run in turn with the owner's cells.

    Use as ``with kernelexec.attach("a") as session``, or call ``detach``; the end of this program detaches too.

    Args:
        name: the session, as NAME or NAME@PROCESS; by default the only open session.
        process: the id of the owner's process, if several have a session of this name.

    Raises:
        UnknownSession, InvalidRequest: no session or several of this name are open; the message lists them.
        OwnerEnded: the owner has ended, or does not answer.
    """
    session = AttachedSession(AsyncAttachedSession(find_session(name, process=process)))
    session.attach()
    return session


@documented_as(AsyncAttachedSession)
class AttachedSession:
    """``AsyncAttachedSession`` for blocking callers, from ``attach``; ``on_output`` is called in the session's own thread."""

    def __init__(self, session: AsyncAttachedSession) -> None:
        self._target = session
        self._portal = Portal(session, "attached session", cancels=True)
        self.name = session.name
        self.workspace: Path = session.workspace
        self.process = session.process
        """The id of the owner's process."""
        self.journal: Path | None = session.journal

    execute = make_blocking(AsyncAttachedSession.execute)
    execute_command = make_blocking(AsyncAttachedSession.execute_command)
    interrupt = make_blocking(AsyncAttachedSession.interrupt)
    variables = make_blocking(AsyncAttachedSession.variables)
    undo = make_blocking(AsyncAttachedSession.undo)
    branch = make_blocking(AsyncAttachedSession.branch)
    promote = make_blocking(AsyncAttachedSession.promote)
    end_session = make_blocking(AsyncAttachedSession.end_session)

    def attach(self) -> None:
        """Connect to the owner; ``attach`` of this module does."""
        self._portal.open()
        try:
            call_at_end(id(self), self.detach)
        except BaseException:  # an interrupt
            self.detach()
            raise

    def detach(self) -> None:
        """Leave the session, which goes on; a running cell of this client is interrupted."""
        cancel_at_end(id(self))
        if not self._portal.in_forked_child:
            self._portal.close(failed=False)

    def checkpoint(self, name: str | None = None, *, files: bool = False, timeout: float | None = None) -> Checkpoint:
        """See ``AsyncAttachedSession.checkpoint``."""
        call = partial(self._target.checkpoint, name, files=files, timeout=timeout)
        return Checkpoint(self._portal, self._portal.call(call))

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """See ``AsyncAttachedSession.checkpoints``."""
        return tuple(Checkpoint(self._portal, checkpoint) for checkpoint in self._portal.call(self._target.checkpoints))

    def restore(self, saved: Checkpoint | str | int, *, files: bool = False, timeout: float | None = None) -> Restored:
        """See ``AsyncAttachedSession.restore``."""
        target = saved._target if isinstance(saved, Checkpoint) else saved  # noqa: SLF001 - its own facade
        return self._portal.call(partial(self._target.restore, target, files=files, timeout=timeout))

    def stream(
        self, code: str, *, language: str = "python", stdin: str | None = None, timeout: float | None = None
    ) -> Iterator[Output | ExecutionResult]:
        """See ``AsyncAttachedSession.stream``."""
        outputs = self._target.stream(code, language=language, stdin=stdin, timeout=timeout)
        return iterate(self._portal, outputs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<AttachedSession {self._target.summary}>"
