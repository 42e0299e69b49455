"""The process of a fork server, which can start before anything is known of the kernels.

The imports of a fork server take longer than all else that a new kernel waits for, and so do those of the command line. So
a command that is sure to run code on this machine starts a server first of all (``start_early``), and the executor takes it
(``take_early``) if the configuration does not ask for another interpreter or another start of it.
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
    """A started fork server, which waits for its settings; ``channel`` is our end of its socket."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def start(cls, python: str, environ: Mapping[str, str], stderr: IO[bytes] | int) -> ForkServerProcess:
        """Start a server. It ends by itself when the other end of its socket is closed.

        Raises:
            OSError: the interpreter cannot be started.
        """
        mark = os.urandom(16).hex()  # a forked kernel puts its own mark in this place
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
        """End a server that nothing uses."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


#: The server that was started early and not taken yet.
_early: list[ForkServerProcess] = []


def start_early() -> None:
    """Start a server with this interpreter ahead of the need, unless variables say from where it is to load files."""
    if not platform.PLATFORM.has_fork_server or any(os.environ.get(name) for name in LOADER_VARIABLES):
        return
    try:
        _early.append(ForkServerProcess.start(sys.executable, _startup_part(os.environ), subprocess.DEVNULL))
    except OSError:  # the one that is started when it is needed says why
        return
    atexit.register(discard_early)


def take_early(python: str, environ: Mapping[str, str]) -> ForkServerProcess | None:
    """Return the server that was started early, if it is as one that starts now; else end it."""
    if not _early:
        return None
    if python == sys.executable and _startup_part(environ) == _startup_part(os.environ) and _early[0].process.poll() is None:
        return _early.pop()
    discard_early()
    return None


def discard_early() -> None:
    """End the server that was started early, if nothing has taken it."""
    while _early:
        _early.pop().discard()


def _startup_part(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in _STARTUP_NAMES or name.startswith(_STARTUP_PREFIXES)}
