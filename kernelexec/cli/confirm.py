"""Questions to the person at the terminal: approval of a cell, and the input that a cell asks for."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

from kernelexec.policy.decisions import Approval, ApprovalRequest
from kernelexec.provisioning.platform import unseen
from kernelexec.results import InputRequest

_TERMINAL = "/dev/tty"
_LINE_BYTES = 4096
_YES = frozenset({"y", "yes"})


async def confirm_at_terminal(request: ApprovalRequest, /) -> Approval:
    """Ask at the controlling terminal, whatever stdin and stdout are; see ``Approver``."""
    try:
        answer = await _line(_question(request))
    except OSError:
        return Approval(approved=False, reason="there is no terminal to ask at")
    yes = answer.strip().lower() in _YES
    return Approval(yes, "" if yes else "the answer was no")


async def answer_at_terminal(request: InputRequest, /) -> str | None:
    """Read a cell's input from the terminal, see ``OnInput``; the cell's output has the question. None at the end of input."""
    answer = await _line("", echo=not request.password)
    return answer.removesuffix("\n") if answer else None


async def _line(question: str, *, echo: bool = True) -> str:
    """Return a line from the terminal, with its newline; an empty text at the end of input.

    Raises:
        OSError: there is no terminal.
    """
    with ExitStack() as closing:
        fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        closing.callback(os.close, fd)
        if not echo:
            closing.enter_context(unseen(fd))
        _say(fd, question)
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
        return (await answered).decode("utf-8", "replace")


def _question(request: ApprovalRequest) -> str:
    what = "command" if request.proposal.kind == "command" else f"{request.proposal.language} cell"
    source = "".join(map(_shown, request.proposal.source))
    lines = "\n".join(f"    {line}" for line in source.split("\n"))
    return f"\n{' '.join(request.reasons)}\n{lines}\nRun this {what}? [y/N] "


def _say(fd: int, text: str) -> None:
    """Write all of it: a terminal takes a page at a time."""
    rest = text.encode("utf-8", "backslashreplace")
    os.set_blocking(fd, True)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.set_blocking(fd, False)


def _shown(char: str) -> str:
    """Escape a character that could hide the code from the person."""
    return char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}"
