"""The terminal: the filter of all text to the terminal, and all questions to the terminal and to the user.

``protect_terminal`` puts the filter before stdout and stderr, so nothing printed can bypass the filter: output of kernels,
names of files and sessions, errors, tracebacks, logs. Colours pass, and no other command of the text. A text in pieces has a
``TerminalFilter`` of its own before. The terminal is asked for its protocol of pictures, and keys typed meanwhile are kept for
the next prompt. The user is asked for approvals and inputs of cells.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from kernelexec.provisioning import platform
from kernelexec.text import BIDI_AND_TAGS, escape_char, escape_line

if TYPE_CHECKING:
    from kernelexec.results import InputRequest
    from kernelexec.rules.policy.decisions import Approval, ApprovalRequest

#: The sign of our notes on a terminal. In any other text it is shown as its code.
NOTE_SIGN = "\N{WHITE DIAMOND CONTAINING BLACK SMALL DIAMOND}"
#: Ends all colours and styles.
RESET = "\x1b[0m"
#: The longest sequence that may pass; a longer one is dropped, and so is the text of a command to the terminal.
_SEQUENCE_CHARS = 64
_ROWS_MAX = 1000
_CONTROL = "\x00-\x1f\x7f-\x9f"
#: A sequence, as far as it has come: CSI with parameters and a final character, a string without its end, or another escape
#: sequence. Else a single character that may not pass as it is. A control character ends each sequence, and counts by itself.
_TOKEN = re.compile(
    rf"(?P<begin>(?P<csi>\x1b\[|\x9b)(?P<parameters>[ -?]*)|(?P<string>\x1b[]P_^X]|[\x90\x98\x9d-\x9f])|\x1b[ -/]*)"
    rf"(?(string)[^{_CONTROL}]*|(?P<final>[^{_CONTROL}]?))"
    rf"|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{NOTE_SIGN}{BIDI_AND_TAGS}]"
)
_COLOURS = re.compile(r"[0-9;:]*")
#: The number of parameters that follow a colour's 38, 48 or 58 and its kind: a palette's index, or red, green and blue.
_COLOUR_WORDS = {"5": 1, "2": 3}
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
_LINE_BYTES = 4096
_YES = frozenset({"y", "yes"})
_TYPED_BYTES_MAX = 4096


class TerminalFilter:
    """A filter of a text in pieces: the result does not depend on the cuts.

    Colours and the erasure of a line pass, tab, newline, carriage return and backspace too. Moves to earlier lines pass with
    ``moves``, up to the first line of this text. Every other sequence is dropped: titles, clipboards, links, questions to the
    terminal, whole-screen commands. Other control characters and bidirectional controls are shown as codes.
    """

    def __init__(self, *, moves: bool = False) -> None:
        self.moves = moves
        self.is_styled = False
        """Whether the text has left a colour or style on."""
        self._begun = ""
        """The beginning of a sequence, as far as its end needs it: nothing of the text of a string."""
        self._rows = 0

    def feed(self, text: str) -> str:
        """Return the harmless part of the next piece."""
        text, self._begun, pieces, begin = self._begun + text, "", list[str](), 0
        for token in _TOKEN.finditer(text):
            plain, begin = text[begin : token.start()], token.end()
            self._count_rows(plain)
            pieces.append(plain)
            if token["begin"] is None:
                pieces.append(_show(token[0]))
            elif begin == len(text) and not token["final"]:
                # Of a string its opener is enough, whatever its length. Other sequences keep a character more than may pass,
                # so a sequence that is too long stays so.
                self._begun = (token["string"] or token[0])[: _SEQUENCE_CHARS + 1]
            elif token["csi"] and len(token[0]) <= _SEQUENCE_CHARS:
                pieces.append(self._pass(token["parameters"], token["final"]))
        self._count_rows(text[begin:])
        return "".join([*pieces, text[begin:]])

    def flush(self) -> None:
        """Forget an unfinished sequence, and the lines so far: other text follows."""
        self._begun, self.is_styled = "", False
        self.forget_rows()

    def forget_rows(self) -> None:
        """Let no move go above the present line: other text may be there."""
        self._rows = 0

    def _pass(self, parameters: str, final: str) -> str:
        match final:
            case "m" if _COLOURS.fullmatch(parameters) and not _conceals(parameters):
                self.is_styled = parameters.strip("0;") != ""
            case "K" if parameters in ("", "0", "1", "2"):
                pass
            case "A" | "F" if self.moves and ((parameters.isascii() and parameters.isdecimal()) or not parameters):
                rows = min(max(int(parameters[:9] or 1), 1), self._rows)
                self._rows -= rows
                return f"\x1b[{rows}{final}" if rows else "\r" * (final == "F")
            case _:
                return ""
        return f"\x1b[{parameters}{final}"

    def _count_rows(self, text: str) -> None:
        if self.moves:
            self._rows = min(self._rows + text.count("\n"), _ROWS_MAX)


def _show(char: str) -> str:
    """Return a special character of terminals: unchanged, as a code, or as nothing if the character could end a command."""
    if char in "\r\b":
        return char
    return "" if "\x7f" <= char <= "\x9f" or char in "\x07\x18\x1a" else escape_char(char)


def _conceals(parameters: str) -> bool:
    """Return whether a style makes text invisible: the parameters have an 8 outside of a colour."""
    words = parameters.split(";")
    index = 0
    while index < len(words):
        if words[index] in ("38", "48", "58"):
            index += 2 + _COLOUR_WORDS.get(words[index + 1] if index + 1 < len(words) else "", 0)
            continue
        if words[index].lstrip("0") == "8":
            return True
        index += 1
    return False


def neutralise(text: str) -> str:
    """Return the harmless part of a whole text."""
    return TerminalFilter().feed(text)


class TerminalStream:
    """A text stream to a terminal: all text is filtered, except by ``write_filtered``."""

    others = 0
    """The number of texts of others than a kernel that went to terminals, above which no move of a kernel may go."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a whole text, filtered."""
        TerminalStream.others += 1
        self.stream.write(neutralise(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, filtered."""
        for line in lines:
            self.write(line)

    def write_filtered(self, text: str) -> int:
        """Write a text from a ``TerminalFilter``, or of our own."""
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the stream
        return getattr(self.stream, name)


def protect_terminal() -> None:
    """Put the filter before stdout and stderr, where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, TerminalStream) and stream.isatty():
            setattr(sys, name, cast("TextIO", TerminalStream(stream)))


def inner_stream(stream: TextIO) -> TextIO:
    """Return the stream for our own text with cursor moves, such as a progress bar."""
    return stream.stream if isinstance(stream, TerminalStream) else stream


def format_remark(stream: TextIO, line: str) -> str:
    """Return a line of ours for ``write_filtered``, with our sign if the terminal's encoding has it.

    Further lines are indented, so no name in a message can begin another remark.
    """
    text = "\n    ".join(line.split("\n"))
    if not isinstance(stream, TerminalStream):
        return f"kernelexec: {text}\n"
    TerminalStream.others += 1
    try:
        NOTE_SIGN.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return f"kernelexec: {neutralise(text)}\n"
    return f"{NOTE_SIGN} kernelexec: {neutralise(text)}\n"


class PictureTerminal:
    """The terminal of stdout as a place for pictures. A terminal with an unknown name is asked for its attributes, once."""

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
    """Return the protocol of a terminal known by name; in a multiplexer None, since the names are of another terminal."""
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
    """Return the attributes of the terminal of stdout; no attributes without an answer, or if not the controlling terminal.

    None if no question is possible at present: this process is in the background, or typed input is there or awaited.
    """
    try:  # in the background, a change of the terminal's modes would stop this process (SIGTTOU)
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
        byte = os.read(fd, 1)  # keys after the answer stay in the terminal's queue
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


async def confirm_at_terminal(request: ApprovalRequest, /) -> Approval:
    """Ask for approval at the controlling terminal, also if stdin and stdout are redirected; see ``Approver``."""
    from kernelexec.rules.policy.decisions import Approval  # here, since every command imports this module

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
    """Read a line from the terminal, with the newline; empty at end of input.

    Raises:
        OSError: there is no terminal.
    """
    with ExitStack() as closing:
        # An open file of our own: stdin is shared with the shell, which must not find it non-blocking.
        fd = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        closing.callback(os.close, fd)
        if not echo:
            closing.enter_context(platform.hide_input(fd))
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
    # Nothing in the code may move the cursor: it could show other code than that which runs.
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


class TypedInput:
    """The text read along with an answer of the terminal, and whether another reader waits for input now."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._kept = b""

    @contextmanager
    def await_line(self) -> Iterator[None]:
        """Let the terminal be asked nothing while the block reads typed input."""
        self.is_awaited = True
        try:
            yield
        finally:
            self.is_awaited = False

    def keep(self, raw: bytes) -> None:
        """Keep typed bytes, up to a page of them."""
        self._kept = (self._kept + raw)[:_TYPED_BYTES_MAX]

    def take(self) -> str:
        """Return the kept text once, with newlines, without other control characters."""
        text, self._kept = self._kept.decode("utf-8", "replace").replace("\r", "\n"), b""
        return "".join(char for char in text if char.isprintable() or char == "\n")

    def take_line(self) -> str:
        """Return the first kept line with the newline, or without a newline all of the text. The rest stays."""
        line, newline, rest = self.take().partition("\n")
        self.keep(rest.encode())
        return line + newline


#: Of the one terminal that a process has.
TYPED_INPUT = TypedInput()
