"""What the control thread of a kernel serves for its owner, also while a cell runs and when nothing else answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from ..features import variables
from ..features.chdir_env import enter
from ..features.stdin import Questions
from ..output.crash_buffer import LastWords
from ..owner import Lease, Order
from ..processes import tree
from ..processes.background import Jobs
from ..processes.exec_audit import Watch

NAMES, _NAMES_IN_ALL = 1000, 10_000
VARIABLES_MAX = 1000
#: The requests, by the middle of their names.
SERVED = ("cancel", "enter", "environment", "input", "jobs", "kill", "lease", "resume", "variables", "verdict")


class Served:
    """The part of a kernel that answers them. ``iopub_thread``, ``session`` and ``shell`` are ipykernel's."""

    iopub_thread: Any
    iopub_socket: Any
    session: Any
    shell: Any
    order: Order
    lease: Lease | None
    _cell_loop: asyncio.AbstractEventLoop | None
    _cell_task: asyncio.Future[Any] | None
    _jobs: Jobs
    _known_names: set[str]
    _questions: Questions
    _watch: Watch
    _words: LastWords
    get_parent: Any
    _names: Any
    _tape: Any

    async def cancel_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Cancel the top-level await of the running cell. Served by the control thread, so it works when nothing else does."""
        task, loop = self._cell_task, self._cell_loop
        waiting = task is not None and loop is not None and not task.done()
        if waiting and task is not None and loop is not None:
            loop.call_soon_threadsafe(task.cancel)
        self.session.send(stream, "kernelexec_cancel_reply", {"status": "ok", "cancelled": waiting}, parent, ident)

    def kill_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Kill all that this kernel started, for an owner who cannot see it."""
        tree.kill_descendants()
        self.session.send(stream, "kernelexec_kill_reply", {"status": "ok"}, parent, ident)

    def jobs_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Start, tell of or end commands that run beside the cells. Served by the control thread."""
        reply = self._jobs.answer(parent["content"], self.shell.place_of_command)
        self.session.send(stream, "kernelexec_jobs_reply", reply, parent, ident)

    def _ask_about(self, said: dict[str, Any]) -> None:
        header = self.get_parent("shell").get("header") or self._words.header
        self.session.send(self.iopub_socket, "kernelexec_program", said | {"token": self.order.token}, {"header": header})

    def verdict_request(self, _stream: Any, _ident: Any, parent: Any) -> None:
        """Hear whether a program may start. There is no reply."""
        self._watch.answer(parent["content"].get("name"), parent["content"].get("refused"))

    def _tell_question(self, said: dict[str, Any]) -> None:
        header = self._words.header
        self.session.send(self.iopub_socket, "kernelexec_input", said | {"token": self.order.token}, {"header": header})

    def input_request(self, _stream: Any, _ident: Any, parent: Any) -> None:
        """Hear what was answered to a cell that asked. There is no reply."""
        said = parent["content"]
        self._questions.answer(said.get("name"), said.get("text"), said.get("why"))

    def enter_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Be at home in another directory, with another environment, before the first cell. Served by the control thread."""
        reply = enter(parent["content"], self.shell.user_ns.get("_dh", []))
        self.shell.programs.be_at_home()
        self.session.send(stream, "kernelexec_enter_reply", reply, parent, ident)

    def variables_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Tell the user's variables. Served by the control thread, so it works while a cell runs."""
        content = parent["content"]
        wanted, limit = content.get("names"), content.get("limit")
        names = self._names()
        if isinstance(wanted, list):
            names &= {name for name in wanted if isinstance(name, str)}
        limit = min(limit, VARIABLES_MAX) if isinstance(limit, int) and limit > 0 else VARIABLES_MAX
        told = variables.listing(names, self.shell.user_ns, limit)
        self.session.send(stream, "kernelexec_variables_reply", told, parent, ident)

    def environment_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Tell the interpreter, what commands and cells find, and what is installed. Served by the control thread."""
        self.session.send(stream, "kernelexec_environment_reply", self.shell.programs.listing(), parent, ident)

    def resume_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Publish anew what the newest cell did, for a new owner, if it is the one asked for; for none, tell all names.

        From then on replies tell how the names differ from those. Served by the control thread, so it works while a cell runs.
        """
        msg_id = parent["content"].get("msg_id")
        tape = self._tape(msg_id)
        said: dict[str, Any] = {"token": self.order.token}
        if msg_id is None:
            names = self._known_names = self._names()
            said |= {"names_added": sorted(names)[:_NAMES_IN_ALL], "names_count": len(names)}
        content = {"status": "ok", "known": tape is not None, "kernelexec": said}
        self.session.send(stream, "kernelexec_resume_reply", content, parent, ident)
        if tape is not None:
            self.iopub_thread.schedule(partial(self.iopub_thread.replay, tape, parent))

    def lease_request(self, _stream: Any, _ident: Any, parent: Any) -> None:
        """The owner lives, and says how long that may be believed. There is no reply: nobody waits for one."""
        seconds = parent["content"].get("seconds")
        if self.lease is not None and isinstance(seconds, int | float):
            self.lease.renew(seconds)
