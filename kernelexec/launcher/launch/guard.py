"""The parent of another project's kernel, started by the guard and ended with the owner. Both have the same exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from .. import platform
from ..owner import apply_limits, exit_with_owner, notify_ready, take_secrets
from ..platform import prctl
from ..processes.tree import initialize_tree, kill_descendants
from ..protocol import LaunchOptions
from ..sandbox.confinement import confine

_NOT_FOUND_CODE = 127
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(arguments: list[str], *, alone: bool = False) -> None:
    """Run a kernel's command in this process group until the kernel or the owner has ended.

    With ``alone`` signals come to this process only, not to the group.
    """
    options = LaunchOptions.take()
    apply_limits(options.limits)
    initialize_tree()
    confinement = confine(options.confinement)
    options.apply()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _forward_signal if alone else _ignore_signal)
    # Secrets come by a pipe, so only the kernel has them in its environment.
    environ = {**os.environ, **take_secrets(options), "JPY_PARENT_PID": str(os.getpid())}
    preexec_fn = _end_with_guard if platform.PLATFORM.adopts_orphans else None
    try:
        child = subprocess.Popen(arguments, env=environ, preexec_fn=preexec_fn)  # noqa: PLW1509 - there is no thread yet
    except OSError as exc:
        sys.stderr.write(f"{arguments[0]} cannot be started: {exc.strerror}.\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND_CODE)
    notify_ready(options, confinement)
    if options.owner is not None:
        exit_with_owner(options.owner, kill_descendants, grace_seconds=options.grace_seconds)
    if options.unix_proxy:
        from .unix_proxy import serve  # noqa: PLC0415 - asyncio costs as much as all the rest

        serve(options.unix_proxy)
    # Not ``child.wait``: orphans that this process has adopted must be reaped too.
    ended, status = os.waitpid(-1, 0)
    while ended != child.pid:  # an adopted orphan
        ended, status = os.waitpid(-1, 0)
    kill_descendants()
    _exit_like(os.waitstatus_to_exitcode(status))


def _ignore_signal(_signum: int, _frame: Any) -> None:
    """Do nothing, since the whole group got the signal. ``exec`` resets a handler, but would leave SIG_IGN to the kernel."""


def _forward_signal(signum: int, _frame: Any) -> None:
    """Signal the rest of the group."""
    signal.signal(signum, signal.SIG_IGN)  # this process is in the group too
    try:
        os.killpg(0, signum)
    finally:
        signal.signal(signum, _forward_signal)


def _end_with_guard() -> None:
    """Let Linux kill the kernel at the end of the guard's main thread. Called in the child before exec."""
    # Linux sends the signal at the end of the thread that forked, which may come before the end of the process.
    with suppress(OSError, AttributeError):
        prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _exit_like(status: int) -> None:
    """End with the exit code or by the signal of another process."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    # Also after a signal that did not end this process: Linux drops default actions for process 1 of a container.
    os._exit(status if status >= 0 else 128 - status)
