"""The interactive prompt, which reads cells, runs them and shows their output, in a session with a lasting state."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kernelexec.cli.console import ConsoleOutput
from kernelexec.cli.options import without_idle_fork_server
from kernelexec.cli.stdio import SIGNAL_BASE, current_directory, eprint, handle_signals, write_text
from kernelexec.cli.terminal import TYPED_INPUT, PictureChoice, answer_at_terminal, confirm_at_terminal
from kernelexec.config import Config, check_seconds
from kernelexec.errors import Closed, InvalidRequest, KernelexecError
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.results import InputRequest, Output, Stream
from kernelexec.session import AsyncSession
from kernelexec.text import escape_line
from kernelexec.workspace.directory import check_name

#: The default timeout of a cell, in seconds: a week, because the user can interrupt it.
TIMEOUT_SECONDS = 7 * 24 * 3600.0
_UNDO = re.compile(r":undo(?:\s+(?P<cells>[0-9]{1,4}))?", re.ASCII)
_LEAVE = frozenset({"exit", "quit", "exit()", "quit()"})


def run_repl(
    *, config: Config, name: str, timeout: float | None, work_dir: Path | None, pictures: PictureChoice = "never"
) -> int:
    """Run cells from the terminal until Ctrl+D; return exit status 0, or after a signal 128 plus the signal's number.

    Raises:
        InvalidRequest: there is no terminal, or an option is invalid; nothing ran.
    """
    current = current_directory()
    check_name(name)
    budget = TIMEOUT_SECONDS if timeout is None else check_seconds(timeout, "timeout")
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequest("repl needs a terminal: use `kernelexec run -` for cells from a pipe.")

    async def live() -> int:
        loop = ReplLoop(budget, pictures)
        with handle_signals(loop.on_signal):
            directory = work_dir or current
            fit = without_idle_fork_server(config, directory)
            async with AsyncExecutor(config=fit, approver=confirm_at_terminal) as executor:
                await loop.run(await executor.session(name, work_dir=directory))
        return loop.status

    return anyio.run(live)


class ReplLoop:
    """The loop of the prompt over a session."""

    def __init__(self, timeout: float, pictures: PictureChoice = "never") -> None:
        self.status = 0
        self._timeout = timeout
        self._session: AsyncSession | None = None
        self._prompt: Prompt | None = None
        self._console = ConsoleOutput(as_json=False, pictures=pictures)
        self._epoch = 0
        self._echo = ""
        """Typed input of a cell, which its output repeats."""

    async def run(self, session: AsyncSession) -> None:
        """Read, run and print cells until the user leaves."""
        self._session, count = session, 1
        prompt = self._prompt = Prompt(session)
        eprint("Ctrl+D leaves, Ctrl+C interrupts, Tab completes, F1 or Ctrl+O describes a name, :undo takes back the last cell")
        while True:
            if session.kernel_epoch != self._epoch:
                self._epoch = session.kernel_epoch
                if session.connection_file is not None:
                    eprint(f"to attach from elsewhere: jupyter console --existing {session.connection_file}")
            try:
                code = await prompt.read_cell(count)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if code.strip() in _LEAVE:
                return
            if undo := _UNDO.fullmatch(code.strip()):
                count = await self._undo(session, int(undo["cells"] or 1), count)
            elif code.strip():
                count = await self._execute(session, code, count)

    async def _execute(self, session: AsyncSession, code: str, count: int) -> int:
        """Run a cell, print the result, and return the number of the next cell."""
        try:
            result = await session.execute(code, timeout=self._timeout, on_output=self._show_output, on_input=self._answer)
        except Closed:
            raise
        except KernelexecError as exc:
            eprint(str(exc))
            return count
        self._console.end_line()
        self._console.show_result(result)
        for file in result.files:
            if file.startswith("outputs/"):
                eprint(f"saved {file}")
        if result.state == "lost" and result.kernel_epoch == self._epoch:
            return 1  # the next kernel starts at 1
        if result.state == "restored":
            return count  # the next kernel is a copy from before this cell
        return (result.execution_count or count) + 1

    async def _undo(self, session: AsyncSession, cells: int, count: int) -> int:
        """Go back to the state before the last cells, and return the number of the next cell."""
        try:
            restored = await session.undo(cells)
        except Closed:
            raise
        except KernelexecError as exc:
            eprint(str(exc))
            return count
        self._epoch = session.kernel_epoch  # the connection file is the same
        eprint(escape_line(restored.text))
        return count - (restored.cells or 0)

    async def _answer(self, request: InputRequest) -> str | None:
        answer = await answer_at_terminal(request)
        if answer is not None and not request.password:
            self._console.note_typed_newline()
            self._echo = f"{answer}\n"
        return answer

    def _show_output(self, output: Output) -> None:
        """Show an output without the echo of typed input."""
        if self._echo and isinstance(output, Stream) and output.name == "stdout":
            echo, self._echo = self._echo, ""
            output = replace(output, text=output.text.removeprefix(echo))
        self._console.show_output(output)

    def on_signal(self, signum: signal.Signals, scope: anyio.CancelScope) -> None:
        """Handle a signal: Ctrl+C interrupts the running cell, clears typed lines, or ends the start."""
        if signum == signal.SIGINT and self._session is not None and self._session.busy:
            eprint("interrupting the cell")
            self._session.request_interrupt()
        elif signum == signal.SIGINT and self._prompt is not None:
            self._prompt.cancel()
        else:
            self.status = SIGNAL_BASE + signum
            scope.cancel()


#: How long to wait for the kernel after a key, in seconds.
_KEY_SECONDS = 2.0
_INDENT = "    "


class Prompt:
    """The prompt on the terminal."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._was_cancelled = False
        self._prompt: PromptSession[str] = PromptSession(
            history=_open_history(),
            completer=_KernelCompleter(session),
            complete_while_typing=False,
            key_bindings=_key_bindings(session),
            multiline=True,
            erase_when_done=True,
            prompt_continuation=lambda width, _line, _wraps: "...: ".rjust(width),
        )

    async def read_cell(self, count: int) -> str:
        """Read lines until the kernel reports a complete cell, or does not answer. The cell stays on the screen.

        Raises:
            KeyboardInterrupt: the lines were cleared.
            EOFError: the user leaves.
        """
        lead, text, self._was_cancelled = f"In [{count}]: ", TYPED_INPUT.take().rstrip("\n"), False
        while True:
            text = await self._prompt.prompt_async(lead, default=text, handle_sigint=False)
            indent = await self._missing_indent(text)
            if self._was_cancelled:  # meanwhile, when there was no prompt to end
                raise KeyboardInterrupt
            if indent is None:
                shown = text.replace("\n", "\n" + "...: ".rjust(len(lead)))
                write_text(sys.stdout, f"{lead}{shown}\n")
                return text
            text = f"{text}\n{indent}"

    def cancel(self) -> None:
        """Clear the typed lines after an interrupt by a signal."""
        app = self._prompt.app
        if app.future is not None and not app.future.done():
            app.exit(exception=KeyboardInterrupt)
        self._was_cancelled = True

    async def _missing_indent(self, text: str) -> str | None:
        """Return the indentation of the next line; None if the cell is complete."""
        try:
            status, indent = await self._session.is_complete(text, wait=_KEY_SECONDS)
        except KernelexecError:
            return None
        return indent if status == "incomplete" else None


