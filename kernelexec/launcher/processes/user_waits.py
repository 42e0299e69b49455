"""``os.wait`` and its relatives, for which the launcher's own children are no children of the user's code.

A checkpoint is a child of the kernel that never ends by itself: code that waits for any child would wait for it.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import platform
from . import proc, tree

#: Children of other threads may start while a wait blocks, so it looks for new ones after this time.
_LOOK_MILLISECONDS = 200
_wait4, _waitid = platform.wait4, platform.waitid


def hide_own_children() -> None:
    """Leave ``tree.own_children`` out of what ``os.wait``, ``wait3``, ``wait4``, ``waitpid`` and ``waitid`` wait for."""
    if _wait4 is None or _waitid is None or os.wait is wait:
        return
    for function in (wait, wait3, wait4, waitpid, waitid):
        setattr(os, function.__name__, function)


def wait() -> tuple[int, int]:
    """Wait for the end of any child, as ``os.wait``."""
    return waitpid(-1, 0)


def wait3(options: int) -> tuple[int, int, Any]:
    """Wait for any child, as ``os.wait3``."""
    return wait4(-1, options)


def waitpid(pid: int, options: int) -> tuple[int, int]:
    """Wait for a child, as ``os.waitpid``."""
    return wait4(pid, options)[:2]


def wait4(pid: int, options: int) -> tuple[int, int, Any]:
    """Wait for a child, as ``os.wait4``."""
    if pid > 0 or not tree.own_children:
        return _wait4(pid, options)  # type: ignore[no-any-return]
    group = None if pid == -1 else -pid or os.getpgrp()
    change: tuple[int, int, Any] = _wait_any(
        group,
        lambda child: ended if (ended := _wait4(child, options | os.WNOHANG))[0] else None,
        (0, 0, None) if options & os.WNOHANG else None,
    )
    return change


def waitid(idtype: int, ident: int, options: int, /) -> Any:
    """Wait for a child, as ``os.waitid``."""
    if idtype not in (os.P_ALL, os.P_PGID) or not tree.own_children:
        return _waitid(idtype, ident, options)
    group = None if idtype == os.P_ALL else ident or os.getpgrp()
    change = _wait_any(
        group,
        lambda child: _waitid(os.P_PID, child, options | os.WNOHANG),
        _NOTHING if options & os.WNOHANG else None,
    )
    return None if change is _NOTHING else change


_NOTHING = object()


def _wait_any(group: int | None, look: Callable[[int], Any], none_yet: Any) -> Any:
    """Return what ``look`` finds out about the first child of the user's code that has changed, or ``none_yet`` at once."""
    while True:
        children = [child for child in tree.list_children() if child not in tree.own_children]
        if group is not None:
            statuses = {child: proc.read_status(child) for child in children}
            children = [child for child, status in statuses.items() if status is not None and status.group == group]
        if not children:
            raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
        for child in children:
            with suppress(ChildProcessError):  # another thread was faster
                if (change := look(child)) is not None:
                    return change
        if none_yet is not None:
            return none_yet
        _wait_for_end(children)


def _wait_for_end(children: list[int]) -> None:
    descriptors = []
    ended = select.poll()
    try:
        for child in children:
            with suppress(OSError):
                descriptors.append(os.pidfd_open(child))
                ended.register(descriptors[-1], select.POLLIN)
        ended.poll(_LOOK_MILLISECONDS)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
