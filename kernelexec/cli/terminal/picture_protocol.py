"""The protocol by which a terminal shows pictures: by the names that terminals give themselves, or by the terminal's answer."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Literal

from kernelexec.cli.terminal.typed_input import TYPED_INPUT
from kernelexec.provisioning import platform

PictureProtocol = Literal["kitty", "iterm2", "sixel"]
PictureChoice = Literal["auto", "kitty", "iterm2", "sixel", "never"]

#: Terminals without pictures, some of which would show a question.
_PLAIN_TERMS = frozenset({"", "dumb", "unknown", "linux"})
#: Variables that ask for plain output, and of places where no terminal answers.
_PLAIN_VARIABLES = ("NO_COLOR", "CI", "INSIDE_EMACS")
#: The values of TERM that only terminals with the protocol have.
_TERMS: Mapping[str, PictureProtocol] = {"xterm-kitty": "kitty", "xterm-ghostty": "kitty"}
#: The values of TERM_PROGRAM. WezTerm and mintty show pictures of iTerm2's protocol on all systems.
_PROGRAMS: Mapping[str, PictureProtocol] = {
    "ghostty": "kitty",
    "iTerm.app": "iterm2",
    "WezTerm": "iterm2",
    "mintty": "iterm2",
}
#: Konsole shows pictures of kitty's protocol since version 22.04.
_KONSOLE = 220400
#: The attribute of terminals that show sixel graphics.
SIXEL = 4
_TERMINAL = "/dev/tty"
#: The question for device attributes (DA1 of ECMA-48), and its answer.
_QUESTION = b"\x1b[c"
_ANSWER = re.compile(rb"\x1b\[\?([\d;]{0,200})c")
_BEGUN_ANSWER = re.compile(rb"\x1b(?:\[(?:\?[\d;]*)?)?$")
#: How long an answer may take, in seconds: long connections need half of it, and a later answer would be taken for typed text.
_PATIENCE = 1.0
_READ_MAX = 4096


class PictureTerminal:
    """The terminal of stdout as a place for pictures. If its names do not say enough, it is asked for its attributes, once."""

    def __init__(self, choice: PictureChoice, environ: Mapping[str, str]) -> None:
        self._protocol: PictureProtocol | None = None
        self._must_ask = False
        if choice == "never" or not sys.stdout.isatty():
            return
        if choice != "auto":
            self._protocol = choice
        elif environ.get("TERM", "") not in _PLAIN_TERMS and not any(map(environ.get, _PLAIN_VARIABLES)):
            self._protocol = read_names(environ)
            self._must_ask = self._protocol is None

    @property
    def may_have_protocol(self) -> bool:
        """Whether a picture may be shown; nothing is asked."""
        return self._must_ask or self._protocol is not None

    def choose_protocol(self) -> PictureProtocol | None:
        """Return the protocol; None for none, or while the terminal cannot be asked. May block for a second, once."""
        if self._must_ask and (attributes := read_device_attributes()) is not None:
            self._must_ask = False
            self._protocol = "sixel" if SIXEL in attributes else None
        return self._protocol


def read_names(environ: Mapping[str, str]) -> PictureProtocol | None:
    """Return the protocol of a terminal that is known by its names; inside a multiplexer they are those of another terminal."""
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if any(map(environ.get, ("TMUX", "STY", "ZELLIJ"))) or term.startswith(("tmux", "screen")):
        return None
    if term in _TERMS or program:  # the other variables may be inherited from a terminal that started this one
        return _TERMS.get(term) or _PROGRAMS.get(program)
    if environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    version = environ.get("KONSOLE_VERSION", "")
    is_kitty = environ.get("KITTY_WINDOW_ID") or (version.isascii() and version.isdecimal() and int(version) >= _KONSOLE)
    return "kitty" if is_kitty else None


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
