"""Children with pipes of their own, so that lines of parallel children are not torn.

- Checked for: CPython 3.11 to 3.14.
- Gain: a pipe does not tell its writers apart, and a full buffer of a child ends within a line.
- Obsolete when: ``test_children_share_the_pipe_of_a_descriptor``.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ... import owner
from ...output.captured_output import CapturedFd, PipeReader

_DRAIN_SECONDS = 0.25
#: Positions of the child's descriptors for stdout and stderr among the arguments; -1 stands for this process's own.
_STDOUT, _STDERR = 9, 11
_INHERITED = -1


def give_own_pipes(find_captured: Callable[[], Sequence[CapturedFd]], find_pipes: Callable[[], PipeReader]) -> None:
    """Put a new pipe behind each captured descriptor that a child of ``subprocess`` or ``multiprocessing`` inherits."""
    try:
        import _posixsubprocess  # noqa: PLC0415 - as in subprocess, not on every system
    except ImportError:
        return
    functions: Any = _posixsubprocess
    fork_exec = functions.fork_exec
    lock = threading.Lock()

    def fork_exec_with_pipes(*arguments: Any) -> Any:
        targets = {fd if fd != _INHERITED else number for number, fd in ((1, arguments[_STDOUT]), (2, arguments[_STDERR]))}
        inherited, pipes = [item for item in find_captured() if item.fd in targets], find_pipes()
        if not inherited or owner.is_forked_child:
            return fork_exec(*arguments)
        if pipes.has_output:  # it comes before that of the child
            pipes.drain(_DRAIN_SECONDS)
        with lock:
            lent = [item for item in inherited if item.lend()]
            try:
                return fork_exec(*arguments)
            finally:
                for item in lent:
                    item.take_back()

    functions.fork_exec = fork_exec_with_pipes
    module: Any = subprocess
    module._fork_exec = fork_exec_with_pipes  # noqa: SLF001 - it has imported the name
    module._USE_POSIX_SPAWN = False  # noqa: SLF001 - documented in subprocess; since 3.13 most programs would start so
