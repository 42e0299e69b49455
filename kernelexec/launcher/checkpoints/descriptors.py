"""The descriptors that a kernel has opened for itself, and not for user code: a copy of it closes them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_STDERR = 2


class OwnDescriptors:
    """The kernel's own descriptors: those opened within ``count_opened``, and both ends of connections to its sockets."""

    def __init__(self) -> None:
        self._own: dict[int, str] = {}
        self._prefix = ""

    @contextmanager
    def count_opened(self) -> Iterator[None]:
        """Count the descriptors that are opened within the block as the kernel's own."""
        before = list_open()
        yield
        self._own |= {fd: link for fd, link in list_open().items() if fd > _STDERR and before.get(fd) != link}

    def keep(self, fd: int) -> None:
        """Leave a descriptor open in copies."""
        self._own.pop(fd, None)

    def serve_at(self, prefix: str) -> None:
        """Count connections to sockets whose paths begin so as the kernel's own."""
        self._prefix = prefix

    def list(self) -> list[int]:
        """Return the kernel's own descriptors that are open."""
        present = list_open()
        return [fd for fd, link in present.items() if fd > _STDERR and (self._own.get(fd) == link or self._is_connection(fd))]

    def close(self) -> None:
        """Close them all, and forget them: the process is a copy of the kernel."""
        for fd in self.list():
            with suppress(OSError):
                os.close(fd)
        self._own = {}

    def _is_connection(self, fd: int) -> bool:
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                return False
            with socket.socket(fileno=os.dup(fd)) as copy:
                return any(self._is_ours(get) for get in (copy.getsockname, copy.getpeername))
        return False

    def _is_ours(self, get_name: Callable[[], object]) -> bool:
        """Return whether one end of a connection is one of the kernel's sockets."""
        with suppress(OSError):
            name = get_name()
            return bool(self._prefix) and isinstance(name, str) and name.startswith(self._prefix)
        return False


def list_open() -> dict[int, str]:
    """Return what each descriptor leads to; nothing where the system does not show it."""
    links = {}
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names only
    except OSError:
        return {}
    for name in names:
        with suppress(OSError):
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - text
    return links
