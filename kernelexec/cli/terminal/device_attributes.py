"""The question to a terminal for its device attributes (DA1 of ECMA-48): no typed key is lost, and the wait is bounded."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from contextlib import ExitStack, suppress

from kernelexec.cli.terminal.typed_input import TYPED_INPUT
from kernelexec.provisioning import platform

#: The attribute of terminals that show sixel graphics.
SIXEL = 4
_TERMINAL = "/dev/tty"
_QUESTION = b"\x1b[c"
_ANSWER = re.compile(rb"\x1b\[\?([\d;]{0,200})c")
_BEGUN_ANSWER = re.compile(rb"\x1b(?:\[(?:\?[\d;]*)?)?$")
#: How long an answer may take, in seconds: long connections need half of it, and a later answer would be taken for typed text.
_PATIENCE = 1.0
_READ_MAX = 4096


def read_device_attributes() -> frozenset[int] | None:
    """Return the attributes of the terminal of stdout; no attributes if it is not the controlling one, or does not answer.

    None if it cannot be asked at present: this process is in the background, typed input is there or is awaited.
    """
    try:
        if os.tcgetpgrp(sys.stdout.fileno()) != os.getpgrp() or TYPED_INPUT.is_awaited:
            return None
        with ExitStack() as closing:
            fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            closing.callback(os.close, fd)
            if not closing.enter_context(platform.read_keys(fd)):  # a prompt reads them so already
                return None
            return None if _is_readable(fd, 0.0) else _ask(fd)
    except (OSError, ValueError):  # of a terminal that is going away, too
        return frozenset()


def _ask(fd: int) -> frozenset[int]:
    """Return the attributes in the answer; keep what was typed meanwhile. Nothing after the answer is read."""
    os.write(fd, _QUESTION)
    deadline, received = time.monotonic() + _PATIENCE, b""
    while len(received) < _READ_MAX and _is_readable(fd, deadline - time.monotonic()):
        byte = os.read(fd, 1)
        if not byte:
            break
        received += byte
        if byte == b"c" and (answer := _ANSWER.search(received)):
            TYPED_INPUT.keep(received[: answer.start()])
            return frozenset(int(number) for number in answer[1].split(b";") if number)
    TYPED_INPUT.keep(_BEGUN_ANSWER.sub(b"", received))
    return frozenset()


def _is_readable(fd: int, patience: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    with suppress(InterruptedError):
        return bool(poll.poll(max(patience, 0.0) * 1000))
    return False
