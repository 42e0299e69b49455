"""The interactive prompt: it reads a cell, runs it and shows its output, in one session that keeps its state."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kernelexec.cli.confirm import answer_at_terminal, confirm_at_terminal
from kernelexec.cli.console import ConsoleOutput
from kernelexec.cli.stdio import SIGNAL_BASE, eprint, heard, here, write_any
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
            async with AsyncExecutor(config=config, approver=confirm_at_terminal) as executor:
                await loop.run(await executor.session(name, work_dir=work_dir or current))
        return loop.status

    return anyio.run(live)


class _Loop:
    """The loop of the prompt over one session."""

    def __init__(self, timeout: float) -> None:
        self.status = 0
        self._timeout = timeout
        self._session: AsyncSession | None = None
        self._prompt: Prompt | None = None
        self._console = ConsoleOutput(as_json=False)
        self._epoch = 0
        self._echo = ""
        """What was typed for a cell, which its output repeats."""

    def listening(self) -> AbstractContextManager[None]:
        """Handle signals: Ctrl+C interrupts the running cell, clears typed lines, or ends the start."""
        return heard(self._on_signal)

    async def run(self, session: AsyncSession) -> None:
        """Read, run, show, until the person leaves."""
        self._session, count = session, 1
        prompt = self._prompt = Prompt(session)
        eprint("Ctrl+D leaves, Ctrl+C interrupts, Tab completes, F1 or Ctrl+O tells about a name")
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
            eprint(str(exc))
            return count
        self._console.end_line()
        self._console.result(result)
        self._tell_files(result)
        if result.state == "lost" and result.kernel_epoch == self._epoch:
            return 1  # the next kernel counts anew
        return (result.execution_count or count) + 1

    async def _answer(self, request: InputRequest) -> str | None:
        answer = await answer_at_terminal(request)
        if answer is not None and not request.password:
            self._console.ended_by_typing()
            self._echo = f"{answer}\n"
        return answer

    def _heard(self, output: Output) -> None:
        """Show an output, but for what the person has just typed and sees already."""
        if self._echo and isinstance(output, Stream) and output.name == "stdout":
            echo, self._echo = self._echo, ""
            output = replace(output, text=output.text.removeprefix(echo))
        self._console.output(output)

    def _tell_files(self, result: ExecutionResult) -> None:
        for file in result.files:
            if file.startswith(_SAVED):
                eprint(f"saved {file}")

    def _tell_how_to_attach(self, session: AsyncSession) -> None:
        if session.connection_file is not None:
            eprint(f"to attach from elsewhere: jupyter console --existing {session.connection_file}")

    def _on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        if signum == signal.SIGINT and self._session is not None and self._session.busy:
            eprint("interrupting the cell")
            self._session.request_interrupt()
        elif signum == signal.SIGINT and self._prompt is not None:
            self._prompt.give_up()
        else:
            self.status = SIGNAL_BASE + signum
            scope.cancel()


#: How long the kernel is waited for at a key, in seconds.
_KEY_SECONDS = 2.0
_INDENT = "    "


class Prompt:
    """The prompt on the terminal. Its history is kept in memory only."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._given_up = False
        self._prompt: PromptSession[str] = PromptSession(
            history=InMemoryHistory(),
            completer=_KernelCompleter(session),
            complete_while_typing=False,
            key_bindings=_keys(session),
            multiline=True,
            erase_when_done=True,
            prompt_continuation=lambda width, _line, _wraps: "...: ".rjust(width),
        )

    async def cell(self, count: int) -> str:
        """Read a cell until the kernel says that it is complete, or does not answer; it stays on the screen.

        Raises:
            KeyboardInterrupt: the lines were cleared.
            EOFError: the person leaves.
        """
        lead, text, self._given_up = f"In [{count}]: ", "", False
        while True:
            text = await self._prompt.prompt_async(lead, default=text, handle_sigint=False)
            indent = await self._missing(text)
            if self._given_up:
                raise KeyboardInterrupt
            if indent is None:
                shown = text.replace("\n", "\n" + "...: ".rjust(len(lead)))
                write_any(sys.stdout, f"{lead}{shown}\n")
                return text
            text = f"{text}\n{indent}"

    def give_up(self) -> None:
        """Clear the typed lines after an interrupt that came as a signal."""
        app = self._prompt.app
        if app.future is not None and not app.future.done():
            app.exit(exception=KeyboardInterrupt)
        self._given_up = True

    async def _missing(self, text: str) -> str | None:
        """Return the indentation of the line that is missing; None if the code can be run."""
        try:
            status, indent = await self._session.is_complete(text, wait=_KEY_SECONDS)
        except KernelexecError:
            return None
        return indent if status == "incomplete" else None


class _KernelCompleter(Completer):
    """Completions by the kernel, without blocking the prompt."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def get_completions(self, _document: Document, _complete_event: CompleteEvent) -> list[Completion]:
        """Return nothing: only the kernel can complete, see below."""
        return []

    async def get_completions_async(
        self, document: Document, _complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the kernel's completions at the cursor; nothing if it does not answer."""
        try:
            completions = await self._session.complete(document.text, document.cursor_position, wait=_KEY_SECONDS)
        except KernelexecError:
            return
        for match in completions.matches:
            yield Completion(match, start_position=completions.start - document.cursor_position)


def _keys(session: AsyncSession) -> KeyBindings:
    """Bind the keys: Enter ends a cell or a line in it, Alt+Enter a line; Tab indents or completes; F1 and Ctrl+O inspect."""
    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")
    def _enter(event: KeyPressEvent) -> None:
        buffer: Buffer = event.current_buffer
        if buffer.document.on_last_line:
            buffer.validate_and_handle()
        else:
            buffer.newline()

    @keys.add("escape", "enter")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    @Condition
    def at_indent() -> bool:
        buffer: Buffer = get_app().current_buffer
        return not buffer.document.current_line_before_cursor.strip()

    @keys.add("tab", filter=at_indent)
    def _indent(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(_INDENT)

    @keys.add("f1")
    @keys.add("c-o")
    async def _inspect(event: KeyPressEvent) -> None:
        document: Document = event.current_buffer.document
        try:
            text = await session.inspect(document.text, document.cursor_position, wait=_KEY_SECONDS)
        except KernelexecError as exc:
            text = str(exc)
        shown = text or "Nothing is known of what is at the cursor."
        await run_in_terminal(lambda: write_any(sys.stdout, shown.rstrip("\n") + "\n"))

    return keys
