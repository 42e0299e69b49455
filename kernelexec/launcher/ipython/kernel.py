"""ipykernel's kernel with interrupts that reach every cell, a reply to every cell, and a report of the state with it.

SIGINT raises only while user code runs. Requests are read as they arrive, without ``ZMQStream``, and a reply is sent at once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Coroutine
from contextvars import copy_context
from functools import partial
from types import CodeType, FrameType
from typing import Any

import zmq
from ipykernel.ipkernel import IPythonKernel
from traitlets import Instance, Type

from .. import owner, platform
from ..features import variables
from ..features.memory_monitor import MemoryMonitor, find_limited_cgroup
from ..features.variables import NameChanges
from ..output.iopub import NOBLOCK, OutputStream, Publisher, has_message, send_frames
from ..output.kept_output import CrashBuffer, PublishedMessages
from ..output.truncate import truncate, truncate_traceback
from ..owner import OwnerLease, notify_ready
from ..processes import tree
from ..protocol import MEMORY, METADATA_KEY, OWNER_USERNAME, LaunchOptions, MemoryReport, ReplyMetadata
from .control_requests import VARIABLES_MAX, ControlRequests, KernelContext
from .patches.message_session import pack
from .shell import LauncherShell

#: Number and least size of the variables that are named when memory gets short.
_BIGGEST, _BIG_BYTES = 5, 1024 * 1024
#: Limit of the added and of the removed names in a reply.
_CHANGED_NAMES_MAX = 1000
_Handler = Callable[[int, FrameType | None], Any] | int | None

#: The functions below ``signal.signal``, which spends 3 µs of every cell on the conversion of numbers to enums.
_set_handler: Any = _signal.signal
_get_handler: Any = _signal.getsignal
_SIGINT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)

#: Seconds for a completion or inspection, for which the next cell waits.
_LOOK_SECONDS = 3.0


class LauncherKernel(IPythonKernel):
    """The kernel of one owner."""

    shell_class = Type(LauncherShell)
    shell_stream: Any = Instance(object)
    options = LaunchOptions()
    lease: OwnerLease | None = None
    confinement: dict[str, list[str]] = {}  # noqa: RUF012 - of the process
    """See ``confinement.confine``."""
    _execute_sleep = 0
    _supports_kernel_subshells = False

    def __init__(self, **kwargs: Any) -> None:
        if self.options.token:
            kwargs["shell_stream"] = ShellChannel(kwargs["shell_stream"].socket)
        super().__init__(**kwargs)
        self._publisher: Publisher = self.iopub_thread
        self._publisher.crash_buffer = CrashBuffer(self.options.crash_buffer)
        self._context = KernelContext(
            options=self.options,
            lease=self.lease,
            session=self.session,
            shell=self.shell,
            publisher=self._publisher,
            get_parent=self.get_parent,
            names=NameChanges(self.shell),
        )
        self._control = ControlRequests(self._context)
        self.control_handlers |= self._control.handlers
        self._own_streams = (sys.stdout, sys.stderr, sys.displayhook)
        self._cpu_before = 0.0
        self._new_venv: dict[str, Any] | None = None

    def start(self) -> None:
        """Serve, and report readiness once the loop runs."""
        super().start()
        if self.options.token:
            self.shell_stream.io_loop = self.io_loop  # the shutdown handler of ipykernel needs it
            self.shell_stream.on_recv(partial(self.shell_main, None))
        self._memory_monitor = MemoryMonitor(find_limited_cgroup(), self._find_biggest_variables, self._report_memory)
        if self.options.audits_programs:
            self._control.audit.install()
        self.io_loop.add_callback(notify_ready, self.options, self.confinement)

    def pre_handler_hook(self) -> None:
        """Do nothing: interrupts are ignored outside of cells, since a late one must not cost a reply."""

    def post_handler_hook(self) -> None:
        """See pre_handler_hook."""

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish a status; a cell's ``busy`` is sent together with its ``execute_input``, so the reader wakes up once."""
        parent, publisher = parent or self.get_parent(channel), self.iopub_thread
        if status == "busy" and parent.get("msg_type") == "execute_request" and not parent.get("content", {}).get("silent"):
            publisher.holds_next_message = True
        super()._publish_status(status, channel, parent)
        publisher.holds_next_message = False  # if it was queued, no other message must wait in its place

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: FBT001 - ipykernel's
        """Run a cell, and always return a reply."""
        self._prepare_cell()
        try:
            with allow_interrupts():
                if self.shell.programs.is_pending:
                    self._new_venv = self.shell.programs.activate()
                content: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
        except BaseException as exc:  # also a KeyboardInterrupt that hit ipykernel's own lines
            ignore_interrupts()
            content = self._build_failure_reply(exc)
        self._context.cell.task = None
        self._publisher.between_cells = True
        if owner.is_forked_child:  # a child of the cell came back: the kernel is its parent's
            os._exit(content.get("status") == "error")
        self._restore_streams()
        self._separate_children()
        if content.get("status") == "ok" and self.shell.inner_error:
            content |= {"status": "error", **self.shell.inner_error}
        if content.get("status") == "error":
            content["evalue"] = truncate(content.get("evalue", ""))
            content["traceback"] = truncate_traceback(content.get("traceback") or [])
        return content

    def _prepare_cell(self) -> None:
        """Restore the streams, whatever an earlier cell did to them, and start counting for this cell.

        From now on signal handlers may raise, so messages are sent as a whole or by the publisher's own thread.
        """
        self._publisher.between_cells = False
        self._restore_streams()
        for stream in self._own_streams[:2]:
            if isinstance(stream, OutputStream):
                stream.begin_cell()
        header = self.get_parent("shell").get("header", {})
        self._publisher.crash_buffer.begin(header)
        if self.options.replay_bytes and header.get("username") == OWNER_USERNAME:
            self._publisher.published = PublishedMessages(str(header.get("msg_id")), self.options.replay_bytes)
        self._cpu_before = platform.cpu_seconds()
        self._memory_monitor.begin_cell()
        self.shell.prepare_cell()

    def _separate_children(self) -> None:
        """Read the output of programs so far; later output of programs that go on belongs to this cell too."""
        lingering = tree.has_children()
        streams = [stream for stream in self._own_streams[:2] if isinstance(stream, OutputStream)]
        for stream in streams[:1]:  # for both, and for children
            stream.drain()
        if lingering:
            for stream in streams:
                stream.separate_programs()
            tree.reap_adopted()

    def _restore_streams(self) -> None:
        sys.stdout, sys.stderr, sys.displayhook = self._own_streams

    def _build_failure_reply(self, exc: BaseException) -> dict[str, Any]:
        error = {"status": "error", "ename": type(exc).__name__, "evalue": truncate(exc), "traceback": []}
        count = max(0, (self.shell.execution_count or 1) - 1)
        return {**error, "execution_count": count, "user_expressions": {}, "payload": []}

    def finish_metadata(self, parent: Any, metadata: dict[str, Any], reply_content: dict[str, Any]) -> dict[str, Any]:
        """Add ``ReplyMetadata``: proof that this very process answers, and its state."""
        if reply_content.get("status") != "error":
            metadata = super().finish_metadata(parent, metadata, reply_content)
        # changes by another client's cells are reported to the owner too, with its next cell
        is_owners = parent["header"].get("username") == OWNER_USERNAME
        added, removed, count = self._context.names.changes(report=is_owners)
        entry: ReplyMetadata = {
            "token": self.options.token,
            "pid": os.getpid(),
            "names_added": added[:_CHANGED_NAMES_MAX],
            "names_removed": removed[:_CHANGED_NAMES_MAX],
            "names_count": count,
            "cpu_seconds": platform.cpu_seconds() - self._cpu_before,
            "peak_memory_bytes": platform.peak_memory_bytes(),
            "exit_code": self.shell.last_exit_code,
            "work_dir": self.shell.last_work_dir,
            "answer": self.shell.last_answer,
            "memory": self._memory_monitor.end_cell(),
        }
        if self._new_venv is not None:
            entry["venv"], self._new_venv = self._new_venv, None
        metadata[METADATA_KEY] = entry
        published = self._publisher.find_messages(parent["header"].get("msg_id"))
        if published is not None:
            published.set_reply(reply_content, metadata, len(pack(reply_content)))
        return metadata

    def _find_biggest_variables(self) -> list[tuple[str, int]]:
        listed = variables.describe_variables(self._context.names.current(), self.shell.user_ns, VARIABLES_MAX)["variables"]
        sized = sorted(((variable["size_bytes"] or 0, variable["name"]) for variable in listed), reverse=True)
        return [(name, size) for size, name in sized[:_BIGGEST] if size >= _BIG_BYTES]

    def _report_memory(self, report: MemoryReport) -> None:
        """Report memory to the owner while its cell runs: afterwards this process may be killed."""
        header = self._publisher.crash_buffer.header
        if header and header.get("username") == OWNER_USERNAME:
            self._context.send_to_owner(MEMORY, report)

    def _input_request(self, prompt: str, ident: Any, parent: Any, password: bool = False) -> str:  # noqa: FBT001, FBT002 - ipykernel's
        """Ask the owner and write prompt and answer to stdout; ask another client as Jupyter does."""
        __tracebackhide__ = True
        if parent.get("header", {}).get("username") != OWNER_USERNAME:
            return str(super()._input_request(prompt, ident, parent, password))
        stdout = self._own_streams[0]
        stdout.write(prompt)
        stdout.flush()
        if owner.is_forked_child:
            raise EOFError("a forked process cannot ask")
        content = self._control.input_questions.ask({"prompt": prompt, "password": password}) or {}
        answer = content.get("text")
        if not isinstance(answer, str):
            raise EOFError(str(content.get("why")))  # noqa: TRY004 - as of Python's own input()
        stdout.write("\n" if password else f"{answer}\n")
        return answer

    def do_complete(self, code: str, cursor_pos: int | None) -> Any:
        """Complete a name; code of the user's classes is ended after a time limit, or by an interrupt."""
        position = len(code) if cursor_pos is None else cursor_pos
        fallback = {"status": "ok", "matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}
        return call_with_time_limit(lambda: super(LauncherKernel, self).do_complete(code, cursor_pos), fallback)

    def do_inspect(self, *args: Any, **kwargs: Any) -> Any:
        """Inspect a name, with the time limit of ``do_complete``."""
        fallback = {"status": "ok", "data": {}, "metadata": {}, "found": False}
        return call_with_time_limit(lambda: super(LauncherKernel, self).do_inspect(*args, **kwargs), fallback)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Keep waiting cells after a failed one: they may be another client's.

        Without the driver the kernel aborts them, as Jupyter's clients expect.
        """
        if not self.options.token:
            super()._abort_queues(subshell_id)

    def _cancel_on_sigint(self, future: asyncio.Task[Any]) -> Any:
        """Let SIGINT end an async cell wherever it runs: ipykernel 7.4 passes it to its loop without waking that."""
        self._context.cell.task = future
        spared = self.shell_stream.running if isinstance(self.shell_stream, ShellChannel) else ()
        self.shell.in_task = True
        return cancel_on_interrupt(future, LauncherShell.run_within.__code__, spared)


class ShellChannel:
    """A replacement of ipykernel's ``ZMQStream``, which queues replies and needs more rounds of the loop for a request.

    All methods run in the event loop's thread.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self._bare: Any = super(zmq.Socket, socket)
        self._handle: Callable[[list[Any]], Coroutine[Any, Any, Any]] | None = None
        self._context = copy_context()
        self.running: set[asyncio.Task[Any]] = set()
        self.io_loop: Any = None

    def on_recv(self, handle: Callable[[list[Any]], Coroutine[Any, Any, Any]] | None, copy: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - ZMQStream's signature
        """Handle each request by a task; all tasks share one context."""
        self._loop = asyncio.get_running_loop() if handle is None else asyncio.get_event_loop()
        self._handle = handle
        if handle is None:
            self._loop.remove_reader(self.socket.FD)
        else:
            self._loop.add_reader(self.socket.FD, self._read)
            self._loop.call_soon(self._read)

    def send_multipart(self, frames: list[Any], copy: bool = True, **options: Any) -> None:  # noqa: FBT001, FBT002 - as above
        """Send a reply."""
        if copy and not options:
            send_frames(self._bare, frames)
        else:
            self.socket.send_multipart(frames, copy=copy, **options)
        if self._handle is not None and has_message(self.socket):  # sending may clear the event of an arrived request
            self._loop.call_soon_threadsafe(self._read)

    def flush(self, flag: int = zmq.POLLIN, limit: int | None = None) -> int:
        """Start handling the requests that have arrived; return their number."""
        return self._read(limit) if flag & zmq.POLLIN else 0

    def getsockopt(self, option: int) -> Any:
        """Return an option of the socket, whose descriptor event loops of graphical toolkits watch."""
        return self.socket.getsockopt(option)

    def close(self, linger: int | None = None) -> None:
        """Stop reading and close the socket."""
        if not self.socket.closed:
            if self._handle is not None:
                self._loop.remove_reader(self.socket.FD)
            self.socket.close(linger)

    def closed(self) -> bool:
        """Return whether the socket is closed."""
        return self.socket.closed

    def _read(self, limit: int | None = None) -> int:
        count = 0
        while self._handle is not None and not self.socket.closed and count != limit and has_message(self.socket):
            request = [self._bare.recv(NOBLOCK, copy=False)]
            while request[-1].more:
                request.append(self._bare.recv(NOBLOCK, copy=False))
            task = self._loop.create_task(self._handle(request), context=self._context)
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            count += 1
        return count


def allow_interrupts() -> _InterruptHandler:
    """Have SIGINT raise KeyboardInterrupt within the block, also in child processes, and ignore it afterwards.

    After an exception the end of the block itself may have been interrupted: see ``ignore_interrupts``.
    """
    return _InterruptHandler(signal.default_int_handler, _IGNORE)


def cancel_on_interrupt(cell: asyncio.Task[Any], entry: CodeType, spared: Collection[asyncio.Task[Any]]) -> _InterruptHandler:
    """Have SIGINT end an async cell, for which the caller waits within the block; ``spared`` tasks are not disturbed.

    It raises only where a task's own code runs: asyncio's, which runs between, would lose the task or the loop. Nothing may
    raise KeyboardInterrupt out of the cell's task: ``entry``, its outermost code, prevents that, and is not interrupted itself.
    """
    loop, waiter = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal(_signum: int, frame: FrameType | None) -> None:
        current = asyncio.current_task(loop)
        runs = current is not None and getattr(current.get_coro(), "cr_running", False)
        if runs and (current is waiter or (current is cell and frame is not None and frame.f_code is not entry)):
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(cell.cancel)
        if runs and current is not cell and current not in spared:
            raise asyncio.CancelledError

    return _InterruptHandler(on_signal, _get_handler(_SIGINT))


def ignore_interrupts() -> None:
    """Ignore SIGINT. A signal that has just arrived raises here, before the handler changes."""
    try:
        _set_handler(_SIGINT, _IGNORE)
    except BaseException:
        _set_handler(_SIGINT, _IGNORE)
        raise


class _InterruptHandler:
    """A handler of SIGINT within a block; no generator, since an interrupted generator would go on when it is collected."""

    def __init__(self, handler: _Handler, after: _Handler) -> None:
        self._handler, self._after = handler, after

    def __enter__(self) -> None:
        _set_handler(_SIGINT, self._handler)

    def __exit__(self, *_: object) -> None:
        try:
            _set_handler(_SIGINT, self._after)
        except BaseException:  # as above
            _set_handler(_SIGINT, self._after)
            raise


def call_with_time_limit(look: Callable[[], Any], fallback: dict[str, Any]) -> Any:
    """Call ``look``, which reads user objects; return ``fallback`` if it fails or exceeds its time limit."""
    timer = threading.Timer(_LOOK_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    try:
        with allow_interrupts():
            timer.start()
            try:
                return look()
            finally:
                timer.cancel()
    except BaseException:  # user classes may raise anything
        ignore_interrupts()
        return fallback
