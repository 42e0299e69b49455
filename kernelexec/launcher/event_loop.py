"""asyncio's event loop in a copy of the process (CPython 3.11 to 3.14), which shares its descriptors with the original."""

from __future__ import annotations

import asyncio
import selectors
import signal
from collections.abc import Container, Iterable
from contextlib import suppress
from typing import Any


def list_watched(loop: Any, own: Container[int]) -> list[selectors.SelectorKey]:
    """Return the descriptors for which asyncio's loop calls functions, but for the launcher's ``own``."""
    return [key for key in loop._selector.get_map().values() if key.fd not in own]  # noqa: SLF001 - asyncio has no other way


def close_loop(loop: Any) -> None:
    """Close the descriptors of asyncio's loop (CPython 3.11 to 3.14) in a copy, and leave those of the kernel as they are."""
    loop._selector.close()  # noqa: SLF001 - asyncio has no other way
    for sock in (loop._ssock, loop._csock):  # noqa: SLF001 - as above
        sock.close()


def renew_loop(loop: Any, task: asyncio.Task[Any] | None, watched: Iterable[selectors.SelectorKey]) -> None:
    """Let asyncio's loop run on in this copy, within a task, with new descriptors: asyncio forgets in a fork what runs."""
    asyncio._set_running_loop(loop)  # noqa: SLF001 - as above
    if task is not None and asyncio.current_task(loop) is not task:
        asyncio.tasks._enter_task(loop, task)  # noqa: SLF001 - as above
    wakeup = signal.set_wakeup_fd(-1)
    loop._selector = selectors.DefaultSelector()  # noqa: SLF001 - as above
    for key in watched:
        with suppress(OSError):  # it was closed
            loop._selector.register(key.fd, key.events, key.data)  # noqa: SLF001 - as above
    loop._internal_fds = 0  # noqa: SLF001 - as above
    loop._make_self_pipe()  # noqa: SLF001 - as above
    if wakeup != -1:
        signal.set_wakeup_fd(loop._csock.fileno())  # noqa: SLF001 - as above
