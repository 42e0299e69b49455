"""Background commands of a session, with the rules and the environment of cells. Commands end with their kernel."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import anyio

from kernelexec import cells
from kernelexec.errors import CapacityReached, Closed, InvalidRequest, KernelNotAnswering, UnknownExecution, did_you_mean
from kernelexec.launcher import protocol
from kernelexec.results import BackgroundCommand, BackgroundOutput
from kernelexec.results.json_values import is_count, read_list, read_text
from kernelexec.rules.policy.decisions import Approver
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.context import SessionContext, check_whole_number
from kernelexec.session.lifecycle import short_turns
from kernelexec.text import apply_cursor_moves, apply_returns, clean_text

#: The seconds that the kernel's control thread may take to answer, also while a cell runs.
_ANSWER_SECONDS = 4.0
#: The seconds that a killed command may take to end, and the seconds between two checks.
_ENDING_SECONDS, _PAUSE = 5.0, 0.05
#: The number of commands that may run in one session at a time.
RUNNING_MAX = 10
#: The number of ended commands that are remembered.
_REMEMBERED = 100
LINES_MAX = 10_000
#: The characters of a stream that the launcher sends at most: those that it keeps, and an unfinished line.
_STREAM_CHARS = (4 * 1024 + 64) * 1024
_REASON_CHARS = 300


class BackgroundCommands:
    """The background commands of a session."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._commands: dict[str, BackgroundCommand] = {}
        # from the count of the running commands to the entry of the new one: starts at the same time must not exceed the limit
        self._start_lock = anyio.Lock(fast_acquire=True)

    async def start_background(
        self, command: str, *, work_dir: str | None = None, approver: Approver | None = None
    ) -> BackgroundCommand:
        """Start a background command, such as a server, a watcher or a long job, without timeout and stdin.

        The command begins in the session's current directory with the session's exported variables, and changes neither. The
        rules, the validators and the approver decide about it as about a cell. It ends with its kernel, with status ``lost``.

        Raises:
            InvalidCode, InvalidWorkDir, Closed: nothing ran.
            SecurityError: the command was refused; nothing ran.
            CapacityReached: 10 commands run already.
            KernelStartFailed, KernelNotAnswering: no kernel answers.
        """
        self._context.scope.check_open()
        directory = self._context.resolve_work_dir(work_dir)
        run = await self._approve(command, directory, approver)
        async with self._start_lock:
            return await self._start(run, directory)

    async def check_command(self, command: str, *, approver: Approver | None = None) -> None:
        """Apply rules, validators and approver to a command that runs elsewhere; raise ``SecurityError`` if they refuse it."""
        self._context.scope.check_open()
        await self._approve(command, None, approver)

    async def background_commands(self) -> tuple[BackgroundCommand, ...]:
        """Return all remembered background commands with their present status, the oldest first; errors: see ``background``."""
        self._context.scope.check_open()
        if any(self._can_run(command) for command in self._commands.values()):
            jobs = read_list((await self._request("list", None)).get("jobs"))
            by_name = {name: job for job in jobs if isinstance(job, dict) and isinstance(name := job.get("name"), str)}
            for command_id, command in self._commands.items():
                if self._can_run(command):
                    self._commands[command_id] = command.update(by_name.get(command_id))
        return tuple(map(self._refresh_status, self._commands.values()))

    async def background(self, command_id: str) -> BackgroundCommand:
        """Return a background command with its present status; errors: see ``background_output``."""
        return (await self.background_output(command_id, lines=0)).command

    async def background_output(self, command_id: str, *, lines: int = 1000) -> BackgroundOutput:
        """Return the newest ``lines`` of stdout and of stderr, 10,000 at most; the output of a lost command is gone.

        Raises:
            UnknownExecution: this session has no background command with that id.
            InvalidRequest: ``lines`` is not a number from 0 to 10,000.
            Closed: the session is closed.
            KernelNotAnswering: the kernel does not answer in time.
        """
        check_whole_number(lines, "lines", "a number of lines", 0, LINES_MAX)
        command = self._find(command_id)
        if not self._can_run(command):
            return BackgroundOutput(self._refresh_status(command), "", "")
        while "job" not in (answer := await self._request("output", command_id, lines=lines)) and lines:
            lines //= 2  # the reply was too large to be read
        job = answer.get("job")
        command = self._commands[command_id] = command.update(job)
        fields = job if isinstance(job, dict) else {}
        streams = [_keep_newest(fields.get(name), lines) for name in ("stdout", "stderr")]
        if any(streams):
            streams = await self._context.read_in_thread(self._render_streams, streams)
        dropped = [fields.get(f"{name}_dropped") for name in ("stdout", "stderr")]
        return BackgroundOutput(command, streams[0], streams[1], *(count if is_count(count) else 0 for count in dropped))

    async def kill_background(self, command_id: str) -> BackgroundCommand:
        """End a background command with all its processes: SIGTERM, and SIGKILL half a second later.

        A command that has ended does not change. Errors: see ``background_output``.
        """
        command = self._find(command_id)
        if self._can_run(command):
            await self._request("kill", command_id)
            with anyio.move_on_after(_ENDING_SECONDS):
                while (command := await self.background(command_id)).status == "running":  # noqa: ASYNC110 - no event reports it
                    await anyio.sleep(_PAUSE)
        return self._refresh_status(command)

    async def has_running(self) -> bool:
        """Return whether a background command runs; True if a living kernel does not answer, or the session closes."""
        try:
            return any(command.status == "running" for command in await self.background_commands())
        except (Closed, KernelNotAnswering):
            # a kernel that is too busy to answer may have a server in it: when in doubt it is not culled
            kernel = self._context.kernels.python.kernel
            return kernel is not None and kernel.alive

    async def _start(self, run: CellRun, directory: str | None) -> BackgroundCommand:
        """Start an approved command; the caller must hold the lock."""
        context, supervisor = self._context, self._context.kernels.python
        running = [command for command in await self.background_commands() if command.status == "running"]
        if len(running) >= RUNNING_MAX:
            message = f"{len(running)} background commands run in session {context.name!r}, its limit: end one first."
            raise CapacityReached(message)
        async with context.scope.hold_open():
            await supervisor.acquire()
        started = BackgroundCommand(f"shell_{secrets.token_hex(4)}", cells.original_source(run.masked_cell), "running")
        started = replace(started, kernel_epoch=supervisor.epoch)
        arguments = {"command": cells.original_source(run.cell), "work_dir": directory}
        answer = await self._request("start", started.command_id, **arguments)
        if answer.get("status") != "ok":
            raise InvalidRequest(f"The command did not start: {read_text(answer.get('evalue'), _REASON_CHARS)}")
        self._forget_old()
        self._commands[started.command_id] = started.update(answer.get("job"))
        return self._commands[started.command_id]

    async def _approve(self, command: str, directory: str | None, approver: Approver | None) -> CellRun:
        context = self._context
        limit = context.config.capacity.code_bytes
        cell = cells.make_command_cell(command, work_dir=directory, stdin=None, limit_bytes=limit)
        run = context.make_run(cell, context.config.budgets.timeout, approver=approver)
        await context.approve(run)
        return run

    def _render_streams(self, streams: list[str]) -> list[str]:
        """Return streams as shown by a terminal, masked. The largest streams take a second."""
        with short_turns():
            return [apply_cursor_moves(apply_returns(self._context.masking.mask_text(text))) for text in streams]

    def _find(self, command_id: str) -> BackgroundCommand:
        self._context.scope.check_open()
        if command_id not in self._commands:
            known_ids = ", ".join(self._commands) or "none"
            near = did_you_mean(str(command_id), self._commands)
            raise UnknownExecution(
                f"Session {self._context.name!r} has no background command {command_id!r:.100}{near}: there are {known_ids}."
            )
        return self._commands[command_id]

    def _can_run(self, command: BackgroundCommand) -> bool:
        return self._context.kernels.python.is_alive(command.kernel_epoch)

    def _refresh_status(self, command: BackgroundCommand) -> BackgroundCommand:
        is_lost = command.status == "running" and not self._can_run(command)
        return replace(command, status="lost", exit_code=None) if is_lost else command

    def _forget_old(self) -> None:
        ended = [name for name, command in self._commands.items() if self._refresh_status(command).status != "running"]
        for command_id in ended[: max(0, len(ended) - _REMEMBERED + 1)]:
            del self._commands[command_id]

    async def _request(self, action: str, name: str | None, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        content = {"action": action, "name": name, **arguments}
        return await self._context.request("control", protocol.JOBS_REQUEST, content, _ANSWER_SECONDS)


def _keep_newest(stream: object, lines: int) -> str:
    """Return the newest lines of a stream in a kernel's reply. The kernel may send more lines, or no text: then nothing."""
    if not isinstance(stream, str) or not lines:
        return ""
    newest = clean_text(stream[-_STREAM_CHARS:])[-_STREAM_CHARS:]
    count = lines + newest.endswith("\n")
    return "\n".join(newest.rsplit("\n", count)[-count:])
