"""Tools for shell commands, in the foreground or in the background, and for the installation of packages.

The answer of a command is text for models, and fields for programs without the uninformative fields. A long installation
continues after the call, and an equal second call returns the result.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import anyio
from fastmcp import Context
from fastmcp.tools import InputRequiredToolResult, ToolResult
from mcp.types import TextContent
from pydantic import TypeAdapter

from kernelexec.errors import Closed, InvalidRequest, KernelexecError
from kernelexec.mcp.answers import (
    PREVIEW_CHARS,
    TIMEOUT_ADVICE,
    AnswerOptions,
    fit_answer,
    preview,
    render_answer,
    render_stream,
)
from kernelexec.mcp.elicitation import PartialResult
from kernelexec.mcp.sessions import SessionMethods, SessionService
from kernelexec.results import BackgroundCommand, Installation, SecurityError, model_notes
from kernelexec.text import clean_text, escape_line, format_note, quote_output

if TYPE_CHECKING:
    from kernelexec.session import AsyncSession

_FILES_MAX = 100
_INTERRUPT = "KeyboardInterrupt"

_ALWAYS = ("success", "exit_code", "stdout", "stderr")
#: The refusal to install without a source of packages.
_NO_SOURCE = "There is no source of packages: the operator can set `--packages-from network`, or a directory of wheels."
CommandId = Annotated[str, "The command_id returned by start_background."]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """Result of a command. A refused command has exit_code -1, the reason in stderr, and no output.

    The fields with a default are omitted where they have it, and those of the request itself, unless a program asks for all.
    """

    success: bool
    exit_code: int | None
    stdout: str
    stderr: str
    execution_time: float = 0.0
    command: str = ""
    work_dir: str = ""
    status: str = "ok"
    execution_id: str = ""
    timed_out: bool = False
    truncated: bool = False
    state: str = "kept"
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_structure(self, *, is_whole: bool) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        fields = asdict(self)
        if is_whole:
            return fields
        is_usual = self.status in ("ok", "error") and not self.truncated
        left_out = {"execution_time", "command", "work_dir"} | ({"execution_id", "status"} if is_usual else set())
        defaults = asdict(CommandAnswer(success=True, exit_code=0, stdout="", stderr=""))
        return {
            name: value
            for name, value in fields.items()
            if name in _ALWAYS or (name not in left_out and value != defaults[name])
        }


class CommandTools(SessionMethods):
    """Tool for shell commands."""

    async def execute_command(
        self,
        context: Context,
        command: str,
        timeout: float | None = None,
        work_dir: str | None = None,
        session: str = "default",
        wait: float | None = None,
        request_id: str | None = None,
    ) -> ToolResult:
        """Run a command."""
        elicitation = self._sessions.make_elicitation(context)
        form = AnswerOptions.of(context, self._sessions)
        shown, directory = command, work_dir or ""
        try:
            self._sessions.check_wait(wait)
            opened = await self._sessions.get_session(session, elicitation)
            shown, directory = opened.mask(command), opened.mask(directory)
            send = partial(opened.execute_command, command, timeout=timeout, work_dir=work_dir, request_id=request_id)
            send = partial(send, approver=elicitation)
            partial_result = await self._sessions.run_cell(opened, send, elicitation, wait=wait, title=shown)
        except KernelexecError as exc:
            mask = self._sessions.mask
            answer = _make_refusal(mask(shown), mask(directory), mask(str(exc)))
        else:
            if elicitation.input_required is not None:
                return InputRequiredToolResult(elicitation.input_required)
            answer = _make_answer(partial_result, shown, directory or str(opened.workspace))
        structure = answer.to_structure(is_whole=form.has_whole_record)
        if answer.status == "aborted":
            text = f"[aborted]\n{format_note(f'The command did not run: {answer.stderr}')}"
            return ToolResult([TextContent(type="text", text=text)], structure)
        return ToolResult((await render_answer(partial_result, form)).content, structure)


#: The schema of the structure in answers.
COMMAND_SCHEMA: dict[str, Any] = TypeAdapter(CommandAnswer).json_schema()


def _make_answer(partial_result: PartialResult, command: str, work_dir: str) -> CommandAnswer:
    result = partial_result.result
    if result.status == "aborted":
        return _make_refusal(command, work_dir, "\n".join(result.notes) or "It did not run.", result.execution_id, result.state)
    running = result.status == "running"
    stdout, stderr = (render_stream(partial_result, name) for name in ("stdout", "stderr"))
    how = f"It waits behind {partial_result.queue_position} other(s)" if partial_result.queue_position else "It still runs"
    call = f"wait_execution(execution_id='{result.execution_id}', cursor={partial_result.cursor})"
    collect = f"{how}: call {call}, do not send it again."
    error = result.error
    if error is not None and not stderr and error.ename != _INTERRUPT:  # the end of a kernel would not be reported
        stderr = preview(f"{error.ename}: {error.evalue}", "see notes", show=quote_output)
    return CommandAnswer(
        success=result.ok,
        exit_code=result.exit_code,
        stdout=stdout,
        stderr=stderr,
        execution_time=round(result.timing.run, 3),
        command=_shorten(command),
        work_dir=result.work_dir or work_dir,
        status=result.status,
        execution_id=result.execution_id,
        timed_out=result.interrupted == "timeout",
        truncated=result.truncated or partial_result.missed_bytes > 0 or "characters left out" in f"{stdout}{stderr}",
        state=result.state,
        files=[escape_line(name) for name in result.files[:_FILES_MAX]],
        notes=[collect] if running else model_notes(replace(result, files=()), timeout_advice=TIMEOUT_ADVICE),
    )


def _make_refusal(command: str, work_dir: str, reason: str, execution_id: str = "", state: str = "unknown") -> CommandAnswer:
    return CommandAnswer(
        success=False,
        exit_code=-1,
        stdout="",
        stderr=clean_text(reason),
        command=_shorten(command),
        work_dir=clean_text(work_dir),
        status="aborted",
        execution_id=execution_id,
        state=state,
    )


def _shorten(command: str) -> str:
    return clean_text(preview(command, "the command as you sent it"))


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """State of a background command, with the newest lines of its stdout and stderr."""

    command_id: str
    command: str
    status: str
    exit_code: int | None
    duration: float
    stdout: str
    stderr: str
    lines_left_out: int


@dataclass(frozen=True, slots=True)
class BackgroundList:
    """The background commands of a session, oldest first."""

    commands: list[BackgroundAnswer]


class BackgroundTools(SessionMethods):
    """Tools for background commands, with a method for each."""

    async def start_background(
        self,
        context: Context,
        command: str,
        work_dir: Annotated[str | None, "A directory in the workspace to run it in."] = None,
        session: str = "default",
    ) -> BackgroundAnswer:
        """Start a background command."""
        elicitation = self._sessions.make_elicitation(context)
        opened = await self._sessions.get_session(session, elicitation)
        try:
            return _make_background_answer(await opened.start_background(command, work_dir=work_dir, approver=elicitation))
        except SecurityError:
            if elicitation.input_required is None:
                raise
        return cast("BackgroundAnswer", elicitation.input_required)  # fastmcp passes it on; the schema is for other answers

    async def background_output(
        self,
        command_id: CommandId,
        lines: Annotated[int, "Number of newest lines of each stream, at most 10,000."] = 200,
        session: str = "default",
    ) -> BackgroundAnswer:
        """Return a background command's state and newest output."""
        output = await (await self._sessions.find_session(session)).background_output(command_id, lines=lines)
        return _make_background_answer(
            output.command, output.stdout, output.stderr, output.stdout_dropped + output.stderr_dropped
        )

    async def kill_background(self, command_id: CommandId, session: str = "default") -> BackgroundAnswer:
        """End a background command."""
        return _make_background_answer(await (await self._sessions.find_session(session)).kill_background(command_id))

    async def list_background(self, session: str = "default") -> BackgroundList:
        """List the background commands."""
        commands = await (await self._sessions.find_session(session)).background_commands()
        return fit_answer(
            lambda chars: BackgroundList([_make_background_answer(command, chars=chars) for command in commands]), PREVIEW_CHARS
        )


