"""Commands that run beside a session's cells, under the same rules and in the same place; they end with their kernel."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.errors import CapacityReached, InvalidRequest, KernelNotAnswering, UnknownExecution, nearest
from kernelexec.launcher import protocol
from kernelexec.policy.decisions import Approver
from kernelexec.results import BackgroundCommand, BackgroundOutput
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life
from kernelexec.text import clean_text
from kernelexec.workspace import Workspace

#: How long the kernel may take to answer, in seconds: its control thread does, whatever a cell does.
_PATIENCE = 4.0
#: How long an ended command may take to be gone, and how often it is looked at, in seconds.
_ENDING_SECONDS, _PAUSE = 5.0, 0.05
#: How many that have ended are remembered.
_REMEMBERED = 100
LINES_MAX = 10_000


class Background(Secrecy):
    """The part of a session by which commands run beside its cells."""

    name: str
    isolation: str
    life: Life
    _config: Config
    _keeper: Keeper
    _permission: Permission
    _place: Workspace
    _inside: Callable[[str], str]
    _outside: Callable[[Any], Any]
    _background: dict[str, BackgroundCommand]

    async def start_background(
        self, command: str, *, work_dir: str | None = None, approver: Approver | None = None
    ) -> BackgroundCommand:
        """Start a command that runs beside the cells: a server, a watcher, a long job. It has no timeout, and no stdin.

        It begins where the session's ``cd`` is, with what it exported; what it changes there itself lasts for none. The rules,
        the validators and the approver decide about it as about a cell. It ends with its kernel, and is ``lost`` then.

        Raises:
            InvalidCode, InvalidWorkDir, Closed: nothing ran.
            SecurityError: it was refused; nothing ran.
            CapacityReached: ``capacity.background`` of them run already.
            KernelStartFailed, KernelNotAnswering: there is no kernel that answers.
        """
        self.life.check_open()
        directory = None if work_dir is None else self._inside(self._place.directory(self._outside(work_dir)))
        turn = await self._allowed(command, directory, approver)
        running = [one for one in await self.background_commands() if one.status == "running"]
        if len(running) >= self._config.capacity.background:
            message = f"{len(running)} background commands run in session {self.name!r}, its limit: end one first."
            raise CapacityReached(message)
        async with self.life.held():
            await self._keeper.start()
        begun = BackgroundCommand(f"shell_{secrets.token_hex(4)}", cells.said(turn.shown), "running")
        begun = replace(begun, kernel_epoch=self._keeper.epoch)
        asked = {"command": cells.said(turn.cell), "work_dir": directory}
        said = await self._of_jobs("start", begun.command_id, **asked)
        if said.get("status") != "ok":
            message = f"The command did not start: {clean_text(str(said.get('evalue')))[:300]}"
            raise InvalidRequest(message)
        self._forget_old()
        self._background[begun.command_id] = begun.now(said.get("job"))
        return self._background[begun.command_id]

    async def check_command(self, command: str, *, approver: Approver | None = None) -> None:
        """Have the rules, the validators and the approver decide about a command that is run elsewhere for an agent.

        Raises:
            InvalidCode, Closed: nobody decided.
            SecurityError: it was refused.
        """
        self.life.check_open()
        await self._allowed(command, None, approver)

    async def _allowed(self, command: str, directory: str | None, approver: Approver | None) -> Turn:
        cell = cells.command(command, work_dir=directory, stdin=None, limit_bytes=self._config.capacity.code_bytes)
        turn = Turn(cell, timeout=self._config.budgets.timeout, isolation=self.isolation, approver=approver)
        turn.shown = self._masked_cell(cell)
        if (why := self._permission.refuses(turn) or await self._permission.refused(turn)) is not None:
            raise self._denied(turn, self._keeper.epoch, why)
        return turn

    async def background_commands(self) -> tuple[BackgroundCommand, ...]:
        """All that are remembered, the oldest first, as they are now.

        Raises:
            Closed, KernelNotAnswering: see ``background_output``.
        """
        self.life.check_open()
        if any(self._may_live(one) for one in self._background.values()):
            said = await self._of_jobs("list", None)
            jobs = said.get("jobs")
            told = {job.get("name"): job for job in (jobs if isinstance(jobs, list) else []) if isinstance(job, dict)}
            for command_id, one in self._background.items():
                if self._may_live(one):
                    self._background[command_id] = one.now(told.get(command_id))
        return tuple(self._as_of_now(one) for one in self._background.values())

    async def background(self, command_id: str) -> BackgroundCommand:
        """One of them as it is now.

        Raises:
            UnknownExecution, Closed, KernelNotAnswering: see ``background_output``.
        """
        return (await self.background_output(command_id, lines=0)).command

    async def background_output(self, command_id: str, *, lines: int = 1000) -> BackgroundOutput:
        """The newest ``lines`` of each of its streams, 10,000 at most; of one that was lost nothing is left.

        Raises:
            UnknownExecution: this session started none of that id.
            InvalidRequest: ``lines`` is no such number.
            Closed: the session is.
            KernelNotAnswering: the kernel does not say in time.
        """
        if isinstance(lines, bool) or not isinstance(lines, int) or not 0 <= lines <= LINES_MAX:
            message = f"lines={lines!r}: a number of lines, from 0 to {LINES_MAX}."
            raise InvalidRequest(message)
        one = self._found(command_id)
        if not self._may_live(one):
            return BackgroundOutput(self._as_of_now(one), "", "")
        while "job" not in (answer := await self._of_jobs("output", command_id, lines=lines)) and lines:
            lines //= 2  # so many were too large a reply to be read
        said = answer.get("job")
        one = self._background[command_id] = one.now(said)
        parts = said if isinstance(said, dict) else {}
        stdout, stderr = (self.mask(clean_text(str(parts.get(name, "")))) for name in ("stdout", "stderr"))
        before = [parts.get(f"{name}_dropped") for name in ("stdout", "stderr")]
        return BackgroundOutput(one, stdout, stderr, *(count if isinstance(count, int) else 0 for count in before))

    async def kill_background(self, command_id: str) -> BackgroundCommand:
        """End one with all of its processes: SIGTERM, and SIGKILL half a second later. One that has ended stays as it is.

        Raises:
            UnknownExecution, Closed, KernelNotAnswering: see ``background_output``.
        """
        one = self._found(command_id)
        if self._may_live(one):
            await self._of_jobs("kill", command_id)
            with anyio.move_on_after(_ENDING_SECONDS):
                while (one := await self.background(command_id)).status == "running":  # noqa: ASYNC110 - nothing tells of it
                    await anyio.sleep(_PAUSE)
        return self._as_of_now(one)

    def _found(self, command_id: str) -> BackgroundCommand:
        self.life.check_open()
        if command_id not in self._background:
            known = ", ".join(self._background) or "none"
            near = nearest(str(command_id), self._background)
            message = f"Session {self.name!r} has no background command {command_id!r:.100}{near}: there are {known}."
            raise UnknownExecution(message)
        return self._background[command_id]

    def _may_live(self, one: BackgroundCommand) -> bool:
        return self._keeper.lives(one.kernel_epoch)

    def _as_of_now(self, one: BackgroundCommand) -> BackgroundCommand:
        return replace(one, status="lost", exit_code=None) if one.status == "running" and not self._may_live(one) else one

    def _forget_old(self) -> None:
        ended = [command_id for command_id, one in self._background.items() if self._as_of_now(one).status != "running"]
        for command_id in ended[: max(0, len(ended) - _REMEMBERED + 1)]:
            del self._background[command_id]

    async def _of_jobs(self, action: str, name: str | None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        kernel, content = self._keeper.kernel, {"action": action, "name": name, **more}
        said = await kernel.ask("control", protocol.JOBS_REQUEST, content, patience=_PATIENCE) if kernel else None
        if said is None:
            message = f"The kernel of session {self.name!r} said nothing of its background commands within {_PATIENCE:g} s."
            raise KernelNotAnswering(message)
        return said
