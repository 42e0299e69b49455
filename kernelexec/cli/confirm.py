"""The person at the terminal: sees what is to run and says y or n, or answers what a cell asks."""

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
    """See ``Approver``: it is asked at the terminal that the command was started from, whatever stdin and stdout are."""
    try:
        said = await _line(_question(request))
    except OSError:
        return Approval(approved=False, reason="there is no terminal to ask at")
    yes = said.strip().lower() in _YES
    return Approval(yes, "" if yes else "the answer was no")


async def answer_at_terminal(request: InputRequest, /) -> str | None:
    """See ``OnInput``: the cell's output has the question already, and has the answer after it. None at the end of input."""
    said = await _line("", echo=not request.password)
    return said.removesuffix("\n") if said else None


async def _line(question: str, *, echo: bool = True) -> str:
    """What is typed at the terminal, with its newline; empty at the end of input.

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
                said = os.read(fd, _LINE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if not answered.done():
                answered.set_result(said)

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
    """Nothing that a terminal obeys: it could hide what is asked about."""
    return char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}"
