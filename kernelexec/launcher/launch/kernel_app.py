"""The program of a kernel: ipykernel's application with the launcher's streams, shell and kernel."""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import sys
import threading
import warnings
import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ipykernel
import zmq
from ipykernel.kernelapp import IPKernelApp
from tornado.ioloop import IOLoop
from traitlets.config import Config
from zmq.eventloop.zmqstream import ZMQStream

from .. import owner
from ..checkpoints.kernel_checkpoints import Checkpoints
from ..checkpoints.shared_state import OwnDescriptors, close_loop
from ..features.virtualenv import VirtualEnv
from ..ipython import messages
from ..ipython.figures import forget_directories
from ..ipython.kernel import LauncherKernel
from ..ipython.messages import LauncherMessageSession
from ..ipython.patches import leave_out_debugger
from ..ipython.shell import LauncherShell
from ..output import iopub, streams
from ..output.streams import named_as_base
from ..owner import apply_limits, exit_with_owner, prepare_for_relay, write_stacks_to
from ..processes.shell_session import MovedDirectories
from ..processes.tree import initialize_tree, kill_descendants
from ..protocol import KERNEL_MARK_VARIABLE, LaunchOptions
from ..sandbox.confinement import confine

#: Filters of warnings added by the modules of a fork server, the newest first. A fresh kernel has them before ipykernel's.
imported_filters: list[Any] = []
_BUFFERED = (io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
#: Classes of files in the order of closing, outer layers first. An archive may be in a buffer, or have a buffer below it.
_LAYERS = (io.TextIOBase, _BUFFERED, io.BufferedIOBase, zipfile.ZipFile, _BUFFERED, io.IOBase)


class _NoSubshells:
    """A stand-in for ipykernel 7.4's subshell thread. It is false, and has the thread of cells."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


@named_as_base
class LauncherApp(IPKernelApp):
    """The application of a kernel process."""

    name = "kernelexec-kernel"
    _counting = ExitStack()
    kernel_class = LauncherKernel
    outstream_class = f"{streams.__name__}.OutputStream"

    descriptors = OwnDescriptors()
    """The descriptors that this process has opened for itself."""
    collects_garbage = True
    """Whether to turn garbage collection on again once the kernel exists."""

    def _session_default(self) -> LauncherMessageSession:
        return LauncherMessageSession(parent=self)

    def init_code(self) -> None:
        """Exclude all present objects from garbage collection, then run the user's startup files.

        The logger gets the level of its handler. Otherwise each message makes four log records for the handler to drop.
        """
        if not self.logging_config:
            self.log.setLevel(self.log_level)
        self._counting.close()
        if self.collects_garbage:
            gc.freeze()  # a collection would copy the pages that forked kernels share
            gc.enable()
        super().init_code()

    def initialize(self, argv: Any = None) -> None:
        """Initialize the application, and count the application's descriptors before user code runs."""
        with self._counting:
            self._counting.enter_context(self.descriptors.count_opened())
            super().initialize(argv)
        for fd in self._list_own_outputs():  # loggers use these descriptors, so a copy keeps them open
            self.descriptors.keep(fd)
        self.descriptors.serve_at(self.ip)
        options, find_threads = LauncherKernel.options, self._list_threads
        self.kernel.checkpoints = Checkpoints(options, self.descriptors, self.leave, self.resume, find_threads)

    def leave(self, moves: MovedDirectories) -> None:
        """Close the resources of the application's objects in a copy of the kernel, and move to the copy's directories."""
        self.kernel.move(moves)
        for fd in self._list_own_outputs()[-1:]:  # messages of this process go where the kernel's own go
            os.dup2(fd, 2)
        self.iopub_thread.leave()
        for thread in (self.iopub_thread, self.control_thread):
            close_loop(thread.io_loop.asyncio_loop)

    def resume(self, options: LaunchOptions) -> None:
        """Turn this process, a copy of a kernel that has waited as a checkpoint, into a kernel with its own connection.

        User code may know the shell, the streams and the loop: these objects stay. Their sockets, threads and locks are new.
        """
        owner.become_kernel()
        if options.mark is not None:
            os.environ[KERNEL_MARK_VARIABLE] = options.mark
        initialize_tree()
        write_stacks_to(options.stacks)
        if options.stderr is not None:
            own_output = os.open(options.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for fd in self._list_own_outputs():
                os.dup2(own_output, fd, inheritable=False)
            os.close(own_output)
        with self.descriptors.count_opened():
            if options.owner is not None:
                exit_with_owner(options.owner, kill_descendants, grace_seconds=options.grace_seconds)
            self.connection_file = options.connection_file or self.abs_connection_file
            connection = json.loads(Path(self.connection_file).read_text(encoding="utf-8"))
            self.session.key, self.ip = connection["key"].encode(), connection["ip"]
            self.descriptors.serve_at(self.ip)
            atexit.unregister(self.close)  # ``init_sockets`` registers it again
            self.context = None  # the threads of the old context are not in this process
            self.init_sockets()
            self.init_heartbeat()
            kernel: Any = self.kernel
            loop = self.control_thread.io_loop
            kernel.control_stream = ZMQStream(self.control_socket, loop)
            kernel.debugpy_stream = ZMQStream(self.debugpy_socket, loop)
            kernel.control_thread, kernel.stdin_socket = self.control_thread, self.stdin_socket
            kernel.debug_shell_socket = self.debug_shell_socket
            kernel.resume(options, self.shell_socket)
            self.control_thread.start()  # last: a request must find the whole kernel
        LauncherShell.scratch = options.scratch

    def _list_own_outputs(self) -> list[int]:
        """Return the descriptors for messages of this process itself."""
        outputs = (sys.stdout, sys.stderr) if self.kernel is None else self.kernel.own_streams
        return [fd for stream in outputs if (fd := getattr(stream, "own_fd", None)) is not None]

    def _list_threads(self) -> list[Any]:
        return [self.control_thread, self.heartbeat, self.iopub_thread.thread]

    def init_poller(self) -> None:
        """Poll the parent's process id only if no FIFO shows the owner's end."""
        if LauncherKernel.options.owner is None:
            super().init_poller()

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Leave out subshells, which cost a thread and a hop for every message. The control thread does their work."""
        super().init_control(context)
        self.shell_channel_thread = _NoSubshells()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """Open the iopub socket as ipykernel does, but blocking, with a welcome for every subscriber and a bounded publisher.

        Without XPUB_VERBOSE the socket does not report a subscription if another client has the same, or had it until just now.
        """
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 1000
        self.iopub_socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.iopub_socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.iopub_socket.setsockopt(zmq.SNDHWM, iopub.SENDING_MAX)  # before the bind: it holds for later connections only
        self.iopub_port = self._bind_socket(self.iopub_socket, self.iopub_port)
        if self.iopub_thread is not None:
            self.iopub_thread.resume(self.iopub_socket)
            self.iopub_socket = self.iopub_thread.background_socket
            return
        self.configure_tornado_logger()
        self.iopub_thread = iopub.Publisher(self.iopub_socket, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket


def build_config() -> Config:
    """Return the settings that differ from IPython's: no history database, and completion from living objects.

    Completion by jedi, which reads code, takes a second to load and tens of MiB in every kernel.
    """
    config = Config()
    config.HistoryManager.enabled = False
    config.IPCompleter.use_jedi = False
    config.Session.check_pid = False  # a forked child's messages are turned into text instead
    config.Session.packer = f"{messages.__name__}.pack"
    return config


def main(arguments: list[str]) -> None:
    """Run a kernel until a shutdown or the end of the owner."""
    LauncherApp.collects_garbage = gc.isenabled()
    gc.disable()  # until the kernel exists
    options = LaunchOptions.take()
    # The order matters: rights that are given up at the confinement cannot be had again, and the variables of ``apply``
    # decide which files a program loads. Threads begin after both, with the watch of the owner.
    apply_limits(options.limits)
    initialize_tree()
    owner.track_forks()
    if options.stacks is not None or options.connection is not None:
        write_stacks_to(options.stacks)
    LauncherKernel.confinement = options.confined or confine(options.confinement)
    options.apply()
    forget_directories()
    prepare_for_relay(options, arguments)
    if options.owner is not None:
        exit_with_owner(options.owner, kill_descendants, grace_seconds=options.grace_seconds)
    LauncherKernel.options = options
    LauncherShell.scratch, LauncherShell.programs = options.scratch, VirtualEnv(options.programs)
    LauncherShell.programs.check()
    if options.token:
        leave_out_debugger()
    app = LauncherApp.instance(config=build_config())
    app.initialize(arguments)
    sys.argv[0] = str(Path(ipykernel.__file__).parent.with_name("ipykernel_launcher.py"))  # libraries look at its name
    os.environ.setdefault("JPY_PARENT_PID", str(os.getppid()))  # as above
    if imported_filters:
        filters: Any = warnings.filters
        filters[:] = [*imported_filters, *(entry for entry in filters if entry not in imported_filters)]
    try:
        with LauncherApp.descriptors.count_opened():
            IOLoop.current()
        app.start()
    finally:
        kill_descendants()
    if options.token:
        exit_without_freeing()


def exit_without_freeing() -> None:
    """Exit as Python does, but without freeing objects: a forked kernel would copy all its shared memory for that."""
    threads: Any = threading
    with suppress(Exception):
        threads._shutdown()  # noqa: SLF001 - the only way to wait for threads (Python 3.11 to 3.14)
        atexit._run_exitfuncs()  # noqa: SLF001 - and to run exit handlers
    close_files()  # ``_exit`` flushes nothing
    os._exit(0)


def close_files() -> None:
    """Close the user's open files, as Python does at the end. Files of the start are frozen objects."""
    bases: Any = (io.IOBase.__base__, zipfile.ZipFile)  # Python's own classes are no subclasses of ``IOBase`` itself
    files: list[Any] = [sys.__stdout__, sys.__stderr__, *(each for each in gc.get_objects() if issubclass(type(each), bases))]
    for layer in _LAYERS:
        for file in files:
            with suppress(BaseException):  # of a user's class
                if issubclass(type(file), layer) and not getattr(file, "closed", False):  # a flush waits for no reader
                    (file.flush if type(file).__module__ == "_io" else file.close)()
