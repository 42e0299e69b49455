"""The errors of this package, as one tree. A cell that fails is a result, not an error.

KernelexecError
├── InvalidRequest (ValueError)      an invalid argument; nothing ran
│   ├── InvalidConfig                an option that does not exist or does not fit
│   ├── InvalidCode                  code that no kernel can run
│   ├── InvalidTimeout               a timeout that is not a number of seconds
│   ├── InvalidWorkDir               a directory that is missing, not a directory, or not allowed
│   ├── InvalidPath                  a path that is not allowed, or not the path of a file
│   ├── UnknownSession               no session of that name
│   ├── UnknownVariable (KeyError)   no variable of that name
│   └── UnknownExecution             no execution of that id
├── IsolationUnavailable             the chosen isolation is not available, or none was chosen
├── ImageBuildFailed                 an image was not built; the message ends with the step's output
├── Refused                          a limit was reached, or execution is off; nothing ran
│   ├── QueueFull                    too many cells wait in this session
│   ├── CapacityReached              too many sessions
│   ├── Disabled                     code execution is switched off
│   ├── FileRefused                  a file that file operations do not touch
│   ├── CheckpointRefused            a kernel that cannot be copied by a fork now
│   └── LimitRefused                 a limit below what is in use; nothing changed
├── NotebookNotWritten               a notebook on a full disk; its cells are kept, and written later
├── Closed                           the session or executor is not open (any more)
├── KernelError                      a kernel failed
│   ├── KernelStartFailed            no kernel came up; nothing ran
│   │   └── ImageMissing             no image to start it from
│   ├── KernelNotAnswering           no answer to a question in time; cells are not affected
│   ├── KernelConnectionFailed       its sockets are missing or not its own
│   ├── OwnerEnded                   the process that owns an attached session has ended
│   └── EngineFailed                 the container engine failed
│       ├── EngineUnavailable        it does not answer
│       ├── EngineRefused            it answered with a refusal
│       └── ContainerGone            there is no such container (any more)
└── ExecutionFailed                  in ``results``, with its result; raised by ``raise_for_error()`` only
    └── SecurityError                the cell was refused; nothing ran

Every error has ``may_have_run``: False means that no user code ran because of this call.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType


class KernelexecError(Exception):
    """The root of all errors of this package."""

    may_have_run: bool = False


class InvalidRequest(KernelexecError, ValueError):
    """An invalid argument; nothing ran."""


class InvalidConfig(InvalidRequest):
    """An option that does not exist or a value that does not fit."""


class InvalidCode(InvalidRequest):
    """Code that no kernel can run: empty, not UTF-8, with NUL characters or lone surrogates, or too large."""


class InvalidTimeout(InvalidRequest):
    """A timeout that is not a number of seconds of at least 0.001."""


class InvalidWorkDir(InvalidRequest):
    """A working directory that is missing, not a directory, or outside of the allowed paths."""


class InvalidPath(InvalidRequest):
    """A path outside of the session's files, of a missing file, or that no file can have."""


class UnknownSession(InvalidRequest):
    """A session name that is not known; the message suggests the most similar one."""


class UnknownVariable(InvalidRequest, KeyError):
    """A name that no variable of the session has; the message suggests the most similar one."""

    __str__ = Exception.__str__  # that of KeyError is a repr


class UnknownExecution(InvalidRequest):
    """An execution id that this session does not know, or no longer."""


class IsolationUnavailable(KernelexecError):
    """The chosen isolation is not available, or none was chosen."""


class ImageBuildFailed(KernelexecError):
    """A failed step of an image's build; the message names the step and ends with its output."""


class Refused(KernelexecError):
    """A limit was reached, or execution is off; the message names the limit and the current use."""


class QueueFull(Refused):
    """A full queue: too many cells wait in this session."""


class CapacityReached(Refused):
    """The limit of sessions of an executor."""


class Disabled(Refused):
    """Code execution is switched off for this executor."""


class FileRefused(Refused):
    """A file that file operations do not touch: a link, not a regular file, protected, not read before, or not permitted."""


class CheckpointRefused(Refused):
    """A kernel that cannot be copied by a fork now; ``obstacles`` names what it has that a copy would not have."""

    def __init__(self, message: str, obstacles: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.obstacles = dict(obstacles)


class LimitRefused(Refused):
    """A limit that a running kernel cannot have: it uses more, or the container engine refuses it. Nothing changed."""


class NotebookNotWritten(KernelexecError):
    """A notebook cannot be written now: its disk is full or does not answer. Its cells are kept, and written later."""


class Closed(KernelexecError):
    """The session or executor is not open, or not open any more."""


class KernelError(KernelexecError):
    """A failure of a kernel."""


class KernelStartFailed(KernelError):
    """A kernel that did not start. The message ends with its stderr."""


class ImageMissing(KernelStartFailed):
    """A missing image for a kernel's container; the message says how to get one."""


class KernelNotAnswering(KernelError):
    """A question that a kernel did not answer, in time or at all. Cells and state are not affected."""


class KernelConnectionFailed(KernelError):
    """A kernel's socket that is missing, a link, owned by another user, or silent."""


class OwnerEnded(KernelError):
    """The process that owns an attached session has ended, or does not answer; a running cell may go on without it."""

    may_have_run = True


class EngineFailed(KernelError):
    """A failure of the container engine."""


class EngineUnavailable(EngineFailed):
    """A container engine that does not answer; the message gives the reason."""


class EngineRefused(EngineFailed):
    """A request that the container engine refused."""


class ContainerGone(EngineFailed):
    """A container that the engine does not know, or no longer."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