def _make_background_answer(
    command: BackgroundCommand, stdout: str = "", stderr: str = "", left_out: int = 0, *, chars: int = PREVIEW_CHARS
) -> BackgroundAnswer:
    return BackgroundAnswer(
        command_id=command.command_id,
        command=preview(command.command, "the command as you sent it", chars=chars),
        status=command.status,
        exit_code=command.exit_code,
        duration=round(command.duration, 3),
        stdout=preview(stdout, "request fewer lines"),
        stderr=preview(stderr, "request fewer lines"),
        lines_left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class InstallAnswer:
    """Result of an installation, or its state; ``installed`` lists the new packages with versions."""

    status: Literal["ok", "error", "running"]
    installed: list[str]
    output: str
    seconds: float
    notes: list[str]


@dataclass(slots=True)
class _RunningInstallation:
    """Installation of a session, kept until a call returns the result."""

    began: float
    done: anyio.Event = field(default_factory=anyio.Event)
    installation: Installation | None = None
    failure: Exception | None = None


class PackageTools(SessionMethods):
    """Tool to install packages from the operator's source, by default from the network of cells."""

    def __init__(self, sessions: SessionService) -> None:
        super().__init__(sessions)
        source = sessions.options.packages_from
        self._has_source = source is not None or sessions.config.has_network
        self._from: dict[str, Any] = {"network": True} if source == "network" else {"wheels": source}
        self._running: dict[tuple[str, tuple[str, ...]], _RunningInstallation] = {}

    async def install_packages(
        self,
        context: Context,
        packages: Annotated[list[str], "As for pip, or paths of wheels or requirements.txt in the workspace."],
        session: str = "default",
        wait: float | None = None,
    ) -> InstallAnswer:
        """Install packages."""
        elicitation = self._sessions.make_elicitation(context)
        patience = self._sessions.check_wait(wait)
        opened = await self._sessions.get_session(session, elicitation)
        key = opened.name, tuple(packages)
        if key not in self._running:
            await self._check_packages(opened, packages)
            try:
                await opened.check_command(shlex.join(["pip", "install", *packages]), approver=elicitation)
            except SecurityError:
                if elicitation.input_required is None:
                    raise
                return cast("InstallAnswer", elicitation.input_required)  # fastmcp passes it on
            # Again: an equal call may have begun the installation while this one waited for the approval.
            if key not in self._running:
                opened.scope.check_open()
                self._running[key] = _RunningInstallation(anyio.current_time())
                opened.scope.tasks.start_soon(self._install, opened, key)
        running = self._running[key]
        # The session's task installs and this call only waits, so the end of the wait or of the client stops nothing.
        with anyio.move_on_after(patience):
            async with elicitation.report_while("the packages are installed", self._sessions.interval):
                await running.done.wait()
        if not running.done.is_set():
            again = "It continues: call install_packages again with the same arguments to get the result."
            return InstallAnswer("running", [], "", round(anyio.current_time() - running.began, 3), [again])
        self._running.pop(key, None)
        if running.failure is not None:
            raise running.failure
        assert running.installation is not None
        answer = _make_install_answer(running.installation, opened)
        if not running.installation.ok:
            return cast("InstallAnswer", ToolResult(structured_content=asdict(answer), is_error=True))
        return answer

    async def _check_packages(self, opened: AsyncSession, packages: list[str]) -> None:
        """Refuse files outside the workspace, which sessions accept, and packages without a source."""
        # sessions have imported it
        from kernelexec.session.features.packages import find_requirements_file, is_wheel  # noqa: PLC0415

        for package in map(str.strip, packages):
            if (path := find_requirements_file(package) or (package if is_wheel(package) else None)) is not None:
                await opened.files.list(path)
            if not self._has_source and not is_wheel(package):
                raise InvalidRequest(_NO_SOURCE)

    async def _install(self, opened: AsyncSession, key: tuple[str, tuple[str, ...]]) -> None:
        """Install in a task of the session, independent of any call."""
        running = self._running[key]
        try:
            running.installation = await opened.install(key[1], **self._from)
        except Exception as exc:  # noqa: BLE001 - raised by the call that collects it
            running.failure = exc
        finally:
            if running.installation is None and running.failure is None:  # the session ends, so no later call collects it
                self._running.pop(key, None)
                running.failure = Closed(f"Session {opened.name!r} is closed.")
            running.done.set()


def _make_install_answer(installation: Installation, opened: AsyncSession) -> InstallAnswer:
    return InstallAnswer(
        "ok" if installation.ok else "error",
        [str(package) for package in installation.packages],
        preview(opened.mask(installation.output), "the workspace's .kernelexec/pylock.toml lists the installed packages"),
        round(installation.seconds, 3),
        list(installation.notes),
    )
