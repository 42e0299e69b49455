"""The protocol by which a terminal shows pictures: by the names that terminals give themselves, or by the terminal's answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal

from kernelexec.cli.terminal.device_attributes import SIXEL, read_device_attributes

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
