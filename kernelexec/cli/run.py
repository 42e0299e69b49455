"""The commands that run code: files, single cells, the prompt, and the guidance about the environment of code."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from kernelexec import cells
from kernelexec.cli.console import ConsoleOutput
from kernelexec.cli.options import (
    ONE_COMMAND_SETTINGS,
    IsolationOptions,
    JsonOption,
    TimeoutOption,
    WorkDirOption,
    not_blank,
    option,
    with_isolation_options,
)
from kernelexec.cli.stdio import (
    CELL_FAILED,
    INTERRUPTED,
    OWN_FAILURE,
    STATUS_HELP,
    TIMED_OUT,
    CommandFailed,
    Signals,
    cell_status,
    current_directory,
    eprint,
    is_refusal,
    read_stdin,
    write_text,
)
from kernelexec.cli.terminal.confirm import confirm_at_terminal
from kernelexec.config import Config, check_seconds
from kernelexec.errors import InvalidCode, InvalidRequest
from kernelexec.model_prompts import EXECUTION_DISABLED
from kernelexec.records.notebook.notebook_io import CellFile

if TYPE_CHECKING:
    from kernelexec.results import ExecutionResult
    from kernelexec.session import AsyncSession

run_app = typer.Typer()
_T = TypeVar("_T")


@run_app.command(epilog=f"Exit status: 0; 1 after a cell that failed; {STATUS_HELP}")
@with_isolation_options
def run(
    isolation_options: IsolationOptions,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            callback=not_blank,
            help="A notebook (.ipynb), a script with '# %%' cells (.py), or - for stdin.",
        ),
    ],
    output: Annotated[
        str | None,
        option("--output -o", "The path of the executed notebook (.ipynb).", "PATH", callback=not_blank),
    ] = None,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    allow_errors: Annotated[bool, option("--allow-errors", "Continue after a failed cell.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Run the cells of FILE in one session, print their output immediately, and write the executed notebook."""
    config, current = isolation_options.load_config(**ONE_COMMAND_SETTINGS), current_directory()
    if timeout is not None:
        check_seconds(timeout, "timeout")
    path = None if file == "-" else Path(file)
    document = _read_script() if path is None else CellFile.read(path, piped=True)
    _check_document(document, "stdin" if path is None else file, config)
    target = Path(output) if output else (path and path.with_name(f"{path.stem}.executed.ipynb"))
    if target is not None:
        _check_target(target, path)
    for note in document.history.notes:
        eprint(f"{file}: {note}")
    directory = Path(work_dir) if work_dir else (path.parent if path else current)
    job = _FileRun(document, target, timeout, allow_errors, ConsoleOutput(as_json=as_json))
    if not document.sources:
        job.write("")
        eprint(f"{file} has no code cell to run: wrote {target}")
        return 0
    options = {"config": config, "hooks": [document.on_event], "approver": confirm_at_terminal}
    try:
        status, end = _use_session("run", job.run, work_dir=directory, **options)
        return status or (INTERRUPTED if end is None else end)
    finally:
        if job.has_written and document.is_changed:  # output came after the last cell
            job.write(" after the last cell")
        if job.has_written:
            eprint(f"wrote {target}")


@run_app.command(name="exec", epilog=f"Exit status: that of the command; of code 0, or 1 if it failed; {STATUS_HELP}")
@with_isolation_options
def exec_(
    isolation_options: IsolationOptions,
    code: Annotated[str, typer.Argument(metavar="CODE", help="Code or shell magic, for example '1 + 1' or '!ls'.")],
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    language: Annotated[
        str,
        option("--language", "Python, bash, javascript, or an installed kernel's.", "NAME", callback=not_blank),
    ] = "python",
    as_json: JsonOption = False,
) -> int:
    """Run one cell of CODE in a new session."""
    config, current = isolation_options.load_config(**ONE_COMMAND_SETTINGS), current_directory()
    cells.check(code, limit_bytes=config.capacity.code_bytes)
    if timeout is not None:
        check_seconds(timeout, "timeout")
    console = ConsoleOutput(as_json=as_json)

    async def execute(session: AsyncSession) -> ExecutionResult:
        return await session.execute(code, language=language, timeout=timeout, on_output=console.show_output)

    directory = Path(work_dir) if work_dir else current
    status, result = _use_session("exec", execute, config=config, work_dir=directory, approver=confirm_at_terminal)
    if result is None:
        return status or INTERRUPTED
    console.show_result(result)
    return cell_status(result)


@run_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if no kernel starts.")
@with_isolation_options
def guidance(isolation_options: IsolationOptions, work_dir: WorkDirOption = None) -> int:
    """Print the guidance for a model's system prompt: the environment of code in a new session with these options."""
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS)
    directory = Path(work_dir) if work_dir else current_directory()
    if not config.enabled:
        write_text(sys.stdout, EXECUTION_DISABLED + "\n")
        return 0
    status, text = _use_session("guidance", lambda session: session.guidance(), config=config, work_dir=directory)
    if text is None or status:
        return status or INTERRUPTED
    write_text(sys.stdout, text)
    return 0


