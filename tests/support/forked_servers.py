"""Fork servers that a test's process starts in milliseconds, since they are forked too.

A new fork server needs a fifth of a second of processor time for its imports, and most tests that run a cell on this machine
start one. One that would be started with the same interpreter, environment, limits and signals as the template is forked from
it instead; then all goes its usual way, and a module that looks at the processes that executors start has ``OWN_FORK_SERVERS``.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from kernelexec.config import Config
from kernelexec.launcher import protocol
from kernelexec.provisioning.host.fork_server_process import ForkServerProcess
from kernelexec.provisioning.host.interpreters import without_untrusted
from kernelexec.provisioning.launch.environment import kernel_environment
from tests.support.remains import RUN

PROGRAM = Path(__file__).with_name("server_template.py")
#: Variables that differ by test module, in equally long values.
_BY_MODULE = (RUN, "KERNELEXEC_RUNTIME_DIR")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class ForkedServer:
    """The process of a fork server, with what its owner uses of a Popen."""

    returncode: int | None = None

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return a substitute for its exit status once it has ended."""
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end."""
        return self._end(timeout)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout)[0]:
            os.close(self._pidfd)
            self.returncode = 0
        return self.returncode


class ServerTemplate:
    """A process of which fork servers are forked."""

    def __init__(self) -> None:
        """Start it; it imports while the tests go on."""
        self._start = ForkServerProcess.start
        self._surroundings = _surroundings(without_untrusted(kernel_environment(Config(isolation="local"))))
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        by_module = {RUN: uuid.uuid4().hex, "KERNELEXEC_RUNTIME_DIR": f"{tempfile.gettempdir()}/kxr-00000000"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={**self._surroundings[0], **by_module, protocol.KERNEL_MARK_VARIABLE: uuid.uuid4().hex},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End it; servers that it has forked go on."""
        self._channel.close()
        self._process.wait()

    def start(self, python: str, environ: Mapping[str, str], stderr: IO[bytes] | int) -> ForkServerProcess:
        """Start a fork server, as ``ForkServerProcess.start`` does."""
        if python != sys.executable or _surroundings(environ) != self._surroundings:
            return self._start(python, environ, stderr)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {name: environ[name] for name in _BY_MODULE} | {protocol.KERNEL_MARK_VARIABLE: uuid.uuid4().hex}
        with theirs, Path(os.devnull).open("wb") as null:
            target = null.fileno() if stderr == subprocess.DEVNULL else stderr if isinstance(stderr, int) else stderr.fileno()
            socket.send_fds(self._channel, [json.dumps(variables).encode()], [theirs.fileno(), target])
            _, [pidfd], _, _ = socket.recv_fds(self._channel, 16, 1)
        return ForkServerProcess(cast("subprocess.Popen[bytes]", ForkedServer(pidfd)), ours)


def _surroundings(environ: Mapping[str, str]) -> tuple[dict[str, str], Any]:
    """Return what a process that starts now inherits, but for the variables that are replaced."""
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    rest = limits, os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return {name: value for name, value in environ.items() if name not in _BY_MODULE}, rest
