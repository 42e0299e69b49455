"""The fork server, which imports the modules of kernels once and forks a kernel on request.

``main`` serves the owner's end of a socket and ends with the owner. The first message brings two descriptors: a file with
``ForkServerSettings``, and the server's stderr. A request brings a file with a ``Fork``, and the kernel's stderr. The forked
process itself answers with its pidfd, and a later message reports the end. So the owner knows of every forked process
once the socket has no sender left.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import io
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from ..ipython.patches import leave_out_debugger
from ..ipython.shell import LauncherShell
from ..processes import proc
from ..processes.tree import adopt_orphans, replace_mark
from ..protocol import KERNEL_MARK_VARIABLE, ForkServerReport, ForkServerSettings
from . import kernel_app

_MESSAGE_BYTES, _REASON_CHARS, _MODULES_MAX = 64 * 1024, 300, 1000
#: The idle time before the next import. After the second time the server imports between requests too.
_IDLE_MILLISECONDS, _IDLE_ONLY_SECONDS = 200, 3.0
#: Set for imports: matplotlib reads the variable then. A kernel has the same value.
_BACKEND = ("MPLBACKEND", "module://matplotlib_inline.backend_inline")
#: Keeps pyarrow, which pandas imports, from starting a thread of its allocator: threads do not survive a fork.
_ARROW = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
#: Modules imported by ipykernel 7.4 and IPython 9 while a kernel starts.
_LATE = (
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
)

_STDERR = 2


def main(arguments: list[str]) -> None:
    """Serve until the owner has gone. A forked process runs a kernel here."""
    channel = socket.socket(fileno=int(arguments[0]))
    import_startup_modules()
    adopt_orphans()
    threads = _prepare_fork()
    _send(channel, {"serves": threads == 1, "threads": threads, "modules": _list_modules(())})
    if threads != 1:
        os._exit(1)
    _Server(channel).serve().run()


class _Server:
    """The parent of forked kernels, which waits for their ends and between requests imports modules of the settings.

    The import of a module with text or remaining threads ends the server: the text belongs to the importing cell of a kernel,
    and threads do not survive a fork.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._modules: deque[str] = deque()
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._kernels: dict[int, int] = {}
        """The number of the request, by the kernel's process id."""
        # A signal alone does not end ``poll``, which Python calls again (PEP 475). Its handler must exist all the same.
        self._wakeup_fd, wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wakeup_fd, select.POLLIN)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up pipe reports it

    def serve(self) -> ForkRequest:
        """Serve requests without end. Return the request in a forked child only."""
        idle_until = time.monotonic() + _IDLE_ONLY_SECONDS
        while True:
            ready = self._poll.poll(_IDLE_MILLISECONDS if self._modules else None)
            for fd, _ in ready:
                if fd == self._wakeup_fd:
                    with suppress(BlockingIOError):
                        os.read(fd, _MESSAGE_BYTES)
                    self._reap()
                elif (request := self._handle_request()) is not None:
                    return request
            if self._modules and (not ready or time.monotonic() > idle_until):
                self._import(self._modules.popleft())

    def _handle_request(self) -> ForkRequest | None:
        """Answer a request. Return the request in the forked child only."""
        try:
            message, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 2)
        except InterruptedError:
            return None
        if not message:  # the owner is gone
            os._exit(0)
        content = json.loads(message)
        if "settings" in content:
            self._apply_settings(*fds)
            return None
        number = content["request"]
        if "adopt" in content:
            self._adopt(number, content["adopt"])
            return None
        file, stderr = fds
        try:
            with os.fdopen(file, "rb") as content:
                request = ForkRequest(**json.load(content))
            pid = os.fork()
        except (OSError, ValueError) as exc:
            _send(self._channel, {"request": number, "failed": str(exc)})
            os.close(stderr)
            return None
        if pid == 0:
            replace_mark(request.environ.get(KERNEL_MARK_VARIABLE, ""))
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _send(self._channel, {"request": number, "pid": os.getpid()}, os.pidfd_open(os.getpid()))
            self._channel.detach()  # the object must not close a later file of the same number: see ``detach`` below
            null = os.open(os.devnull, os.O_RDWR)
            for fd, target in ((null, 0), (null, 1), (stderr, 2)):
                os.dup2(fd, target)
            detach()
            return request
        os.close(stderr)
        self._kernels[pid] = number
        return None

    def _apply_settings(self, file: int, stderr: int) -> None:
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        with os.fdopen(file, "rb") as content:
            settings: ForkServerSettings = json.load(content)
        os.environ.clear()
        os.environ.update(settings["environ"])
        for variable in (_BACKEND, _ARROW):
            os.environ.setdefault(*variable)
        self._modules.extend(settings["modules"])

    def _adopt(self, number: int, pid: int) -> None:
        """Watch a kernel forked by a checkpoint. The kernel is a child of this process, which adopts orphans."""
        try:
            # Only a child can be waited for, so the id is no other program's. WNOWAIT leaves a status to ``_reap``.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            fd = os.pidfd_open(pid)
        except OSError as exc:
            _send(self._channel, {"request": number, "lost": str(exc)})
            return
        proc.give_oom_score(pid)
        self._kernels[pid] = number
        _send(self._channel, {"request": number, "pid": pid}, fd)
        os.close(fd)
        self._reap()

    def _reap(self) -> None:
        """Report the ends of kernels, and ignore the ends of other children: orphans of kernels, and checkpoints."""
        # SIGCHLD does not queue: a single wake-up may stand for several ends.
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                number = self._kernels.pop(ended[0], None)
                if number is not None:
                    _send(self._channel, {"request": number, "ended": os.waitstatus_to_exitcode(ended[1])})

    def _import(self, name: str) -> None:
        """Import a module like a cell, and report a failure."""
        report: ForkServerReport = {"imported": name}
        shown, filters, before = _ShownText(), list(warnings.filters), set(sys.modules)
        try:
            with _stand_in_shell(), redirect_stdout(shown), redirect_stderr(shown):
                exec("__import__(name)", {"__name__": "__main__", "name": name})  # noqa: S102 - its warnings name the caller
        except BaseException as exc:  # a module may even exit
            report["failed"] = f"{type(exc).__name__}: {exc}"[:_REASON_CHARS]
        kernel_app.imported_filters[:0] = [entry for entry in warnings.filters if entry not in filters]
        threads, shows = _prepare_fork(), bool(shown.getvalue())
        _send(self._channel, {**report, "threads": threads, "shows": shows, "modules": _list_modules(before)})
        if threads != 1 or shows:
            os._exit(0)