class _PrivateHistory(FileHistory):
    """Typed cells of all prompts, in a file of this user only; cells of a failed write are kept in memory."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _open_history() -> History:
    """Return the history in the user's directory for state, or a history in memory if that fails."""
    base = os.environ.get("XDG_STATE_HOME", "")
    path = (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "kernelexec" / "history"  # noqa: PTH117 - text
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return _PrivateHistory(str(path))


class _KernelCompleter(Completer):
    """Completions by the kernel, without blocking the prompt."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def get_completions(self, _document: Document, _complete_event: CompleteEvent) -> list[Completion]:
        """Return nothing, because completion is asynchronous; see below."""
        return []

    async def get_completions_async(
        self, document: Document, _complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the kernel's completions at the cursor; nothing without an answer."""
        try:
            completions = await self._session.complete(document.text, document.cursor_position, wait=_KEY_SECONDS)
        except KernelexecError:
            return
        for match in filter(str.isprintable, completions.matches):  # others could drive the terminal
            yield Completion(match, start_position=completions.start - document.cursor_position)


def _key_bindings(session: AsyncSession) -> KeyBindings:
    """Bind the keys: Enter on the last line ends the cell, and elsewhere begins a line; Alt+Enter always begins a line.

    Tab indents or completes. F1 and Ctrl+O describe the name at the cursor.
    """
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
        shown = text or "No information about the name at the cursor."
        await run_in_terminal(lambda: write_text(sys.stdout, shown.rstrip("\n") + "\n"))

    return keys
