"""Questions at the terminal: approval of a cell, and input for a cell."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

from kernelexec.cli.terminal.typed_input import TYPED_INPUT
from kernelexec.policy.decisions import Approval, ApprovalRequest
from kernelexec.provisioning.platform import hide_input
from kernelexec.results import InputRequest
from kernelexec.untrusted_text import escape_line

_TERMINAL = "/dev/tty"
_LINE_BYTES = 4096
_YES = frozenset({"y", "yes"})


async def confirm_at_terminal(request: ApprovalRequest, /) -> Approval:
    """Ask for approval at the controlling terminal, also if stdin and stdout are redirected; see ``Approver``."""
    try:
        answer = await _read_line(_question(request))
    except OSError:
        return Approval(approved=False, reason="there is no terminal to ask at")
    yes = answer.strip().lower() in _YES
    return Approval(yes, "" if yes else "the answer was no")


async def answer_at_terminal(request: InputRequest, /) -> str | None:
    """Read a cell's input from the terminal; see ``OnInput``. The cell's output contains the prompt. None at end of input."""
    answer = await _read_line("", echo=not request.password)
    return answer.removesuffix("\n") if answer else None


async def _read_line(question: str, *, echo: bool = True) -> str:
    """Read a line from the terminal, with its newline; empty at end of input.

    Raises:
        OSError: there is no terminal.
    """
    with ExitStack() as closing:
        fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        closing.callback(os.close, fd)
        if not echo:
            closing.enter_context(hide_input(fd))
        closing.enter_context(TYPED_INPUT.await_line())
        kept = TYPED_INPUT.take_line()
        _write(fd, question + (kept if echo else ""))
        if kept.endswith("\n"):
            return kept
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            try:
                line = os.read(fd, _LINE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                line = b""
            if not answered.done():
                answered.set_result(line)

        loop.add_reader(fd, read)
        closing.callback(loop.remove_reader, fd)
        return kept + (await answered).decode("utf-8", "replace")


def _question(request: ApprovalRequest) -> str:
    noun = "command" if request.proposal.kind == "command" else f"{request.proposal.language} cell"
    lines = "\n".join(f"    {escape_line(line)}" for line in request.proposal.source.expandtabs(4).split("\n"))
    reasons = " ".join(map(escape_line, request.reasons))
    return f"\n{reasons}\n{lines}\nRun this {noun}? [y/N] "


def _write(fd: int, text: str) -> None:
    """Write a whole text to a terminal, which accepts a page at a time."""
    remaining = text.encode("utf-8", "backslashreplace")
    os.set_blocking(fd, True)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]
    os.set_blocking(fd, False)
