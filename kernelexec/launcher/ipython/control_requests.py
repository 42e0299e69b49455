"""Requests of the kernel's owner that the control thread answers, also while a cell runs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import platform, protocol
from ..features import variables
from ..features.variables import NameChanges
from ..output.iopub import Publisher
from ..owner import ExecAudit, OwnerQuestions
from ..processes.background_commands import Jobs
from ..processes.cell_processes import CellProcesses
from ..processes.shell_session import WorkingDirectory
from ..protocol import LaunchOptions
from .interrupts import MainThreadProbe

_RESUMED_NAMES_MAX = 10_000
VARIABLES_MAX = 1000

Handler = Callable[[Any, Any, Mapping[str, Any]], None]


@dataclass
class NewestCell:
    """The running cell, or the last one. The next cell begins under the ``lock``, and meanwhile SIGINT is ignored."""

    msg_id: object = None
    task: asyncio.Future[Any] | None = None
    """The task of an async cell."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, request: Mapping[str, Any], action: Callable[[], Any]) -> Any:
        """Carry out a request, unless it names another cell. Other clients' requests to interrupt name none."""
        with self.lock:
            return action() if request.get("msg_id") in (None, self.msg_id) else None

    def cancel(self) -> None:
        """Cancel the cell from another thread, if it is an async one."""
        if self.task is not None and not self.task.done():
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


@dataclass
class KernelContext:
    """Parts of a kernel that requests need; ``session``, ``shell`` and ``get_parent`` are ipykernel's."""

    options: LaunchOptions
    session: Any
    shell: Any
    publisher: Publisher
    get_parent: Callable[[str], dict[str, Any]]
    names: NameChanges
    working_directory: WorkingDirectory
    cell: NewestCell = field(default_factory=NewestCell)
    processes: CellProcesses = field(default_factory=CellProcesses)
    main_thread: MainThreadProbe = field(default_factory=MainThreadProbe)
    skipped: set[object] = field(default_factory=set)
    """The ids of cells that do not run."""

    def send_to_owner(self, msg_type: str, content: Mapping[str, Any], header: Any = None) -> None:
        """Publish a message with the token, under the running cell unless another request's ``header`` is passed."""
        parent = {"header": header or self.publisher.crash_buffer.header}
        self.session.send(self.publisher.background_socket, msg_type, {**content, "token": self.options.token}, parent)


