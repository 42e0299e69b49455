"""The program from which the fork servers of the tests are forked; see ``forked_servers``.

It imports what a fork server imports, and forks one on request of the process at the other end of its socket, with which it
ends. A request brings two descriptors, the server's end of its owner's socket and its stderr; the answer has its pidfd.
"""

from __future__ import annotations

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


def main() -> None:
    """Serve until the process at the other end has gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    package = sys.modules[LAUNCHER.name] = ModuleType(LAUNCHER.name)
    package.__path__ = [str(LAUNCHER)]
    import_module(f"{LAUNCHER.name}.platform").reset_signals()
    protocol = import_module(f"{LAUNCHER.name}.protocol")
    marks = import_module(f"{LAUNCHER.name}.processes.tree")
    server = import_module(f"{LAUNCHER.name}.launch.forkserver")
    server.import_startup_modules()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the servers are waited for by their pidfds
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
            assert len(value) == len(os.environ[name])
            os.environ[name] = value
            marks.replace_first_value(name, value)
        sys.argv[:] = [str(LAUNCHER), protocol.FORKSERVER_FLAG, str(channel)]
        sys.orig_argv[1:] = sys.argv
        server.set_process_title(*sys.argv)
        server.main([str(channel)])
        os._exit(0)


if __name__ == "__main__":
    main()
