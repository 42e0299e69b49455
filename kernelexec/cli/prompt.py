"""The line that a person edits: keys, history, completion and inspection by the kernel, and lines until the code is whole."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from kernelexec.cli.surroundings import write_any
from kernelexec.errors import KernelexecError
from kernelexec.session import AsyncSession

#: How long the kernel is waited for at a key, in seconds.
_KEY_SECONDS = 2.0
_INDENT = "    "


class Prompt:
    """Reads cells from a terminal. What was typed is remembered while the loop lives, and written nowhere."""

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
        """The next cell, whole as the kernel sees it, or as it is where the kernel does not answer; it stays on the screen.

        Raises:
            KeyboardInterrupt: the lines were given up.
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
        """Take an interrupt that came as a signal: as one by the key, it gives up the lines, whatever is done with them now."""
        app = self._prompt.app
        if app.future is not None and not app.future.done():
            app.exit(exception=KeyboardInterrupt)
        self._given_up = True

    async def _missing(self, text: str) -> str | None:
        """The indentation of the line that is still missing; None where the code can be run."""
        try:
            status, indent = await self._session.is_complete(text, wait=_KEY_SECONDS)
        except KernelexecError:
            return None
        return indent if status == "incomplete" else None


class _KernelCompleter(Completer):
    """Asks the kernel, and keeps nobody from typing meanwhile."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def get_completions(self, _document: Document, _complete_event: CompleteEvent) -> list[Completion]:
        """Nothing can be had without waiting."""
        return []

    async def get_completions_async(
        self, document: Document, _complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """What the kernel would put at the cursor; nothing where it does not answer."""
        try:
            found = await self._session.complete(document.text, document.cursor_position, wait=_KEY_SECONDS)
        except KernelexecError:
            return
        for match in found.matches:
            yield Completion(match, start_position=found.start - document.cursor_position)


def _keys(session: AsyncSession) -> KeyBindings:
    """Enter ends a cell, or a line within it; Alt+Enter a line always; Tab indents or completes; F1 and Ctrl+O inspect."""
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
        told = text or "Nothing is known of what is at the cursor."
        await run_in_terminal(lambda: write_any(sys.stdout, told.rstrip("\n") + "\n"))

    return keys
