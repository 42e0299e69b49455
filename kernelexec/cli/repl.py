"""A person's loop on a session: a cell is read, run and shown, and the state stays until the person leaves."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from kernelexec.cli.asking import answer_at_terminal, ask_at_terminal
from kernelexec.cli.prompt import Prompt
from kernelexec.cli.show import Shower
from kernelexec.cli.signals import heard
from kernelexec.cli.status import SIGNAL_BASE
from kernelexec.cli.surroundings import here, say
from kernelexec.config import Config, seconds
from kernelexec.errors import Closed, InvalidRequest, KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.results import ExecutionResult, InputRequest, Output, Stream
from kernelexec.session import AsyncSession
from kernelexec.workspace.directory import check_name

#: How long a cell may run unless told otherwise, in seconds: a week, as a person is there to interrupt it.
TIMEOUT_SECONDS = 7 * 24 * 3600.0
_LEAVE = frozenset({"exit", "quit", "exit()", "quit()"})
_SAVED = "outputs/"


def run_repl(*, config: Config, name: str, timeout: float | None, work_dir: Path | None) -> int:
    """Read cells from the terminal until Ctrl+D; exit status 0, or 128 and the number of the signal that ended it.

    Raises:
        InvalidRequest: there is no terminal, or an option does not fit; nothing ran.
    """
    current = here()
    check_name(name)
    budget = TIMEOUT_SECONDS if timeout is None else seconds(timeout, "timeout")
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest("repl is for a person at a terminal: `kernelexec run -` runs cells that come from a pipe.")

    async def live() -> int:
        loop = _Loop(budget)
        with loop.listening():
            async with AsyncExecutor(config=config, approver=ask_at_terminal) as executor:
                await loop.run(await executor.session(name, work_dir=work_dir or current))
        return loop.status

    return anyio.run(live)


class _Loop:
    """One person's way through one session."""

    def __init__(self, timeout: float) -> None:
        self.status = 0
        self._timeout = timeout
        self._session: AsyncSession | None = None
        self._prompt: Prompt | None = None
        self._shower = Shower(as_json=False)
        self._epoch = 0
        self._echo = ""
        """What was typed for a cell, which its output repeats."""

    def listening(self) -> AbstractContextManager[None]:
        """Ctrl+C interrupts the cell that runs, gives typed lines up, or ends the start; every end goes through the loop."""
        return heard(self._on_signal)

    async def run(self, session: AsyncSession) -> None:
        """Read, run, show, until the person leaves."""
        self._session, count = session, 1
        prompt = self._prompt = Prompt(session)
        say("Ctrl+D leaves, Ctrl+C interrupts, Tab completes, F1 or Ctrl+O tells about a name")
        while True:
            if session.kernel_epoch != self._epoch:
                self._epoch = session.kernel_epoch
                self._tell_how_to_attach(session)
            try:
                code = await prompt.cell(count)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if code.strip() in _LEAVE:
                return
            if code.strip():
                count = await self._execute(session, code, count)

    async def _execute(self, session: AsyncSession, code: str, count: int) -> int:
        """Run a cell and show what becomes of it; the number of the next one."""
        try:
            call = partial(session.execute, timeout=self._timeout, on_output=self._heard, on_input=self._answer)
            result = await call(code)
        except Closed:
            raise
        except KernelexecError as exc:
            say(str(exc))
            return count
        self._shower.end_line()
        self._shower.result(result)
        self._tell_files(result)
        if result.state == "lost" and result.kernel_epoch == self._epoch:
            return 1  # the next kernel counts anew
        return (result.execution_count or count) + 1

    async def _answer(self, request: InputRequest) -> str | None:
        said = await answer_at_terminal(request)
        if said is not None and not request.password:
            self._shower.ended_by_typing()
            self._echo = f"{said}\n"
        return said

    def _heard(self, output: Output) -> None:
        """Show an output, but for what the person has just typed and sees already."""
        if self._echo and isinstance(output, Stream) and output.name == "stdout":
            echo, self._echo = self._echo, ""
            output = replace(output, text=output.text.removeprefix(echo))
        self._shower.output(output)

    def _tell_files(self, result: ExecutionResult) -> None:
        for file in result.files:
            if file.startswith(_SAVED):
                say(f"saved {file}")

    def _tell_how_to_attach(self, session: AsyncSession) -> None:
        if session.connection_file is not None:
            say(f"to attach from elsewhere: jupyter console --existing {session.connection_file}")

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        if signum == signal.SIGINT and self._session is not None and self._session.busy:
            say("interrupting the cell")
            self._session.request_interrupt()
        elif signum == signal.SIGINT and self._prompt is not None:
            self._prompt.give_up()
        else:
            self.status = SIGNAL_BASE + signum
            scope.cancel()
