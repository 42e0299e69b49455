"""Requests of the kernel's owner that the control thread answers, also while a cell runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import protocol
from ..features import variables
from ..features.chdir_env import relocate
from ..features.fingerprint import fingerprint
from ..features.stdin import InputRequests
from ..features.user_namespace import NameChanges
from ..output.crash_buffer import CrashBuffer
from ..output.iopub import Publisher
from ..owner import OwnerLease
from ..processes import tree
from ..processes.exec_audit import ExecAudit
from ..processes.jobs import Jobs
from ..protocol import LaunchOptions

_RESUMED_NAMES_MAX = 10_000
VARIABLES_MAX = 1000

Handler = Callable[[Any, Any, Mapping[str, Any]], None]


@dataclass
class AsyncCellTask:
    """The task of an async cell and the loop that runs it."""

    task: asyncio.Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def cancel(self) -> bool:
        """Cancel the cell from another thread; return whether it was running."""
        if self.task is None or self.loop is None or self.task.done():
            return False
        self.loop.call_soon_threadsafe(self.task.cancel)
        return True


@dataclass(frozen=True)
class KernelContext:
    """Parts of a kernel that requests need; ``session``, ``shell``, ``iopub_socket`` and ``get_parent`` are ipykernel's."""

    options: LaunchOptions
    lease: OwnerLease | None
    session: Any
    shell: Any
    publisher: Publisher
    iopub_socket: Any
    get_parent: Callable[[str], dict[str, Any]]
    names: NameChanges
    crash_buffer: CrashBuffer
    cell: AsyncCellTask = field(default_factory=AsyncCellTask)

    def send_to_owner(self, msg_type: str, content: Mapping[str, Any], header: Any = None) -> None:
        """Publish a message with the token, under the running cell unless another request's ``header`` is passed."""
        parent = {"header": header or self.crash_buffer.header}
        self.session.send(self.iopub_socket, msg_type, {**content, "token": self.options.token}, parent)


class ControlRequests:
    """Handlers of the owner's requests, by message type in ``handlers``. Each runs in the control thread."""

    def __init__(self, context: KernelContext) -> None:
        self.audit = ExecAudit(self._ask_about_program)
        self.input_requests = InputRequests(partial(context.send_to_owner, protocol.INPUT))
        self._context = context
        self._jobs = Jobs()
        self.handlers: dict[str, Handler] = {
            protocol.LEASE_REQUEST: self._renew_lease,
            protocol.VERDICT_REQUEST: self._take_verdict,
            protocol.INPUT_REQUEST: self._take_input,
            protocol.RESUME_REQUEST: self._resume,
        }
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            protocol.CANCEL_REQUEST: self._cancel,
            protocol.ENTER_REQUEST: self._relocate,
            protocol.ENVIRONMENT_REQUEST: self._describe_environment,
            protocol.FINGERPRINT_REQUEST: self._fingerprint,
            protocol.JOBS_REQUEST: self._handle_job,
            protocol.KILL_REQUEST: self._kill,
            protocol.VARIABLES_REQUEST: self._list_variables,
        }
        self.handlers |= {request: partial(self._reply, request, answer) for request, answer in answers.items()}

    def _reply(
        self,
        request: str,
        answer: Callable[[dict[str, Any]], dict[str, Any]],
        stream: Any,
        ident: Any,
        parent: Mapping[str, Any],
    ) -> None:
        self._context.session.send(stream, protocol.reply_type(request), answer(parent["content"]), parent, ident)

    def _cancel(self, _content: dict[str, Any]) -> dict[str, Any]:
        """Cancel the top-level await of the running cell."""
        return {"status": "ok", "cancelled": self._context.cell.cancel()}

    def _kill(self, _content: dict[str, Any]) -> dict[str, Any]:
        """Kill all processes that this kernel started, for an owner that cannot see them."""
        tree.kill_descendants()
        return {"status": "ok"}

    def _handle_job(self, content: dict[str, Any]) -> dict[str, Any]:
        """Start, describe or end commands that run beside the cells."""
        return self._jobs.answer(content, self._context.shell.command_environment)

    def _relocate(self, content: dict[str, Any]) -> dict[str, Any]:
        """Change directory and environment before the first cell."""
        reply = relocate(content, self._context.shell.user_ns.get("_dh", []))
        self._context.shell.programs.set_home()
        return reply

    def _list_variables(self, content: dict[str, Any]) -> dict[str, Any]:
        requested, limit = content.get("names"), content.get("limit")
        names = self._context.names.current()
        if isinstance(requested, list):
            names &= {name for name in requested if isinstance(name, str)}
        limit = min(limit, VARIABLES_MAX) if isinstance(limit, int) and limit > 0 else VARIABLES_MAX
        return variables.describe_variables(names, self._context.shell.user_ns, limit)

    def _fingerprint(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a digest of the values of the named variables."""
        names = [name for name in content.get("names", ()) if isinstance(name, str)]
        return {"status": "ok", "digest": fingerprint(names, self._context.shell.user_ns)}

    def _describe_environment(self, _content: dict[str, Any]) -> dict[str, Any]:
        """Describe the interpreter, the programs and packages that commands and cells find."""
        description: dict[str, Any] = self._context.shell.programs.describe()
        return description

    def _ask_about_program(self, question: dict[str, Any]) -> None:
        self._context.send_to_owner(protocol.PROGRAM, question, self._context.get_parent("shell").get("header"))

    def _take_verdict(self, _stream: Any, _ident: Any, parent: Mapping[str, Any]) -> None:
        self.audit.answer(parent["content"].get("name"), parent["content"].get("refused"))

    def _take_input(self, _stream: Any, _ident: Any, parent: Mapping[str, Any]) -> None:
        content = parent["content"]
        self.input_requests.answer(content.get("name"), content.get("text"), content.get("why"))

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
        content = {"status": "ok", "known": published is not None, protocol.METADATA_KEY: entry}
        self._context.session.send(stream, protocol.reply_type(protocol.RESUME_REQUEST), content, parent, ident)
        if published is not None:
            self._context.publisher.schedule(partial(self._context.publisher.replay, published, parent))

    def _renew_lease(self, _stream: Any, _ident: Any, parent: Mapping[str, Any]) -> None:
        seconds = parent["content"].get("seconds")
        if self._context.lease is not None and isinstance(seconds, int | float):
            self._context.lease.renew(seconds)
