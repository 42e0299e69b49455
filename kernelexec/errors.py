"""Everything that can go wrong on our side, as one tree. A cell that fails is a result, not an error.

KernelexecError
├── InvalidRequest (ValueError)      what was asked for makes no sense; nothing ran
│   ├── InvalidConfig                an option that does not exist or does not fit
│   ├── InvalidCode                  code that no kernel could take
│   ├── InvalidTimeout               a budget that is no number of seconds
│   ├── InvalidWorkDir               a directory that is missing, no directory, or outside
│   ├── InvalidPath                  a path that no file of a session could have, or has
│   ├── UnknownSession               no session of that name
│   └── UnknownExecution             no execution of that id
├── IsolationUnavailable             the place to run code is not there, or was not chosen
├── ImageBuildFailed                 an image was not built; the message ends with what the step said
├── Refused                          a bound was reached, or nothing is to run at all; nothing ran
│   ├── QueueFull                    too many cells wait in this session
│   ├── CapacityReached              too many sessions
│   ├── Disabled                     code execution is switched off
│   ├── FileRefused                  a file that is not read, written or deleted by a file operation
│   └── LimitRefused                 a limit below what is in use; nothing changed
├── Closed                           the session or executor is not open (any more)
├── KernelError                      the kernel did not do its part
│   ├── KernelStartFailed            no kernel came up; nothing ran
│   │   └── ImageMissing             no image to start it from
│   ├── KernelNotAnswering           it does not say what it was asked in time; cells are not concerned
│   ├── KernelConnectionFailed       its sockets are not what they should be
│   └── EngineFailed                 the container engine did not do its part
│       ├── EngineAway               it does not answer
│       ├── EngineRefused            it answers, and did not do it
│       └── ContainerGone            there is no such container (any more)
└── ExecutionFailed                  in ``results``, with its result; raised by ``raise_for_error()`` only
    └── SecurityError                the cell was refused; nothing ran

Every error carries ``may_have_run``: False says for certain that no user code ran because of this call.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KernelexecError(Exception):
    """The root of everything this package raises by itself."""

    may_have_run: bool = False


class InvalidRequest(KernelexecError, ValueError):
    """What was asked for makes no sense; nothing ran."""


class InvalidConfig(InvalidRequest):
    """An option that does not exist or a value that does not fit."""


class InvalidCode(InvalidRequest):
    """Code that no kernel could take: empty, not UTF-8, NUL bytes, lone surrogates, or too large."""


class InvalidTimeout(InvalidRequest):
    """A budget that is not a number of seconds of at least 0.001."""


class InvalidWorkDir(InvalidRequest):
    """A working directory that is missing, no directory, or outside of what is allowed."""


class InvalidPath(InvalidRequest):
    """A path that is outside of what a session may name, or that nothing has, or no file could have."""


class UnknownSession(InvalidRequest):
    """No session of that name; the message names the nearest."""


class UnknownExecution(InvalidRequest):
    """No execution of that id is remembered in this session."""


class IsolationUnavailable(KernelexecError):
    """The place where code should run is not there, or nobody chose one."""


class ImageBuildFailed(KernelexecError):
    """A step of an image's build failed; the message names it and ends with what it said."""


class Refused(KernelexecError):
    """A bound was reached, or nothing is to run at all; the message says which bound, and what is in use."""


class QueueFull(Refused):
    """Too many cells wait in this session."""


class CapacityReached(Refused):
    """The executor holds as many sessions as it may."""


class Disabled(Refused):
    """Code execution is switched off for this executor."""


class FileRefused(Refused):
    """A file operation does not touch that: a link, no plain file, protected, not read before, or the system says no."""


class LimitRefused(Refused):
    """A living kernel cannot have that limit: it uses more, or the container engine says no. Nothing changed."""


class Closed(KernelexecError):
    """The session or executor is not open, or not open any more."""


class KernelError(KernelexecError):
    """The kernel did not do its part."""


class KernelStartFailed(KernelError):
    """No kernel came up. The message ends with what the kernel's process wrote to stderr."""


class ImageMissing(KernelStartFailed):
    """There is no image to start a kernel's container from; the message says how to get one."""


class KernelNotAnswering(KernelError):
    """The kernel does not say what it was asked, in time or at all: no cell and no state is concerned by that."""


class KernelConnectionFailed(KernelError):
    """A kernel's socket is not what it should be: missing, a link, somebody else's, or silent."""


class EngineFailed(KernelError):
    """The container engine did not do its part."""


class EngineAway(EngineFailed):
    """The container engine does not answer; the message says why."""


class EngineRefused(EngineFailed):
    """The container engine answers, and did not do what it was asked to."""


class ContainerGone(EngineFailed):
    """The container engine knows no such container, or knows it no more."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
