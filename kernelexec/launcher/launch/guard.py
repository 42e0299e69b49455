"""The parent of a kernel that is not ours: it starts it, ends it with its owner, and ends as it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from .. import platform
from ..libc import prctl
from ..owner import Order, apply_limits, end_with_owner, say_ready, take_secrets
from ..processes.tree import begin_family, kill_descendants
from ..sandbox.confinement import confine

_MISSING = 127
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def main(arguments: list[str], *, alone: bool = False) -> None:
    """Run a kernel's command in this process group until it has ended, or until its owner dies.

    ``alone`` says that a signal comes to this process only, and not to its group.
    """
    order = Order.take()
    apply_limits(order.limits)
    begin_family()
    confined = confine(order.confinement)
    order.settle()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _hand_on if alone else _leave_to_the_kernel)
    environ = {**os.environ, **take_secrets(order), "JPY_PARENT_PID": str(os.getpid())}
    tied = _end_with_guard if platform.HERE.adopts else None
    try:
        child = subprocess.Popen(arguments, env=environ, preexec_fn=tied)  # noqa: PLW1509 - there is no thread yet
    except OSError as exc:
        sys.stderr.write(f"{arguments[0]} cannot be started: {exc.strerror}.\n")
        sys.stderr.flush()
        os._exit(_MISSING)
    say_ready(order, confined)
    if order.owner is not None:
        end_with_owner(order.owner, kill_descendants, patience=order.patience)
    if order.bridge:
        from .unix_proxy import serve  # noqa: PLC0415 - asyncio costs as much as all the rest

        serve(order.bridge)
    status = _wait_for(child.pid)
    kill_descendants()
    _end_as(status)


def _leave_to_the_kernel(_signum: int, _frame: Any) -> None:
    """Do nothing: the whole group got the signal. Unlike an ignored one, a handled one is not handed on to the kernel."""


def _hand_on(signum: int, _frame: Any) -> None:
    """Give the rest of the group what only this process got."""
    signal.signal(signum, signal.SIG_IGN)
    try:
        os.killpg(0, signum)
    finally:
        signal.signal(signum, _hand_on)


def _end_with_guard() -> None:
    """In the kernel, before its program: it is killed when the thread that started it, this one's only one then, ends."""
    with suppress(OSError, AttributeError):
        prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _wait_for(pid: int) -> int:
    """The wait status of a child; adopted orphans that end meanwhile are waited for too."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_as(status: int) -> None:
    """End with an exit code, or of the signal, that another process ended with."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)
