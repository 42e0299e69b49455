"""The person at the terminal as the approver: sees what is to run, and says y or n."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

from kernelexec.policy.decisions import Approval, ApprovalRequest

_TERMINAL = "/dev/tty"
_LINE_BYTES = 4096
_YES = frozenset({"y", "yes"})


async def ask_at_terminal(request: ApprovalRequest, /) -> Approval:
    """See ``Approver``: it is asked at the terminal that the command was started from, whatever stdin and stdout are."""
    with ExitStack() as closing:
        try:
            fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return Approval(approved=False, reason="there is no terminal to ask at")
        closing.callback(os.close, fd)
        _say(fd, _question(request))
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
        said = (await answered).decode("utf-8", "replace").strip().lower()
    return Approval(said in _YES, "" if said in _YES else "the answer was no")


def _question(request: ApprovalRequest) -> str:
    what = "command" if request.proposal.kind == "command" else f"{request.proposal.language} cell"
    source = "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in request.proposal.source
    )
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
