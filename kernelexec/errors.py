"""The errors of this package, as a tree. A failed cell is a result, not an error.

KernelexecError
├── InvalidRequest (ValueError)      an invalid argument; nothing ran
│   ├── InvalidConfig                an unknown option, or an invalid value
│   ├── InvalidCode                  code no kernel can run
│   ├── InvalidTimeout               a timeout outside of the valid numbers of seconds
│   ├── InvalidWorkDir               a missing directory, a file, or a directory outside of the allowed paths
│   ├── InvalidPath                  a forbidden path, or not the path of a file
│   ├── UnknownSession               an unknown session name
│   ├── UnknownVariable (KeyError)   an unknown variable name
│   └── UnknownExecution             an unknown execution id
├── IsolationUnavailable             the chosen isolation is not available, or none was chosen
├── ImageBuildFailed                 an image was not built; the message ends with the step's output
├── Refused                          a limit was reached, or execution is off; nothing ran
│   ├── QueueFull                    too many cells wait in this session
│   ├── CapacityReached              too many sessions
│   ├── Disabled                     code execution is switched off
│   ├── FileRefused                  a file that file operations do not touch
│   ├── CheckpointRefused            a kernel that a fork cannot copy now
│   └── LimitRefused                 a limit below the current use; nothing changed
├── NotebookNotWritten               a notebook on a full disk; the cells are kept, and written later
├── Closed                           the session or executor is not open (any more)
├── KernelError                      a kernel failed
│   ├── KernelStartFailed            no kernel came up; nothing ran
│   │   └── ImageMissing             no image for the container
│   ├── KernelNotAnswering           no answer to a question in time; cells are not affected
│   ├── KernelConnectionFailed       the kernel's sockets are missing or belong to others
│   ├── OwnerEnded                   the owner of an attached session has ended
│   └── EngineFailed                 the container engine failed
│       ├── EngineUnavailable        the engine does not answer
│       ├── EngineRefused            the engine refused the request
│       └── ContainerGone            the engine has no such container (any more)
└── ExecutionFailed                  in ``results``, with the result; raised by ``raise_for_error()`` only
    └── SecurityError                the cell was refused; nothing ran

Every error has ``may_have_run``: False if no user code ran because of this call.
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
    """An unknown option or an invalid value."""


class InvalidCode(InvalidRequest):
    """Code no kernel can run: empty, not UTF-8, with NUL characters or lone surrogates, or too large."""


class InvalidTimeout(InvalidRequest):
    """A timeout other than a number of seconds of at least 0.001."""


class InvalidWorkDir(InvalidRequest):
    """A missing working directory, a file in the place of a directory, or a directory outside of the allowed paths."""


class InvalidPath(InvalidRequest):
    """A path outside of the session's files, the path of a missing file, or a path no file can have."""


class UnknownSession(InvalidRequest):
    """An unknown session name; the message suggests the most similar known name."""


class UnknownVariable(InvalidRequest, KeyError):
    """An unknown variable of the session; the message suggests the most similar known name."""

    __str__ = Exception.__str__  # that of KeyError is a repr


class UnknownExecution(InvalidRequest):
    """An execution id unknown to the session, or forgotten."""


class IsolationUnavailable(KernelexecError):
    """The chosen isolation is not available, or none was chosen."""


class ImageBuildFailed(KernelexecError):
    """A failed step of an image's build; the message names the step and ends with the step's output."""


class Refused(KernelexecError):
    """A limit was reached, or execution is off; the message names the limit and the current use."""


class QueueFull(Refused):
    """A full queue: too many cells wait in this session."""


class CapacityReached(Refused):
    """The limit of sessions of an executor."""


class Disabled(Refused):
    """Code execution is switched off for this executor."""


class FileRefused(Refused):
    """A refused file of a file operation: a link, not a regular file, protected, not read before, or not permitted."""


class CheckpointRefused(Refused):
    """A kernel that a fork cannot copy now; ``obstacles`` names the missing parts of a copy."""

    def __init__(self, message: str, obstacles: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.obstacles = dict(obstacles)


class LimitRefused(Refused):
    """A limit below the use of a running kernel, or refused by the container engine. Nothing changed."""


class NotebookNotWritten(KernelexecError):
    """A notebook cannot be written now: the disk is full or does not answer. The cells are kept, and written later."""


class Closed(KernelexecError):
    """The session or executor is not open, or not open any more."""


class KernelError(KernelexecError):
    """A failure of a kernel."""


class KernelStartFailed(KernelError):
    """A failed start of a kernel. The message ends with the kernel's stderr."""


class ImageMissing(KernelStartFailed):
    """A missing image for a kernel's container; the message says how to get an image."""


class KernelNotAnswering(KernelError):
    """A question without an answer of the kernel, in time or at all. Cells and state are not affected."""


class KernelConnectionFailed(KernelError):
    """A missing, linked or silent socket of a kernel, or a socket of another user."""


class OwnerEnded(KernelError):
    """The owner of an attached session has ended, or does not answer; a running cell may go on without the owner."""

    may_have_run = True


class EngineFailed(KernelError):
    """A failure of the container engine."""


class EngineUnavailable(EngineFailed):
    """No answer from the container engine; the message gives the reason."""


class EngineRefused(EngineFailed):
    """A refusal by the container engine."""


class ContainerGone(EngineFailed):
    """A container unknown to the engine, or removed."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