@run_app.command(epilog=f"Exit status: 0 after Ctrl+D; {OWN_FAILURE} if kernelexec itself failed, or there is no terminal.")
@with_isolation_options
def repl(
    isolation_options: IsolationOptions,
    session: Annotated[str, option("--session", "The session's name.", "NAME")] = "repl",
    timeout: Annotated[float | None, option("--timeout", "Seconds that each cell may run. Default: a week.")] = None,
    work_dir: WorkDirOption = None,
) -> int:
    """Type cells at a prompt, in one session that is open until you press Ctrl+D."""
    from kernelexec.cli.repl import run_repl

    directory = Path(work_dir) if work_dir else None
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS | {"save_displays": True})
    return run_repl(config=config, name=session, timeout=timeout, work_dir=directory)


def _use_session(
    name: str,
    use: Callable[[AsyncSession], Awaitable[_T]],
    *,
    work_dir: Path,
    **options: Any,  # noqa: ANN401 - the executor's
) -> tuple[int | None, _T | None]:
    """Use a new session; return the status of a signal that ended it, and the value of ``use`` if it was not cancelled."""
    from kernelexec.executor import AsyncExecutor

    signals, value = Signals(), None

    async def run() -> None:
        nonlocal value
        with signals.handle():
            async with AsyncExecutor(**options) as executor:
                signals.session = await executor.session(name, work_dir=work_dir)
                value = await use(signals.session)

    anyio.run(run)
    return signals.status, value


@dataclass(slots=True)
class _FileRun:
    """A run of one document in a session."""

    document: CellFile
    target: Path | None
    timeout: float | None
    allow_errors: bool
    console: ConsoleOutput
    has_written: bool = False

    async def run(self, session: AsyncSession) -> int:
        """Run the cells; return the exit status.

        Raises:
            InvalidRequest: the notebook's kernelspec is not installed; nothing ran.
        """
        if (kernelspec := self.document.history.kernelspec) is not None:
            await session.check_kernelspec(kernelspec)
        with self.console.progress(len(self.document.sources)) as advance:
            for number, source in enumerate(self.document.sources):
                language = self.document.get_language(number)
                result = await session.execute(
                    source, language=language, timeout=self.timeout, on_output=self.console.show_output
                )
                self.document.record(number, result)
                if number == 0 and result.state in ("kept", "new"):
                    self.document.set_language_info(await session.read_language_info(language))
                self.write(f" after cell {number + 1}")
                advance()
                self.console.show_result(result)
                if status := self._exit_status(number, result):
                    return status
        return 0

    def _exit_status(self, number: int, result: ExecutionResult) -> int:
        if result.ok:
            return 0
        never_began = result.status == "aborted" and not is_refusal(result)  # its kernel was still starting
        if result.interrupted == "request" or never_began:
            return INTERRUPTED
        if self.allow_errors or self.document.allows_error(number):
            return 0
        return TIMED_OUT if result.interrupted == "timeout" else CELL_FAILED

    def write(self, moment: str) -> None:
        """Write the executed notebook; ``moment`` completes the message of a failure."""
        if self.target is None:
            return
        try:
            self.document.write(self.target)
        except OSError as exc:
            message = f"{self.target} cannot be written{moment}: {exc.strerror}."
            raise CommandFailed(message) from exc
        self.has_written = True


def _read_script() -> CellFile:
    try:
        return CellFile.script(read_stdin("run").decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        message = f"stdin is not UTF-8 (byte {exc.start})."
        raise InvalidRequest(message) from exc


def _check_document(document: CellFile, file: str, config: Config) -> None:
    if not document.sources and not file.endswith(".ipynb"):
        message = f"{file} must contain a code cell: there is nothing to run."
        raise InvalidRequest(message)
    for number, source in enumerate(document.sources, 1):
        try:
            cells.check(source, limit_bytes=config.capacity.code_bytes)
        except InvalidCode as exc:
            message = f"{file}, cell {number}: {exc}"
            raise InvalidRequest(message) from exc


def _check_target(target: Path, source: Path | None) -> None:
    """Check that the executed notebook can be written, by creating a temporary file next to it.

    Raises:
        InvalidRequest: the path is not writable, or not a notebook's.
    """
    if target.suffix != ".ipynb":
        message = f"{target} : --output must end in .ipynb."
        raise InvalidRequest(message)
    trial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if source is not None and target.exists() and target.samefile(source):
            message = f"{target} is the input file: --output must be another file."
            raise InvalidRequest(message)
        if target.exists() and not target.is_file():
            message = f"{target} is not a regular file: --output must be the notebook's path."
            raise InvalidRequest(message)
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        message = f"{target} cannot be written: {exc.strerror}. Choose another path with --output."
        raise InvalidRequest(message) from exc
    with suppress(OSError):
        trial.unlink()