class ControlRequests:
    """Handlers of the owner's requests, by message type in ``handlers``. Each runs in the control thread."""

    def __init__(self, context: KernelContext) -> None:
        self.audit = ExecAudit(self._send_program)
        self.input_questions = OwnerQuestions(partial(context.send_to_owner, protocol.INPUT))
        self.command_questions = OwnerQuestions(self._send_command)
        self._context = context
        self._jobs = Jobs(context.processes.lasting)
        self._entered: dict[str, str | None] = {}
        """The variables that the owner has sent: copies of this process know them."""
        self.handlers: dict[str, Handler] = {
            protocol.VERDICT_REQUEST: partial(self._take_answer, self.audit.questions),
            protocol.COMMAND_REQUEST: partial(self._take_answer, self.command_questions),
            protocol.INPUT_REQUEST: partial(self._take_answer, self.input_questions),
            protocol.RESUME_REQUEST: self._resume,
        }
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            protocol.CANCEL_REQUEST: self._cancel,
            protocol.ENTER_REQUEST: self._relocate,
            protocol.ENVIRONMENT_REQUEST: lambda _: context.shell.programs.describe(),
            protocol.JOBS_REQUEST: lambda content: self._jobs.answer(content, context.shell.command_environment),
            protocol.KILL_REQUEST: self._kill,
            protocol.SKIP_REQUEST: self._skip,
            protocol.VARIABLES_REQUEST: self._list_variables,
        }
        self.handlers |= {request: partial(self._reply, request, answer) for request, answer in answers.items()}

    def resume(self) -> None:
        """Serve anew in a copy of the process: questions, and background commands, are the other one's."""
        self._jobs = Jobs(self._context.processes.lasting)
        self.audit.questions.forget()
        self.input_questions.forget()
        self.command_questions.forget()
        self._context.cell.task = None

    def _reply(
        self,
        request: str,
        answer: Callable[[dict[str, Any]], dict[str, Any]],
        stream: Any,
        ident: Any,
        parent: Mapping[str, Any],
    ) -> None:
        self._context.session.send(stream, protocol.reply_type(request), answer(parent["content"]), parent, ident)

    def _cancel(self, content: dict[str, Any]) -> dict[str, Any]:
        """Cancel an async cell, and return whether the main thread has run Python code since the interrupt."""
        self._context.cell.act(content, self._context.cell.cancel)
        return {"is_back": self._context.main_thread.is_back}

    def _kill(self, content: dict[str, Any]) -> dict[str, Any]:
        """Kill the processes that a cell has started; of an ended one only if the system tells them from those of others."""
        if platform.PLATFORM.adopts_orphans or not self._context.publisher.between_cells:
            self._context.cell.act(content, self._context.processes.kill)
        return {"status": "ok"}

    def _skip(self, content: dict[str, Any]) -> dict[str, Any]:
        """Leave out a cell that waits for the running one of another client: the main thread looks when it begins."""
        msg_id, publisher = content.get("msg_id"), self._context.publisher
        self._context.skipped.add(msg_id)
        running = publisher.crash_buffer.header or {}
        is_skipped = not publisher.between_cells and running.get("username") != protocol.OWNER_USERNAME
        if not is_skipped:
            self._context.skipped.discard(msg_id)
        return {"is_skipped": is_skipped}

    def _relocate(self, content: dict[str, Any]) -> dict[str, Any]:
        """Change to ``cwd``, if it can be entered, and then the ``environment``, where None removes a variable.

        Without ``cwd`` this is a copy, where cells may have changed variables that were sent before: only new values count.
        """
        cwd, environment = content["cwd"], content["environment"]
        if cwd is None:
            environment = dict(environment.items() - self._entered.items())
        else:
            try:
                os.chdir(cwd)
            except OSError as exc:
                return {"status": "error", "evalue": str(exc)}
            self._context.shell.user_ns.get("_dh", [])[:] = [Path(cwd)]
            self._context.shell.programs.set_home()
            self._context.working_directory.move_to(cwd)
        self._entered |= environment
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return {"status": "ok"}

    def _list_variables(self, content: dict[str, Any]) -> dict[str, Any]:
        requested, limit = content.get("names"), content.get("limit")
        names = self._context.names.current()
        if isinstance(requested, list):
            names &= {name for name in requested if isinstance(name, str)}
        limit = min(limit, VARIABLES_MAX) if isinstance(limit, int) and limit > 0 else VARIABLES_MAX
        return variables.describe_variables(names, self._context.shell.user_ns, limit)

    def _send_program(self, question: dict[str, Any]) -> None:
        self._context.send_to_owner(protocol.PROGRAM, question, self._context.get_parent("shell").get("header"))

    def ask_for_command(self) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
        """Return a function that asks the owner on behalf of a command of the running cell, also after the cell's end."""
        header = self._context.publisher.crash_buffer.header
        return lambda question: self.command_questions.ask({**question, "header": header}) or {}

    def _send_command(self, question: dict[str, Any]) -> None:
        self._context.send_to_owner(protocol.COMMAND, question, question.pop("header"))

    def _take_answer(self, questions: OwnerQuestions, _stream: Any, _ident: Any, parent: Mapping[str, Any]) -> None:
        questions.answer(parent["content"])

    def _resume(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        """Publish the newest cell's messages again for a new owner that asks for this cell; for no cell, list all names.

        Replies of later cells name the changes since that list.
        """
        msg_id = parent["content"].get("msg_id")
        published = self._context.publisher.find_messages(msg_id)
        entry: dict[str, Any] = {"token": self._context.options.token}
        if msg_id is None:
            names = self._context.names.report()
            entry |= {"names_added": sorted(names)[:_RESUMED_NAMES_MAX], "names_count": len(names)}
            entry["next_cell"] = self._context.shell.execution_count
        content = {"status": "ok", "known": published is not None, protocol.METADATA_KEY: entry}
        self._context.session.send(stream, protocol.reply_type(protocol.RESUME_REQUEST), content, parent, ident)
        if published is not None:
            self._context.publisher.schedule(partial(self._context.publisher.replay, published, parent))
