"""The program from which the fork servers of the tests are forked; see ``forked_servers``.

It imports what a fork server imports, and forks one on request of the process at the other end of its socket, with which it
ends. A request brings two descriptors, the server's end of its owner's socket and its stderr; the answer has its pidfd.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

LAUNCHER = Path(__file__).resolve().parents[2] / "kernelexec" / "launcher"
_MESSAGE_BYTES, _STDERR = 4096, 2
#: Where proc_pid_stat(5) has ``env_start`` and ``env_end``, counted from the field after the command's name.
_ENV_START, _ENV_END = 47, 48


def replace_variable(name: str, value: str) -> None:
    """Replace a variable by a value of the same length, also in the first environment of this process."""
    os.environ[name] = value
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    prefix = f"{name}=".encode()
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.startswith(prefix):
            assert len(entry) == len(prefix) + len(value)
            ctypes.memmove(position + len(prefix), value.encode(), len(value))
        position += len(entry) + 1


def main() -> None:
    """Serve until the process at the other end has gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    package = sys.modules[LAUNCHER.name] = ModuleType(LAUNCHER.name)
    package.__path__ = [str(LAUNCHER)]
    import_module(f"{LAUNCHER.name}.platform").reset_signals()
    protocol = import_module(f"{LAUNCHER.name}.protocol")
    server = import_module(f"{LAUNCHER.name}.launch.forkserver")
    server.import_startup_modules()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the servers but by their pidfds
    while True:
        message, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
        if not message:
            return
        if pid := os.fork():
            pidfd = os.pidfd_open(pid)
            socket.send_fds(control, [b"{}"], [pidfd])
            for fd in (pidfd, *fds):
                os.close(fd)
            continue
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        channel, stderr = fds
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        for name, value in json.loads(message).items():
            replace_variable(name, value)
        sys.argv[:] = [str(LAUNCHER), protocol.FORKSERVER_FLAG, str(channel)]
        sys.orig_argv[1:] = sys.argv
        server.set_process_title(*sys.argv)
        server.main([str(channel)])
        os._exit(0)


if __name__ == "__main__":
    main()
