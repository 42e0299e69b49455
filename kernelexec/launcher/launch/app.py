"""Puts the kernel together: ipykernel's application with our streams, shell and kernel, and nothing that it does not need."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any

import IPython
import zmq
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from ..features.virtualenv import Programs
from ..ipython import session
from ..ipython.context import inherit_context
from ..ipython.kernel import Kernel
from ..ipython.patches import take_shortcuts
from ..ipython.shell import Shell
from ..output import iopub, streams
from ..owner import Lease, Order, apply_limits, connection_arguments, end_with_owner, write_stacks_to
from ..processes import fork_flag
from ..processes.tree import begin_family, kill_descendants
from ..sandbox.confinement import confine

_NINE = 9


class _NoSubshells:
    """Stands where ipykernel 7.4 keeps its subshell thread: false, but asked for the thread that runs cells."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class App(IPKernelApp):
    """The application of one kernel process."""

    name = "kernelexec-kernel"
    kernel_class = Kernel
    outstream_class = f"{streams.__name__}.Stream"

    collects = True
    """Whether Python collected garbage before the kernel was made: then it does so again once it is made."""

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """An owner of ours names its connection file only, which needs no parser of 60 options (9 ms)."""
        match argv:
            case ["-f", file] if Kernel.order.token:
                self.argv, self.connection_file = argv, file
            case _:
                super().parse_command_line(argv)

    def _configure_logging(self) -> None:
        """As traitlets does, with the level on the logger too: else four records a message are made for nobody.

        By hand, unless somebody configures it: ``dictConfig`` looks at every logger that there is (3 ms).
        """
        name = type(self).__name__
        level: Any = self.log_level
        log = logging.getLogger(name)
        if self.logging_config:
            super()._configure_logging()
        else:
            console = logging.StreamHandler()
            console.setLevel(level)
            console.setFormatter(self._log_formatter_cls(self.log_format, self.log_datefmt))
            log.handlers[:] = [console]
            self._logging_configured = True
        if "level" not in self.logging_config.get("loggers", {}).get(name, {}):
            log.setLevel(level)

    def init_code(self) -> None:
        """What was made so far stays: it is never looked through for what could be freed. The user's own files come now."""
        if self.collects:
            gc.freeze()
            gc.enable()
        super().init_code()

    def _session_default(self) -> session.Session:
        return session.Session(parent=self)

    def init_poller(self) -> None:
        """The owner's pipe or lease tells of its death; the parent's process id is polled only where there is neither."""
        if Kernel.order.owner is None and Kernel.lease is None:
            super().init_poller()

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Subshells cost a thread and a hop for every message; what they are for here, the control thread does."""
        super().init_control(context)
        self.shell_channel_thread = _NoSubshells()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """As ipykernel does, with a socket that blocks, a welcome for every subscriber, and a publisher that is bounded.

        Without XPUB_VERBOSE the socket says nothing of a subscription that another client has, or had until just now.
        """
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 1000
        self.iopub_socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        iopub.block_instead_of_dropping(self.iopub_socket)
        self._apply_curve_server_options(self.iopub_socket)
        self.iopub_port = self._bind_socket(self.iopub_socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = iopub.Publisher(self.iopub_socket, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket


def settings(*, colours: bool) -> Config:
    """What differs from IPython's defaults: no history database, and names completed from what is there.

    Our driver reads text without colours; other clients show them.

    The other way (jedi reads code) takes a second to load, and tens of MiB in every kernel.
    """
    config = Config()
    config.HistoryManager.enabled = False
    config.IPCompleter.use_jedi = False
    config.Session.check_pid = False  # a forked child's messages are turned into text instead
    config.Session.packer = f"{session.__name__}.pack"
    if not colours:
        config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= _NINE else "NoColor"
    return config


def main(arguments: list[str]) -> None:
    """Run a kernel until it is shut down or its owner dies."""
    App.collects = gc.isenabled()
    gc.disable()  # until it is made
    order = Order.take()
    apply_limits(order.limits)
    begin_family()
    fork_flag.note_forks()
    if order.stacks is not None or order.connection is not None:
        write_stacks_to(order.stacks)
    Kernel.confined = order.confined or confine(order.confinement)
    order.settle()
    if order.owner is not None:
        end_with_owner(order.owner, kill_descendants, patience=order.patience)
    if order.lease_seconds is not None:
        Kernel.lease = Lease(order.lease_seconds, kill_descendants)
    Kernel.order = order
    Shell.scratch, Shell.programs = order.scratch, Programs(order.programs)
    Shell.programs.check()
    if order.token:
        take_shortcuts()
    app = App.instance(config=settings(colours=not order.token))
    with connection_arguments(order, arguments) as found:
        app.initialize(found)
    inherit_context(app.kernel)
    try:
        app.start()
    finally:
        kill_descendants()
    if order.token:
        leave()


def leave() -> None:
    """End as Python does, but for taking everything apart: a forked kernel would copy for that all memory that it shares."""
    threads: Any = threading
    with suppress(Exception):
        threads._shutdown()  # noqa: SLF001 - there is no other way to have it waited for threads (Python 3.11 to 3.14)
        atexit._run_exitfuncs()  # noqa: SLF001 - and to have exit handlers run
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0)
