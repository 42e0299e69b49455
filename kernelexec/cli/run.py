"""Running files and single cells: output as it comes, one bar over the cells, an executed notebook that is always whole."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import anyio

from kernelexec.cli.show import Shower
from kernelexec.config import Config
from kernelexec.documents import Document
from kernelexec.errors import InvalidRequest
from kernelexec.executor import AsyncExecutor
from kernelexec.results import ExecutionResult
from kernelexec.session import AsyncSession

_TIMED_OUT, _INTERRUPTED = 124, 130


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
    """Run a file's cells; the exit status: 0, or 1 after a failed cell, 124 after a timeout, 130 after Ctrl+C."""
    path = None if file == "-" else Path(file)
    document = Document.script(sys.stdin.read()) if path is None else Document.read(path)
    if not document.sources:
        message = f"{file} holds no code cell: there is nothing to run."
        raise InvalidRequest(message)
    target = output or (path and path.with_name(f"{path.stem}.executed.ipynb"))
    directory = work_dir or (path.parent if path else Path.cwd())
    job = _Job(document, target, timeout=timeout, allow_errors=allow_errors, shower=Shower(as_json=as_json))
    status = anyio.run(job.run, config, directory)
    if target is not None:
        sys.stderr.write(f"kernelexec: wrote {target}\n")
    return status


def run_code(code: str, *, config: Config, timeout: float | None, work_dir: Path | None, as_json: bool) -> int:
    """Run one cell; the exit status is the cell's own, 1 at least if it failed."""
    shower = Shower(as_json=as_json)

    async def once() -> ExecutionResult:
        async with AsyncExecutor(config=config) as executor:
            session = await executor.session("exec", work_dir=work_dir or Path.cwd())
            with _interrupts(session):
                return await session.execute(code, timeout=timeout, on_output=shower.output)

    result = anyio.run(once)
    shower.result(result)
    return 0 if result.ok else (result.exit_code or 1) & 0xFF or 1


class _Job:
    """One document on its way through a session."""

    def __init__(
        self, document: Document, target: Path | None, *, timeout: float | None, allow_errors: bool, shower: Shower
    ) -> None:
        self._document = document
        self._target = target
        self._timeout = timeout
        self._allow_errors = allow_errors
        self._shower = shower

    async def run(self, config: Config, directory: Path) -> int:
        async with AsyncExecutor(config=config, hooks=[self._document.on_event]) as executor:
            session = await executor.session("run", work_dir=directory)
            with _interrupts(session), self._shower.progress(len(self._document.sources)) as advance:
                for number, source in enumerate(self._document.sources):
                    result = await session.execute(source, timeout=self._timeout, on_output=self._shower.output)
                    self._record(number, result)
                    advance()
                    self._shower.result(result)
                    if status := self._verdict(number, result):
                        return status
        return 0

    def _verdict(self, number: int, result: ExecutionResult) -> int:
        if result.ok:
            return 0
        if result.interrupted == "request":
            return _INTERRUPTED
        if self._allow_errors or self._document.allows_error(number):
            return 0
        return _TIMED_OUT if result.interrupted == "timeout" else 1

    def _record(self, number: int, result: ExecutionResult) -> None:
        self._document.record(number, result)
        if self._target is not None:
            self._document.write(self._target)


@contextmanager
def _interrupts(session: AsyncSession) -> Iterator[None]:
    """Ctrl+C interrupts the running cell, so that its state, output and the notebook are kept; a second one kills."""
    asked: list[int] = []

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)
        if len(asked) > 1:
            raise KeyboardInterrupt
        sys.stderr.write("kernelexec: interrupting the cell\n")
        loop.call_soon_threadsafe(session.request_interrupt)

    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
