"""The kernel: ipykernel's, with interrupts that reach every cell, replies that always come, and a word about the state."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Instance, Type

from .. import platform
from ..features import variables
from ..features.memory_monitor import Gauge, own_group
from ..features.stdin import Questions
from ..features.user_namespace import Names
from ..output.crash_buffer import LastWords
from ..output.iopub import Publisher
from ..output.published import Tape
from ..output.streams import Stream
from ..output.truncate import bounded, bounded_traceback
from ..owner import Lease, Order, say_ready
from ..processes import fork_flag, tree
from ..processes.background import Jobs
from ..processes.exec_audit import Watch
from .control_requests import NAMES, SERVED, VARIABLES_MAX, Served
from .interrupts import cancelling, ignore_interrupts, interruptible, looked
from .patches import modules_left_out
from .session import pack
from .shell import Shell
from .shell_channel import Requests

_OWNER = "kernelexec"  # how the owner signs its requests, as a Jupyter client says its user's name
#: How many variables are named where memory gets short, and from which size on.
_BIGGEST, _BIG_BYTES = 5, 1024 * 1024


class Kernel(Served, IPythonKernel):
    """Serves one owner. ``order`` is what it was started with."""

    shell_class = Type(Shell)
    shell_stream: Any = Instance(object)
    order = Order()
    lease: Lease | None = None
    confined: dict[str, list[str]] = {}  # noqa: RUF012 - of the process
    """See ``confinement.confine``."""
    _execute_sleep = 0
    _supports_kernel_subshells = False

    def __init__(self, **kwargs: Any) -> None:
        if self.order.token:
            kwargs["shell_stream"] = Requests(kwargs["shell_stream"].socket)
        with modules_left_out() if self.order.token else nullcontext():
            super().__init__(**kwargs)
        self.control_handlers |= {f"kernelexec_{name}_request": getattr(self, f"{name}_request") for name in SERVED}
        self._jobs, self._watch = Jobs(), Watch(self._ask_about)
        self._questions = Questions(self._tell_question)
        self._own_streams = (sys.stdout, sys.stderr, sys.displayhook)
        self._look_for_names = Names()
        self._known_names: set[str] = self._names()
        self._cpu_before = 0.0
        self._cell_task: asyncio.Future[Any] | None = None
        self._cell_loop: asyncio.AbstractEventLoop | None = None
        self._new_venv: dict[str, Any] | None = None

    def start(self) -> None:
        """Serve, and say so once the loop turns."""
        super().start()
        if self.order.token:
            self.shell_stream.io_loop = self.io_loop  # who shuts the kernel down looks for it
            self.shell_stream.on_recv(partial(self.shell_main, None))
        self._words = LastWords(self.order.words)
        self._gauge = Gauge(own_group(), self._biggest, self._say_memory)
        if isinstance(self.iopub_thread, Publisher):
            self.iopub_thread.words = self._words
        if self.order.judged:
            self._watch.begin()
        self.io_loop.add_callback(say_ready, self.order, self.confined)

    def pre_handler_hook(self) -> None:
        """Outside of a cell interrupts are ignored: one that came late must not cost a reply."""

    def post_handler_hook(self) -> None:
        """See pre_handler_hook."""

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """The word that a cell begins is sent with its code, which follows at once: who reads is woken once."""
        parent, publisher = parent or self.get_parent(channel), self.iopub_thread
        if status == "busy" and parent.get("msg_type") == "execute_request" and not parent.get("content", {}).get("silent"):
            publisher.holds_next = True
        super()._publish_status(status, channel, parent)
        publisher.holds_next = False  # where it was queued, no other message waits in its place

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: FBT001 - ipykernel's
        """Run a cell; whatever happens, there is a reply."""
        self._prepare()
        try:
            with interruptible():
                if self.shell.programs.pending:
                    self._new_venv = self.shell.programs.serve()
                content: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
        except BaseException as exc:  # also a KeyboardInterrupt that hit ipykernel's own lines
            ignore_interrupts()
            content = self._failure(exc)
        self._cell_task = None
        self.iopub_thread.between_cells = True
        if fork_flag.forked:  # a child of the cell came back: the kernel is its parent's
            os._exit(content.get("status") == "error")
        self._restore_streams()
        self._part_from_children()
        if content.get("status") == "ok" and self.shell.failed_within:
            content |= {"status": "error", **self.shell.failed_within}
        if content.get("status") == "error":
            content["evalue"] = bounded(content.get("evalue", ""))
            content["traceback"] = bounded_traceback(content.get("traceback") or [])
        return content

    def _prepare(self) -> None:
        """Give the cell the streams that reach its owner, whatever an earlier cell did to them.

        From now on signals' handlers may raise: what is sent is sent as a whole, or by the publisher's own thread.
        """
        self.iopub_thread.between_cells = False
        self._restore_streams()
        for stream in self._own_streams[:2]:
            if isinstance(stream, Stream):
                stream.begin_cell()
        header = self.get_parent("shell").get("header", {})
        self._words.begin(header)
        if self.order.tape_bytes and header.get("username") == _OWNER and isinstance(self.iopub_thread, Publisher):
            self.iopub_thread.tape = Tape(str(header.get("msg_id")), self.order.tape_bytes)
        self._cpu_before = platform.cpu_seconds()
        self._gauge.begin_cell()
        self.shell.expect_cell()
        self.shell.last_exit_code = self.shell.last_work_dir = self.shell.last_answer = self.shell.failed_within = None

    def _part_from_children(self) -> None:
        """Wait for what programs wrote so far; what those that go on will write belongs to this cell, not to a later one."""
        lingering = tree.has_children()
        streams = [stream for stream in self._own_streams[:2] if isinstance(stream, Stream)]
        for stream in streams[:1]:  # for both, and for children
            stream.drain()
        if lingering:
            for stream in streams:
                stream.part_from_programs()
            tree.reap_adopted()

    def _restore_streams(self) -> None:
        sys.stdout, sys.stderr, sys.displayhook = self._own_streams

    def _failure(self, exc: BaseException) -> dict[str, Any]:
        error = {"status": "error", "ename": type(exc).__name__, "evalue": bounded(exc), "traceback": []}
        count = max(0, (self.shell.execution_count or 1) - 1)
        return {**error, "execution_count": count, "user_expressions": {}, "payload": []}

    def finish_metadata(self, parent: Any, metadata: dict[str, Any], reply_content: dict[str, Any]) -> dict[str, Any]:
        """Put beside the reply what the owner cannot know: that this very process answers, and what became of it."""
        if reply_content.get("status") != "error":
            metadata = super().finish_metadata(parent, metadata, reply_content)
        names = self._names()
        added, removed = sorted(names - self._known_names), sorted(self._known_names - names)
        if parent["header"].get("username") == _OWNER:  # what another client's cells changed is the owner's to know too
            self._known_names = names
        metadata["kernelexec"] = {
            "token": self.order.token,
            "pid": os.getpid(),
            "names_added": added[:NAMES],
            "names_removed": removed[:NAMES],
            "names_count": len(names),
            "cpu_seconds": platform.cpu_seconds() - self._cpu_before,
            "peak_memory_bytes": platform.peak_memory_bytes(),
            "exit_code": self.shell.last_exit_code,
            "work_dir": self.shell.last_work_dir,
            "answer": self.shell.last_answer,
            "memory": self._gauge.end_cell(),
        }
        if self._new_venv is not None:
            metadata["kernelexec"]["venv"], self._new_venv = self._new_venv, None
        tape = self._tape(parent["header"].get("msg_id"))
        if tape is not None:
            tape.answered(reply_content, metadata, len(pack(reply_content)))
        return metadata

    def _tape(self, msg_id: Any) -> Tape | None:
        """The record of a cell, if it is the newest one."""
        tape = self.iopub_thread.tape if isinstance(self.iopub_thread, Publisher) else None
        return tape if tape is not None and tape.msg_id == msg_id else None

    def _names(self) -> set[str]:
        return self._look_for_names(self.shell.user_ns, self.shell.user_ns_hidden)

    def _biggest(self) -> list[tuple[str, int]]:
        told = variables.listing(self._names(), self.shell.user_ns, VARIABLES_MAX)["variables"]
        sized = sorted(((variable["size_bytes"] or 0, variable["name"]) for variable in told), reverse=True)
        return [(name, size) for size, name in sized[:_BIGGEST] if size >= _BIG_BYTES]

    def _say_memory(self, told: dict[str, Any]) -> None:
        """Tell the owner while its cell runs: afterwards there may be nobody to tell it."""
        header = self._words.header
        if header and header.get("username") == _OWNER:
            content = {**told, "token": self.order.token}
            self.session.send(self.iopub_socket, "kernelexec_memory", content, {"header": header})

    def _input_request(self, prompt: str, ident: Any, parent: Any, password: bool = False) -> str:  # noqa: FBT001, FBT002 - ipykernel's
        """Ask the owner, and have the cell's output read like the dialogue it was; another client is asked as Jupyter does."""
        __tracebackhide__ = True
        if parent.get("header", {}).get("username") != _OWNER:
            return str(super()._input_request(prompt, ident, parent, password))
        stdout = self._own_streams[0]
        stdout.write(prompt)
        stdout.flush()
        answered = self._questions.ask(prompt, password=password)
        stdout.write("\n" if password else f"{answered}\n")
        return answered

    def do_complete(self, code: str, cursor_pos: int | None) -> Any:
        """Complete a name; what the user's own classes do about it is ended after a while, or by an interrupt."""
        position = len(code) if cursor_pos is None else cursor_pos
        nothing = {"status": "ok", "matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}
        return looked(lambda: super(Kernel, self).do_complete(code, cursor_pos), nothing)

    def do_inspect(self, *args: Any, **kwargs: Any) -> Any:
        """Tell about a name; bounded as ``do_complete`` is."""
        nothing = {"status": "ok", "data": {}, "metadata": {}, "found": False}
        return looked(lambda: super(Kernel, self).do_inspect(*args, **kwargs), nothing)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """A cell that fails ends no other: what waits may be of another client, who asked for no such thing.

        A kernel that is not our driver's does as Jupyter's clients expect: what was sent to run after that cell does not.
        """
        if not self.order.token:
            super()._abort_queues(subshell_id)

    def _cancel_on_sigint(self, future: asyncio.Task[Any]) -> Any:
        """Let SIGINT end an async cell wherever it is: ipykernel 7.4 hands it to its loop without waking it."""
        self._cell_task, self._cell_loop = future, asyncio.get_running_loop()
        spared = self.shell_stream.running if isinstance(self.shell_stream, Requests) else ()
        self.shell.in_task = True
        return cancelling(future, Shell.run_within.__code__, spared)
