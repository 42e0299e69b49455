"""Puts the kernel together: ipykernel's application with our streams, shell and kernel, and nothing that it does not need."""

from __future__ import annotations

import threading
from typing import Any

import IPython
import zmq
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from . import streams
from .family import adopt_orphans, kill_descendants
from .kernel import Kernel
from .lifeline import Lease, Order, apply_limits, connection_arguments, end_with_owner, write_stacks_to
from .shell import Shell
from .threads import inherit_context

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

    def init_poller(self) -> None:
        """The owner's pipe or lease tells of its death; the parent's process id is polled only where there is neither."""
        if Kernel.order.owner is None and Kernel.lease is None:
            super().init_poller()

    def init_control(self, context: zmq.Context[Any]) -> None:
        """Subshells cost a thread and a hop for every message; what they are for here, the control thread does."""
        super().init_control(context)
        self.shell_channel_thread = _NoSubshells()

    def init_iopub(self, context: zmq.Context[Any]) -> None:
        """As ipykernel does, with a socket that blocks and a publisher that is bounded."""
        self.iopub_socket = context.socket(zmq.XPUB)
        self.iopub_socket.linger = 1000
        streams.block_instead_of_dropping(self.iopub_socket)
        self._apply_curve_server_options(self.iopub_socket)
        self.iopub_port = self._bind_socket(self.iopub_socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = streams.Publisher(self.iopub_socket, pipe=True, session=self.session)
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
    config.Session.packer = f"{streams.__name__}.pack"
    if not colours:
        config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= _NINE else "NoColor"
    return config


def main(arguments: list[str]) -> None:
    """Run a kernel until it is shut down or its owner dies."""
    order = Order.take()
    apply_limits(order.limits)
    adopt_orphans()
    if order.stacks is not None or order.connection is not None:
        write_stacks_to(order.stacks)
    if order.owner is not None:
        end_with_owner(order.owner, kill_descendants, patience=order.patience)
    if order.lease_seconds is not None:
        Kernel.lease = Lease(order.lease_seconds, kill_descendants)
    Kernel.order = order
    Shell.scratch = order.scratch
    app = App.instance(config=settings(colours=not order.token))
    with connection_arguments(order, arguments) as found:
        app.initialize(found)
    inherit_context(app.kernel)
    try:
        app.start()
    finally:
        kill_descendants()
