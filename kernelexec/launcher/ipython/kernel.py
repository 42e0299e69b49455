"""ipykernel's kernel with interrupts for every kind of cell, and a reply to every cell with a report of the state."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from traitlets import Instance, Type

from .. import owner, platform
from ..features import variables
from ..features.memory_monitor import MemoryMonitor, find_limited_cgroup
from ..features.python_environments import find_python_with
from ..features.spawned_main import SpawnedMain
from ..features.variables import NameChanges
from ..output.captured_output import CapturedFd
from ..output.iopub import Publisher
from ..output.kept_output import CrashBuffer, PublishedMessages, truncate, truncate_traceback
from ..output.streams import named_as_base
from ..owner import notify_ready
from ..processes import tree
from ..processes.shell_session import MovedDirectories, WorkingDirectory
from ..protocol import (
    MEMORY,
    METADATA_KEY,
    OBSTACLES,
    OWNER_USERNAME,
    CopyTarget,
    DirectoryReport,
    LaunchOptions,
    MemoryReport,
    Obstacle,
    ReplyMetadata,
    is_shell_call,
    is_users_cell,
)
from .control_requests import VARIABLES_MAX, ControlRequests, KernelContext
from .figures import Figures
from .interrupts import allow_interrupts, call_with_time_limit, cancel_on_interrupt, ignore_interrupts
from .messages import ShellChannel, pack
from .patches import cell_sources, find_class_sources, follow_wakers, give_own_pipes
from .shell import LauncherShell

#: Number and least size of the variables named in a report of short memory.
_BIGGEST, _BIG_BYTES = 5, 1024 * 1024
#: Limit of the added and of the removed names in a reply.
_CHANGED_NAMES_MAX = 1000


@named_as_base
class LauncherKernel(IPythonKernel):
    """The kernel of one owner."""

    shell_class = Type(LauncherShell)
    shell_stream: Any = Instance(object)
    options = LaunchOptions()
    confinement: dict[str, list[str]] = {}  # noqa: RUF012 - of the process
    """See ``confinement.confine``."""
    checkpoints: Any = None
    """The ``Checkpoints`` of this kernel."""
    # ipykernel pauses before each reply, and starts a thread for each subshell: see ``LauncherApp.init_control``.
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
            session=self.session,
            shell=self.shell,
            publisher=self._publisher,
            get_parent=self.get_parent,
            names=NameChanges(self.shell),
            working_directory=WorkingDirectory(),
        )
        self._control = ControlRequests(self._context)
        self._figures = Figures(self.shell)
        find_class_sources(self.shell.compile)
        self._spawned_main = SpawnedMain(self.shell.user_module, self._list_sources)
        self.control_handlers |= self._control.handlers
        self.shell.take_checkpoint = self._take_checkpoint
        self.shell.ask_for_command = self._control.ask_for_command
        self._own_streams: tuple[Any, Any, Any] = (sys.stdout, sys.stderr, sys.displayhook)
        give_own_pipes(self._list_captured, lambda: self._publisher.pipes)
        self._cpu_before = 0.0
        self._directory_report: DirectoryReport | None = None

    def start(self) -> None:
        """Start serving, and report readiness once the loop runs."""
        super().start()
        loop: Any = self.io_loop
        follow_wakers(self, loop.asyncio_loop)
        if self.options.token:
            self.shell_stream.io_loop = self.io_loop  # the shutdown handler of ipykernel needs it
            self.shell_stream.on_recv(partial(self.shell_main, None))
        self._memory_monitor = MemoryMonitor(find_limited_cgroup(), self._find_biggest_variables, self._report_memory)
        if self.options.audits_programs:
            self._control.audit.install()
        # A callback of the loop runs only once the loop does: the owner then finds a kernel that answers.
        self.io_loop.add_callback(notify_ready, self.options, self.confinement)

    def move(self, moves: MovedDirectories) -> None:
        """Go on in other directories."""
        moves.follow(self._context.working_directory, self.shell.command_session)

    def resume(self, options: LaunchOptions, shell_socket: Any) -> None:
        """Continue in a copy of this process, with the new sockets and threads of the application."""
        LauncherKernel.options = self._context.options = options
        self._control_lock = asyncio.Lock()  # the control thread, which the copy lacks, may have held the old lock
        self.control_stream.on_recv(self.dispatch_control, copy=False)
        self._publisher.crash_buffer = CrashBuffer(options.crash_buffer)
        for stream in self._own_streams[:2]:
            stream.resume()
        self._control.resume()
        self._memory_monitor.start()
        self._restore_streams()
        self.shell_stream.resume(shell_socket)
        notify_ready(options, self.confinement)

    @property
    def own_streams(self) -> tuple[Any, Any]:
        """The streams of this kernel, whatever user code has put in their places."""
        return self._own_streams[:2]

    def _list_captured(self) -> list[CapturedFd]:
        return [captured for stream in self._own_streams[:2] if (captured := stream.captured_fd) is not None]

    def _take_checkpoint(self, name: str | None = None, target: CopyTarget | None = None, *, is_automatic: bool = False) -> Any:
        """Make a checkpoint. The call returns in a resumed copy too, whose reply no client awaits."""
        own_tasks = getattr(self.shell_stream, "running", ())
        with self._context.cell.lock:  # a fork would copy it as the control thread holds it
            return self.checkpoints.take(name, self.shell.execution_count, own_tasks, target, is_automatic=is_automatic)

    def _report_obstacles(self, obstacles: list[Obstacle]) -> None:
        self._context.send_to_owner(OBSTACLES, {"obstacles": obstacles})

    def _send_interrupt_children(self) -> None:
        """Interrupt the running cell with its processes, unless the request names another cell."""
        self._context.cell.act(self.get_parent("control").get("content", {}), self._interrupt)

    def _interrupt(self) -> None:
        self.shell.interrupts += 1  # before the signal: ``run_code`` looks at the count once the signal has raised
        if platform.PLATFORM.adopts_orphans:
            self._context.processes.interrupt()
        else:  # the system does not list processes
            super()._send_interrupt_children()
        self._context.main_thread.begin()

    def _process_children(self) -> list[Any]:
        """Return the children for the shutdown. Without children this saves 10 ms for the list of all processes."""
        return super()._process_children() if tree.has_descendants() else []

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        """Set the parent of output. Output of threads and programs belongs to the newest cell of code.

        Commands and other requests cause no such output: their start leaves this output with the cell before.
        """
        if channel != "shell":
            super().set_parent(ident, parent, channel)
            return
        if is_cell(parent):
            if self._publisher.pipes.has_output:  # it was written before this cell
                self._own_streams[0].drain()
            self.shell.cells_begun += 1
            super().set_parent(ident, parent, channel)
            return
        holders: tuple[Any, ...] = (self.shell.displayhook, self.shell.display_pub, *self._own_streams[:2])
        # ipykernel sets the global parent together with the parent of this thread: only the second may change here.
        headers = [holder._parent_header_global for holder in holders]  # noqa: SLF001 - ipykernel has no other
        super().set_parent(ident, parent, channel)
        for holder, header in zip(holders, headers, strict=True):
            holder._parent_header_global = header  # noqa: SLF001 - as above

    def pre_handler_hook(self) -> None:
        """Do nothing. ipykernel allows interrupts here; outside of cells a late interrupt would cost a reply."""

    def post_handler_hook(self) -> None:
        """See pre_handler_hook."""

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish a status. A cell's ``busy`` waits for the ``execute_input`` that follows, so the reader wakes up once."""
        parent, publisher = parent or self.get_parent(channel), self.iopub_thread
        if status == "busy" and parent.get("msg_type") == "execute_request" and not parent.get("content", {}).get("silent"):
            publisher.holds_next_message = True
        super()._publish_status(status, channel, parent)
        publisher.holds_next_message = False  # if ``busy`` was queued, no other message must wait in its place

    async def do_execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: FBT001 - ipykernel's
        """Run a cell, and return a reply whatever the cell does."""
        self._prepare_cell()
        header = self.get_parent("shell").get("header", {})
        msg_id = header.get("msg_id")
        if msg_id in self._context.skipped:
            self._context.skipped.discard(msg_id)
            self._publisher.between_cells = True
            return {"status": "aborted", "execution_count": self.shell.execution_count, "user_expressions": {}, "payload": []}
        try:
            with allow_interrupts():
                self._directory_report = None
                if is_users_cell(code):
                    self.shell.programs.enter()
                    self._directory_report = self._context.working_directory.check()
                content: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
        except BaseException as exc:  # also a KeyboardInterrupt that hit ipykernel's own lines
            ignore_interrupts()
            content = self._build_failure_reply(exc)
        self._context.cell.task = None
        for stream in self._own_streams[:2]:
            stream.recapture()  # before anything else: the next file to be opened would get the number
        self._figures.end_cell()
        self._publisher.between_cells = True
        if self.checkpoints is not None and not owner.is_forked_child:
            take = partial(self._take_checkpoint, is_automatic=True)
            recorded_id = str(msg_id) if is_users_cell(code) and header.get("username") == OWNER_USERNAME else None
            self.checkpoints.after_cell(code, recorded_id, take, self._report_obstacles)
        if owner.is_forked_child:  # a child of the cell came back: the kernel is its parent's
            status = self.shell.exit_status
            os._exit(content.get("status") == "error" if status is None else status)
        if self.shell.exit_status == 0:  # ``sys.exit(0)`` ends a cell, and is no failure
            content |= {"status": "ok", "user_expressions": {}}
        self._restore_streams()
        self._separate_children()
        if content.get("status") == "ok" and self.shell.inner_error:
            content |= {"status": "error", **self.shell.inner_error}
        if content.get("status") == "error":
            content["evalue"] = truncate(content.get("evalue", ""))
            content["traceback"] = truncate_traceback(content.get("traceback") or [])
        return content

    def _prepare_cell(self) -> None:
        """Restore the streams after the changes of earlier cells, and begin the measurements of this cell.

        From now on signal handlers may raise: messages are sent in one call of C code or by the publisher's thread.
        """
        self._publisher.between_cells = False
        self._restore_streams()
        header = self.get_parent("shell").get("header", {})
        self._publisher.crash_buffer.begin(header)
        if self.options.replay_bytes and header.get("username") == OWNER_USERNAME:
            self._publisher.published = PublishedMessages(str(header.get("msg_id")), self.options.replay_bytes)
        self._cpu_before = platform.cpu_seconds()
        self._memory_monitor.begin_cell()
        # An interrupt for the cell before must not reach this cell: see ``NewestCell.act``.
        with self._context.cell.lock:
            self._context.cell.msg_id = header.get("msg_id")
            self._context.main_thread.end()
            self._context.processes.begin()
            self.shell.prepare_cell()
        self._figures.begin_cell()

    def _separate_children(self) -> None:
        """Read the output of programs and children up to now, and reap orphans that have ended."""
        lingering = tree.has_children()
        self._own_streams[0].drain()  # for both streams
        self._own_streams[0].read_left()
        if lingering:
            for stream in self._own_streams[:2]:
                stream.end_cell()
            tree.reap_adopted()

    def _restore_streams(self) -> None:
        sys.stdout, sys.stderr, sys.displayhook = self._own_streams

    def _build_failure_reply(self, exc: BaseException) -> dict[str, Any]:
        """Return the reply for a cell after a failure of ipykernel: the error that was shown, or else ``exc``."""
        error = {"ename": type(exc).__name__, "evalue": truncate(exc), "traceback": []}
        if self.shell.shown_error is not None and not isinstance(exc, KeyboardInterrupt):
            error = self.shell.shown_error
        count = max(0, (self.shell.execution_count or 1) - 1)
        return {**error, "status": "error", "execution_count": count, "user_expressions": {}, "payload": []}

    def finish_metadata(self, parent: Any, metadata: dict[str, Any], reply_content: dict[str, Any]) -> dict[str, Any]:
        """Add ``ReplyMetadata``: the proof that this process answers, and its state."""
        if reply_content.get("status") != "error":
            metadata = super().finish_metadata(parent, metadata, reply_content)
        # Changes by another client's cells are reported to the owner too, with the owner's next cell.
        is_owners = parent["header"].get("username") == OWNER_USERNAME
        added, removed, count = self._context.names.changes(report=is_owners)
        entry: ReplyMetadata = {
            "token": self.options.token,
            "pid": os.getpid(),
            "names_added": added[:_CHANGED_NAMES_MAX],
            "names_removed": removed[:_CHANGED_NAMES_MAX],
            "names_count": count,
            "next_cell": self.shell.execution_count,
            "cpu_seconds": platform.cpu_seconds() - self._cpu_before,
            "peak_memory_bytes": platform.peak_memory_bytes(),
            "exit_code": self.shell.last_exit_code,
            "work_dir": self.shell.last_work_dir,
            "answer": self.shell.last_answer,
            "memory": self._measure_memory(),
        }
        if (self.shell.shown_error or {}).get("ename") == "ModuleNotFoundError":
            entry["python_with_module"] = find_python_with(str(getattr(getattr(sys, "last_value", None), "name", "")))
        if self.shell.literal is not None:
            entry["literal"] = self.shell.literal
        if self.shell.exit_status is not None:
            entry["exit_status"] = self.shell.exit_status
        if self._directory_report is not None:
            entry["directory"], self._directory_report = self._directory_report, None
        if report := self.shell.programs.take_report():
            entry["programs"] = report
        metadata[METADATA_KEY] = entry
        published = self._publisher.find_messages(parent["header"].get("msg_id"))
        # Kept before it is sent: an owner that dies meanwhile leaves the reply to its successor.
        if published is not None:
            published.set_reply(reply_content, metadata, len(pack(reply_content)))
        return metadata

    def _list_sources(self) -> list[str]:
        """Return the sources of the cells, the oldest first."""
        return [source for _, source in cell_sources(self.shell.compile) if not is_shell_call(source)][::-1]

    def _find_biggest_variables(self) -> list[tuple[str, int]]:
        listed = variables.describe_variables(self._context.names.current(), self.shell.user_ns, VARIABLES_MAX)["variables"]
        sized = sorted(((variable["size_bytes"] or 0, variable["name"]) for variable in listed), reverse=True)
        return [(name, size) for size, name in sized[:_BIGGEST] if size >= _BIG_BYTES]

    def _measure_memory(self) -> MemoryReport | None:
        report = self._memory_monitor.end_cell()
        if report is not None and report["kills"] and self.checkpoints is not None:
            report["checkpoints"] = self.checkpoints.count_killed()
        return report

    def _report_memory(self, report: MemoryReport) -> None:
        """Report memory to the owner while the cell runs, since the system may kill this process later."""
        header = self._publisher.crash_buffer.header
        if header and header.get("username") == OWNER_USERNAME:
            self._context.send_to_owner(MEMORY, report)

    def _input_request(self, prompt: str, ident: Any, parent: Any, password: bool = False) -> str:  # noqa: FBT001, FBT002 - ipykernel's
        """Ask the owner, and write prompt and answer to stdout. Ask other clients as Jupyter does.

        Raises:
            EOFError: the owner has no answer, or a forked process asks.
        """
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
        """Complete a name. Completion runs code of the user's classes: it ends after 3 seconds or by an interrupt."""
        position = len(code) if cursor_pos is None else cursor_pos
        fallback = {"status": "ok", "matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}
        return call_with_time_limit(lambda: super(LauncherKernel, self).do_complete(code, cursor_pos), fallback)

    def do_inspect(self, *args: Any, **kwargs: Any) -> Any:
        """Inspect a name, with the time limit of ``do_complete``."""
        fallback = {"status": "ok", "data": {}, "metadata": {}, "found": False}
        return call_with_time_limit(lambda: super(LauncherKernel, self).do_inspect(*args, **kwargs), fallback)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Keep waiting cells after a failed cell, since they may belong to another client.

        Without the driver the kernel aborts these cells, as Jupyter's clients expect.
        """
        if not self.options.token:
            super()._abort_queues(subshell_id)

    def _cancel_on_sigint(self, future: asyncio.Task[Any]) -> Any:
        """Let SIGINT end an async cell at any point. ipykernel 7.4 passes the signal to the loop without waking the loop."""
        self._context.cell.task = future
        spared = self.shell_stream.running if isinstance(self.shell_stream, ShellChannel) else ()
        self.shell.in_task = True
        return cancel_on_interrupt(future, LauncherShell.run_within.__code__, spared)


def is_cell(request: dict[str, Any]) -> bool:
    """Return whether a request is a cell of code: no command, no call of the launcher and no other kind of request."""
    if request["header"]["msg_type"] != "execute_request":
        return False
    content = request.get("content", {})
    return not (content.get("silent") or is_shell_call(content.get("code")))
