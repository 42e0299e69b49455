"""The commands for single cells: ``exec``, the prompt, and the guidance about the environment of code."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from kernelexec import cells
from kernelexec.cli.options import (
    ONE_CELL_SETTINGS,
    ONE_COMMAND_SETTINGS,
    IsolationOptions,
    JsonOption,
    PicturesOption,
    TimeoutOption,
    WorkDirOption,
    not_blank,
    option,
    with_isolation_options,
    without_idle_fork_server,
)
from kernelexec.cli.stdio import (
    INTERRUPTED,
    OWN_FAILURE,
    STATUS_HELP,
    Signals,
    cell_status,
    current_directory,
    read_stdin,
    write_text,
)
from kernelexec.cli.terminal import confirm_at_terminal
from kernelexec.config import Config, check_seconds
from kernelexec.errors import InvalidRequest

if TYPE_CHECKING:
    from kernelexec.results import ExecutionResult
    from kernelexec.session import AsyncSession

run_app = typer.Typer()
_T = TypeVar("_T")


@run_app.command(name="exec", epilog=f"Exit status: that of the command; of code 0, or 1 if it failed; {STATUS_HELP}")
@with_isolation_options
def exec_(
    isolation_options: IsolationOptions,
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="Code or shell magic, for example '1 + 1' or '!ls'; - or nothing for stdin."),
    ] = None,
    timeout: TimeoutOption = None,
    work_dir: WorkDirOption = None,
    language: Annotated[
        str,
        option("--language", "Python, bash, javascript, or an installed kernel's.", "NAME", callback=not_blank),
    ] = "python",
    pictures: PicturesOption = "auto",
    as_json: JsonOption = False,
) -> int:
    """Run one cell of CODE in a new session."""
    config, current = isolation_options.load_config(**ONE_CELL_SETTINGS), current_directory()
    code = _read_code(config.capacity.code_bytes) if code in (None, "-") else code
    cells.check(code, limit_bytes=config.capacity.code_bytes)
    if timeout is not None:
        check_seconds(timeout, "timeout")

    async def execute(session: AsyncSession) -> ExecutionResult:
        from kernelexec.cli.console import ConsoleOutput  # by now the executor has imported what it needs

        console = ConsoleOutput(as_json=as_json, pictures=pictures)
        result = await session.execute(code, language=language, timeout=timeout, on_output=console.show_output)
        console.show_result(result)
        return result

    directory = Path(work_dir) if work_dir else current
    status, result = _use_session("exec", execute, config=config, work_dir=directory, approver=confirm_at_terminal)
    return (status or INTERRUPTED) if result is None else cell_status(result)


def _read_code(limit_bytes: int) -> str:
    """Return the cell in stdin, as far as a cell may go.

    Raises:
        InvalidRequest: stdin is a terminal, closed, not UTF-8, or cannot be read.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        raise InvalidRequest("exec needs CODE, or code in stdin: `kernelexec repl` is a prompt.")
    raw = read_stdin("run", limit_bytes + 1)
    try:  # a cell that is too long is refused as such, not for the character that the limit has cut
        return raw.decode("utf-8-sig", "strict" if len(raw) <= limit_bytes else "ignore")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"stdin is not UTF-8 (byte {exc.start}).") from exc


@run_app.command(epilog=f"Exit status: 0; {OWN_FAILURE} after wrong usage, or if no kernel starts.")
@with_isolation_options
def guidance(isolation_options: IsolationOptions, work_dir: WorkDirOption = None) -> int:
    """Print the guidance for a model's system prompt: the environment of code in a new session with these options."""
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS)
    directory = Path(work_dir) if work_dir else current_directory()
    if not config.enabled:
        from kernelexec.session.model_prompts import EXECUTION_DISABLED

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
    pictures: PicturesOption = "auto",
) -> int:
    """Type cells at a prompt, in one session that is open until you press Ctrl+D."""
    from kernelexec.cli.repl import run_repl

    directory = Path(work_dir) if work_dir else None
    config = isolation_options.load_config(**ONE_COMMAND_SETTINGS | {"save_displays": True})
    return run_repl(config=config, name=session, timeout=timeout, work_dir=directory, pictures=pictures)


def _use_session(
    name: str,
    use: Callable[[AsyncSession], Awaitable[_T]],
    *,
    config: Config,
    work_dir: Path,
    **options: Any,  # noqa: ANN401 - the executor's
) -> tuple[int | None, _T | None]:
    """Use a new session; return the status of a signal, if any, and the value of ``use`` unless cancelled."""
    from kernelexec.executor.executor import AsyncExecutor

    signals, value = Signals(), None

    async def run() -> None:
        nonlocal value
        with signals.handle():
            async with AsyncExecutor(config=without_idle_fork_server(config, work_dir), **options) as executor:
                session = await executor.session(name, work_dir=work_dir)
                with signals.follow(session):
                    value = await use(session)

    anyio.run(run)
    return signals.status, value
