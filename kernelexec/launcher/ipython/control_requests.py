"""Requests of the kernel's owner, answered by the control thread, also while a cell runs."""

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

#: A new owner gets so many names at once; later replies have only the changes.
_RESUMED_NAMES_MAX = 10_000
VARIABLES_MAX = 1000

Handler = Callable[[Any, Any, Mapping[str, Any]], None]


@dataclass
class NewestCell:
    """The running cell, or else the last cell.

    The next cell begins under the ``lock``, while SIGINT is ignored: a request cannot hit the wrong cell.
    """

    msg_id: object = None
    task: asyncio.Future[Any] | None = None
    """The task of an async cell."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, request: Mapping[str, Any], action: Callable[[], Any]) -> Any:
        """Call ``action`` unless the request names another cell. Requests of other clients name no cell."""
        with self.lock:
            return action() if request.get("msg_id") in (None, self.msg_id) else None

    def cancel(self) -> None:
        """Cancel an async cell, from another thread."""
        if self.task is not None and not self.task.done():
            # ``cancel`` alone would be called in the wrong thread, and would not wake the loop.
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


@dataclass
class KernelContext:
    """The parts of a kernel for its requests; ``session``, ``shell`` and ``get_parent`` are ipykernel's."""

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
    """The ids of waiting cells that must not run. The control thread adds, the main thread removes."""

    def send_to_owner(self, msg_type: str, content: Mapping[str, Any], header: Any = None) -> None:
        """Publish a message with the token, under the running cell unless another request's ``header`` is passed."""
        parent = {"header": header or self.publisher.crash_buffer.header}
        self.session.send(self.publisher.background_socket, msg_type, {**content, "token": self.options.token}, parent)


class ControlRequests:
    """Handlers of the owner's requests, by message type in ``handlers``. All run in the control thread."""

    def __init__(self, context: KernelContext) -> None:
        self.audit = ExecAudit(self._send_program)
        self.input_questions = OwnerQuestions(partial(context.send_to_owner, protocol.INPUT))
        self.command_questions = OwnerQuestions(self._send_command)
        self._context = context
        self._jobs = Jobs(context.processes.lasting)
        self._entered: dict[str, str | None] = {}
        """The environment variables that the owner has sent. A copy of this process inherits this record."""
        # Answers to questions get no reply: the thread that asked waits for them.
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
        """Start again in a copy of the process: the original keeps its questions and background commands."""
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
        """Kill the processes that a cell has started.

        After the cell's end this needs a system that attributes orphans to their kernel; elsewhere nothing is killed.
        """
        if platform.PLATFORM.adopts_orphans or not self._context.publisher.between_cells:
            self._context.cell.act(content, self._context.processes.kill)
        return {"status": "ok"}

    def _skip(self, content: dict[str, Any]) -> dict[str, Any]:
        """Skip a cell that waits behind another client's running cell."""
        msg_id, publisher = content.get("msg_id"), self._context.publisher
        # Added first. The main thread sets the running header and then looks for the id, so either it skips the cell,
        # or this thread finds the owner's cell running: no order of the two loses the request.
        self._context.skipped.add(msg_id)
        running = publisher.crash_buffer.header or {}
        is_skipped = not publisher.between_cells and running.get("username") != protocol.OWNER_USERNAME
        if not is_skipped:
            self._context.skipped.discard(msg_id)
        return {"is_skipped": is_skipped}

    def _relocate(self, content: dict[str, Any]) -> dict[str, Any]:
        """Change to ``cwd``, then update the ``environment``, where None removes a variable.

        Nothing changes if ``cwd`` cannot be entered. Without ``cwd`` this process is a copy, whose cells may have changed
        variables of the owner: only values that differ from the last sent values are set.
        """
        cwd, environment = content["cwd"], content["environment"]
        if cwd is None:
            environment = dict(environment.items() - self._entered.items())
        else:
            try:
                os.chdir(cwd)
            except OSError as exc:
                return {"status": "error", "evalue": str(exc)}
            # IPython's own list of visited directories, in place: ``%cd -`` must not lead back to a directory of before.
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
        """Return a function that asks the owner for a command of the running cell, also after the cell's end."""
        # The header is bound now: a later cell must not get the questions of this command.
        header = self._context.publisher.crash_buffer.header
        return lambda question: self.command_questions.ask({**question, "header": header}) or {}

    def _send_command(self, question: dict[str, Any]) -> None:
        self._context.send_to_owner(protocol.COMMAND, question, question.pop("header"))

    def _take_answer(self, questions: OwnerQuestions, _stream: Any, _ident: Any, parent: Mapping[str, Any]) -> None:
        questions.answer(parent["content"])

    def _resume(self, stream: Any, ident: Any, parent: Mapping[str, Any]) -> None:
        """Answer a new owner: publish the newest cell's messages again, or list all names if the request names no cell.

        Replies of later cells have the changes since this list.
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
            # In the publisher's thread, so new messages of the running cell come after the kept messages.
            self._context.publisher.schedule(partial(self._context.publisher.replay, published, parent))
