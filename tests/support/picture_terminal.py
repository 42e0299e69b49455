"""A terminal that can show pictures, as programs see it: its size in pixels, its answers, and the pictures that it is sent."""

from __future__ import annotations

import base64
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import PIL.Image

from tests.support.command_line import BOUND, COMMAND, environment

QUESTION = b"\x1b[c"
SIXEL_ANSWER = b"\x1b[?62;4;22c"
#: Variables that would name a terminal, or forbid pictures, if the tests themselves run in such a place.
NAMES = (
    *("NO_COLOR", "CI", "INSIDE_EMACS", "TMUX", "STY", "ZELLIJ", "TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID"),
    *("KONSOLE_VERSION", "KERNELEXEC_PICTURES"),
)
_KITTY = re.compile(rb"\x1b_G([^;\x1b]*);([A-Za-z0-9+/=]*)\x1b\\")
_ITERM2 = re.compile(rb"\x1b\]1337;File=([^:\x07]*):([A-Za-z0-9+/=]*)\x07")
_SIXEL = re.compile(rb"\x1bP0;1;0q([!-~]*)\x1b\\")


@dataclass(frozen=True)
class Drawn:
    """A picture that came to the terminal: its content, the keys of its sequence, and the size of each piece."""

    content: bytes
    keys: dict[str, str]
    pieces: tuple[int, ...] = ()

    @property
    def image(self) -> PIL.Image.Image:
        return PIL.Image.open(io.BytesIO(self.content)).convert("RGBA")


def read_kitty(raw: bytes) -> list[Drawn]:
    """The pictures of kitty's protocol, put together from their pieces."""
    pictures, pieces, keys = list[Drawn](), list[bytes](), dict[str, str]()
    for match in _KITTY.finditer(raw):
        of_piece = dict(key.split("=") for key in match[1].decode().split(","))
        keys = keys or of_piece
        assert of_piece["q"] == "2"
        pieces.append(match[2])
        if of_piece["m"] == "0":
            pictures.append(Drawn(base64.b64decode(b"".join(pieces), validate=True), keys, tuple(map(len, pieces))))
            pieces, keys = [], {}
    assert not pieces
    return pictures


def read_iterm2(raw: bytes) -> list[Drawn]:
    """The files of iTerm2's protocol."""
    return [
        Drawn(base64.b64decode(match[2], validate=True), dict(key.split("=") for key in match[1].decode().split(";")))
        for match in _ITERM2.finditer(raw)
    ]


def read_sixels(raw: bytes) -> list[PIL.Image.Image]:
    """The sixel pictures, decoded; pixels that are never set are transparent."""
    return [_decode_sixels(match[1].decode()) for match in _SIXEL.finditer(raw)]


def _decode_sixels(body: str) -> PIL.Image.Image:
    width, height = map(int, re.findall(r'^"1;1;(\d+);(\d+)', body)[0])
    picture = PIL.Image.new("RGBA", (width, height))
    colours, colour, x, top = dict[int, tuple[int, int, int]](), 0, 0, 0
    for define, select_, count, sixel, control in re.findall(
        r"#(\d+;2;\d+;\d+;\d+)|#(\d+)|(?:!(\d+))?([?-~])|([$-])", body[body.index("#") :] if "#" in body else ""
    ):
        if define:
            number, _, *channels = map(int, define.split(";"))
            colours[number] = tuple(round(channel * 2.55) for channel in channels)  # type: ignore[assignment]
        elif select_:
            colour = int(select_)
        elif control:
            x, top = 0, top + 6 * (control == "-")
        else:
            end = x + int(count or 1)
            for bit in range(6):
                if (ord(sixel) - 63) >> bit & 1:
                    picture.paste((*colours[colour], 255), (x, top + bit, end, top + bit + 1))
            x = end
    return picture


def without_pictures(raw: bytes) -> bytes:
    """What came to the terminal in addition to pictures."""
    for pattern in (_KITTY, _ITERM2, _SIXEL):
        raw = pattern.sub(b"", raw)
    return raw


def show(
    cwd: Path,
    *words: str,
    size: tuple[int, int, int, int] = (50, 100, 1000, 1000),
    answer: bytes | None = None,
    typed: bytes = b"",
    after: str = "",
    owns: bool = True,
    **env: str,
) -> bytes:
    """What a command writes to a terminal of its own, which ``answer``s the question for its attributes.

    ``size`` is that of TIOCGWINSZ: rows, columns, width, height. ``typed`` is there before the command begins; the lines of
    shell ``after`` run when it has ended.
    """
    fd, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", *size))
    variables = {name: text for name, text in environment().items() if name not in NAMES}
    process = subprocess.Popen(
        ["sh", "-c", f'"$@"\n{after}', "sh", COMMAND, *words], cwd=cwd, env=variables | {"TERM": "xterm-256color"} | env,
        stdin=side, stdout=side, stderr=side, start_new_session=True,
        preexec_fn=_take_terminal if owns else None,  # noqa: PLW1509 - one thread, and only a terminal is taken
    )  # fmt: skip
    os.close(side)
    try:
        os.write(fd, typed)
        return _read_all(fd, answer)
    finally:
        process.wait(BOUND)
        os.close(fd)


def _read_all(fd: int, answer: bytes | None) -> bytes:
    raw, deadline = b"", time.monotonic() + BOUND
    try:
        while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (chunk := os.read(fd, 65536)):
                break
            asked = QUESTION in raw
            raw += chunk
            if answer is not None and not asked and QUESTION in raw:
                os.write(fd, answer)
    except OSError:  # the other side is closed
        pass
    return raw


def _take_terminal() -> None:
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def make_png(width: int, height: int, colours: Sequence[str] = ("red", "blue")) -> bytes:
    """A picture with a column of each colour."""
    picture, file = PIL.Image.new("RGB", (width, height)), io.BytesIO()
    for number, colour in enumerate(colours):
        part = (width * number // len(colours), 0, width * (number + 1) // len(colours), height)
        picture.paste(colour, part)
    picture.save(file, "PNG")
    return file.getvalue()


def display_cell(content: bytes, mime: str = "image/png") -> str:
    """A cell that displays content under a media type, and prints before and after."""
    bundle = {mime: base64.b64encode(content).decode(), "text/plain": "<the picture>"}
    return f"print('before')\ndisplay({bundle!r}, raw=True)\nprint('after')"
