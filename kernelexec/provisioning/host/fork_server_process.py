"""The process of a fork server, possibly started before the configuration of kernels is known.

The imports of a fork server take longer than all other steps before a new kernel, and the imports of the command line take
as long. So a command sure to run code on this machine starts a server first (``start_early``). The executor takes the server
(``take_early``) unless the configuration needs another interpreter or other variables at the server's start.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.launch import LAUNCHER, LOADER_VARIABLES

#: Variables that Python and the C library read while they start. No other one is given to a server that starts early, since
#: its kernels can read with what it has started, and the variables that they must not see are not known yet.
_STARTUP_PREFIXES = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_")
_STARTUP_NAMES = frozenset({"HOME", "LANG", "LANGUAGE", "PATH", "TZ"})


@dataclass(frozen=True, slots=True)
class ForkServerProcess:
    """A started fork server, waiting for settings; ``channel`` is our end of the socket pair."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def start(cls, python: str, environ: Mapping[str, str], stderr: IO[bytes] | int) -> ForkServerProcess:
        """Start a server, which ends by itself once ``channel`` is closed.

        Raises:
            OSError: the interpreter cannot be started.
        """
        mark = os.urandom(16).hex()  # a forked kernel puts its own mark in this place
        # Datagrams keep each request and its descriptors together, and unlike SOCK_DGRAM report the end of the other side.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    [python, str(LAUNCHER), protocol.FORKSERVER_FLAG, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd="/",
                    env={**environ, protocol.KERNEL_MARK_VARIABLE: mark},
                    pass_fds=[theirs.fileno()],
                    **platform.PLATFORM.process_group_options,
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours)

    def discard(self) -> None:
        """End an unused server."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


#: The server that was started early and not taken yet.
_early: list[ForkServerProcess] = []


def start_early() -> None:
    """Start a server with this interpreter ahead of the need, unless any of ``LOADER_VARIABLES`` is set."""
    if not platform.PLATFORM.has_fork_server or any(os.environ.get(name) for name in LOADER_VARIABLES):
        return
    try:
        _early.append(ForkServerProcess.start(sys.executable, _startup_part(os.environ), subprocess.DEVNULL))
    except OSError:  # the later start, when the server is needed, reports the reason
        return
    atexit.register(discard_early)


def take_early(python: str, environ: Mapping[str, str]) -> ForkServerProcess | None:
    """Return the early server if a server started now would be the same; else end the early server and return None."""
    if not _early:
        return None
    if python == sys.executable and _startup_part(environ) == _startup_part(os.environ) and _early[0].process.poll() is None:
        return _early.pop()
    discard_early()
    return None


def discard_early() -> None:
    """End an early server not yet taken."""
    while _early:
        _early.pop().discard()


def _startup_part(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in _STARTUP_NAMES or name.startswith(_STARTUP_PREFIXES)}
