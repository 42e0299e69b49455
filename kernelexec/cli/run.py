"""Runs of files and single cells: immediate output, a progress bar, and an executed notebook that is always complete."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import anyio

from kernelexec import cells
from kernelexec.cli.confirm import confirm_at_terminal
from kernelexec.cli.console import ConsoleOutput
from kernelexec.cli.stdio import (
    CELL_FAILED,
    INTERRUPTED,
    TIMED_OUT,
    CommandFailed,
    Signals,
    cell_status,
    current_directory,
    eprint,
    is_refusal,
    write_text,
)
from kernelexec.config import Config, check_seconds
from kernelexec.errors import InvalidCode, InvalidRequest
from kernelexec.executor import AsyncExecutor
from kernelexec.model_prompts import EXECUTION_DISABLED
from kernelexec.records.notebook.notebook_io import CellFile
from kernelexec.results import ExecutionResult
from kernelexec.session import AsyncSession


def run_file(
    file: str,
    *,
    config: Config,
    output: Path | None,
    timeout: float | None,
    work_dir: Path | None,
    allow_errors: bool,
    as_json: bool,
) -> int:
    """Run a file's cells; return exit status 0, 1 after a failed cell, 124 after a timeout, or 130 after Ctrl+C.

    Raises:
        InvalidRequest, CommandFailed: the file, a cell of it, or an option is invalid; nothing ran.
    """
    current = current_directory()
    if timeout is not None:
        check_seconds(timeout, "timeout")
    path = None if file == "-" else Path(file)
    document = CellFile.script(_read_stdin()) if path is None else CellFile.read(path, piped=True)
    _check_document(document, "stdin" if path is None else file, config)
    target = output or (path and path.with_name(f"{path.stem}.executed.ipynb"))
    if target is not None:
        _check_target(target, path)
    directory = work_dir or (path.parent if path else current)
    job = _FileRun(document, target, timeout=timeout, allow_errors=allow_errors, console=ConsoleOutput(as_json=as_json))
    try:
        return anyio.run(job.run, config, directory)
    finally:
        if job.has_written:
            eprint(f"wrote {target}")


def run_code(code: str, *, config: Config, language: str, timeout: float | None, work_dir: Path | None, as_json: bool) -> int:
    """Run one cell; return the cell's own exit status, at least 1 if it failed.

    Raises:
        InvalidRequest, CommandFailed: the code or an option is invalid; nothing ran.
    """
    current = current_directory()
    cells.check(code, limit_bytes=config.capacity.code_bytes)
    if timeout is not None:
        check_seconds(timeout, "timeout")
    console, signals = ConsoleOutput(as_json=as_json), Signals()

    async def execute() -> ExecutionResult | None:
        result = None
        with signals.handle():
            async with AsyncExecutor(config=config, approver=confirm_at_terminal) as executor:
                signals.session = await executor.session("exec", work_dir=work_dir or current)
                result = await signals.session.execute(code, language=language, timeout=timeout, on_output=console.show_output)
        return result

    result = anyio.run(execute)
    if result is None:
        return signals.status or INTERRUPTED
    console.show_result(result)
    return cell_status(result)


def show_guidance(config: Config, work_dir: Path | None) -> int:
    """Print the guidance of a new session.

    Raises:
        KernelStartFailed: no kernel started.
    """
    directory, signals = work_dir or current_directory(), Signals()

    async def read_guidance() -> str | None:
        if not config.enabled:
            return EXECUTION_DISABLED + "\n"
        text = None
        with signals.handle():
            async with AsyncExecutor(config=config) as executor:
                signals.session = await executor.session("guidance", work_dir=directory)
                text = await signals.session.guidance()
        return text

    text = anyio.run(read_guidance)
    if text is None or signals.status:
        return signals.status or INTERRUPTED
    write_text(sys.stdout, text)
    return 0


class _FileRun:
    """A run of one document in a session."""

    def __init__(
        self, document: CellFile, target: Path | None, *, timeout: float | None, allow_errors: bool, console: ConsoleOutput
    ) -> None:
        self.has_written = False
        self._document = document
        self._target = target
        self._timeout = timeout
        self._allow_errors = allow_errors
        self._console = console

    async def run(self, config: Config, directory: Path) -> int:
        signals, status = Signals(), INTERRUPTED
        with signals.handle():
            async with AsyncExecutor(config=config, hooks=[self._document.on_event], approver=confirm_at_terminal) as executor:
                signals.session = await executor.session("run", work_dir=directory)
                status = await self._run_cells(signals.session)
        return signals.status or status

    async def _run_cells(self, session: AsyncSession) -> int:
        with self._console.progress(len(self._document.sources)) as advance:
            for number, source in enumerate(self._document.sources):
                result = await session.execute(source, timeout=self._timeout, on_output=self._console.show_output)
                self._record(number, result)
                advance()
                self._console.show_result(result)
                if status := self._exit_status(number, result):
                    return status
        return 0

    def _exit_status(self, number: int, result: ExecutionResult) -> int:
        if result.ok:
            return 0
        never_began = result.status == "aborted" and not is_refusal(result)  # its kernel was still starting
        if result.interrupted == "request" or never_began:
            return INTERRUPTED
        if self._allow_errors or self._document.allows_error(number):
            return 0
        return TIMED_OUT if result.interrupted == "timeout" else CELL_FAILED

    def _record(self, number: int, result: ExecutionResult) -> None:
        self._document.record(number, result)
        if self._target is None:
            return
        try:
            self._document.write(self._target)
        except OSError as exc:
            message = f"{self._target} cannot be written after cell {number + 1}: {exc.strerror}."
            raise CommandFailed(message) from exc
        self.has_written = True


def _read_stdin() -> str:
    if sys.stdin is None:
        raise InvalidRequest("stdin is closed: there is nothing to run.")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        message = f"stdin is not UTF-8 (byte {exc.start})."
        raise InvalidRequest(message) from exc
    except OSError as exc:
        message = f"stdin cannot be read: {exc.strerror}."
        raise InvalidRequest(message) from exc


def _check_document(document: CellFile, file: str, config: Config) -> None:
    if not document.sources:
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