class _ShownText(io.StringIO):
    """A stream for shown text. pandas reads the encoding, which must be the encoding of a kernel's stream."""

    encoding = "UTF-8"


@contextmanager
def _stand_in_shell() -> Iterator[None]:
    """Provide a kernel's shell during imports: pandas, tqdm and plotly choose their display by the shell."""
    shell = LauncherShell.__new__(LauncherShell)
    shell.config = Config({IPKernelApp.__name__: {"connection_file": ""}})
    classes: list[Any] = list(LauncherShell._walk_mro())  # noqa: SLF001 - IPython's get_ipython looks at the instance of each
    for cls in classes:
        cls._instance = shell
    vars(builtins)["get_ipython"] = lambda: shell
    try:
        yield
    finally:
        del vars(builtins)["get_ipython"]
        for cls in classes:
            cls._instance = None


def _list_modules(without: Collection[str]) -> list[str]:
    """Return the names of the loaded top-level modules, except modules of every Python or environment."""
    names = {name.partition(".")[0] for name in sys.modules if name not in without}
    return sorted(names - sys.stdlib_module_names - {"_distutils_hack"})[:_MODULES_MAX]


def _prepare_fork() -> int:
    """Return the number of threads before a fork. A first fork ends OpenBLAS's threads until they are needed again."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    gc.freeze()  # garbage is kept too: a collection takes 10 ms and finds little
    return count_threads()


def _send(channel: socket.socket, message: ForkServerReport, *fds: int) -> None:
    try:
        socket.send_fds(channel, [json.dumps(message).encode()], fds)
    except OSError:  # the owner is gone
        os._exit(0)


@dataclass(frozen=True)
class ForkRequest:
    """A request to fork a kernel."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str

    def run(self) -> None:
        """Run the kernel in this process until it ends."""
        set_process_title(sys.argv[0], *self.arguments)
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.cwd)
        sys.argv[1:] = self.arguments
        sys.orig_argv[1:] = sys.argv
        kernel_app.main(self.arguments)


def import_startup_modules() -> None:
    """Import the modules of a starting kernel."""
    for name in _LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    leave_out_debugger()


def set_process_title(*words: str) -> None:
    """Set the command line that ``ps`` shows, cut to the present length."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        first, end = int(fields[45]), int(fields[46])
        title = b"\0".join(os.fsencode(word) for word in (sys.executable, *words))
        ctypes.memmove(first, title[: end - first - 1].ljust(end - first, b"\0"), end - first)


def count_threads() -> int:
    """Return the number of this process's threads. Only the forking thread survives a fork."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names only


def detach() -> None:
    """Detach a forked child: new session, only the standard descriptors, other random numbers, new start time."""
    os.setsid()
    # Among the descriptors is the listing's own, which is closed already: hence ``suppress``.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        if int(name) > _STDERR:
            with suppress(OSError):
                os.close(int(name))
    log_time: Any = logging
    log_time._startTime = time.time_ns() if isinstance(log_time._startTime, int) else time.time()  # noqa: SLF001 - no other
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:  # Python's own module seeds itself after a fork
        numpy_random.seed()
