"""Pictures of cells as sequences for the terminal: bounded in size and number, and of nothing but base64 or sixels of ours.

The content comes from kernels, which are not trusted: its kind and its size are read from its header before anything else.
"""

from __future__ import annotations

import base64
import math
import os
import sys
import warnings
from dataclasses import dataclass
from io import BytesIO

from kernelexec.cli.terminal.picture_protocol import PictureChoice, PictureProtocol, PictureTerminal
from kernelexec.cli.terminal.sixel import encode_sixels
from kernelexec.provisioning import platform
from kernelexec.results import DisplayData, ExecuteResult, Image, Output, best_image
from kernelexec.results.media.decoding import DECODED_PIXELS, decode_picture, is_whole_png

#: What a cell may show: the pixels of its pictures together, and their sequences in characters.
_CELL_PIXELS, _CELL_CHARS = DECODED_PIXELS, 16 * 1024 * 1024
#: A picture that is sent as it is; kitty takes no longer side. Larger ones are made smaller first.
_SENT_BYTES, _SENT_SIDE = 2 * 1024 * 1024, 10_000
#: The sides of a picture that was made smaller, and of sixels: xterm shows no more.
_SMALLER_SIDE, _SIXEL_SIDE = 2000, 1000
#: The base64 characters of a piece in kitty's protocol.
_PIECE_CHARS = 4096
#: A picture is no higher than this part of the terminal.
_HEIGHT_PART = 2 / 3
#: Where the terminal does not say its size: columns and rows, and the pixels of a character, which are rather too few.
_DEFAULT_SIZE, _DEFAULT_CHARACTER = (80, 24), (8, 16)
_JPEG_ENDS = b"\xff\xd8", b"\xff\xd9"


@dataclass(frozen=True, slots=True)
class PictureArea:
    """The part of the terminal that a picture may cover, in characters, and the size of a character in pixels."""

    columns: int
    rows: int
    character: tuple[int, int]
    is_measured: bool
    """Whether the terminal reports its size in pixels."""

    @classmethod
    def read(cls) -> PictureArea:
        """Return the area in the terminal of stdout as large as it is now."""
        rows, columns, width, height = platform.read_terminal_size(sys.stdout)
        columns, rows = (columns, rows) if columns and rows else _DEFAULT_SIZE
        character = (width // columns, height // rows)
        is_measured = all(character)
        return cls(columns, max(int(rows * _HEIGHT_PART), 1), character if is_measured else _DEFAULT_CHARACTER, is_measured)

    @property
    def pixels(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.columns * self.character[0], self.rows * self.character[1]

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and rows of a picture, which is made smaller if it does not fit, and never larger."""
        scale = min(1.0, self.pixels[0] / width, self.pixels[1] / height)
        columns = math.ceil(round(width * scale / self.character[0], 6))
        return min(columns, self.columns), min(math.ceil(round(height * scale / self.character[1], 6)), self.rows)


class TerminalPictures:
    """The pictures of cells for the terminal of stdout; none if it is no terminal, or shows none."""

    def __init__(self, choice: PictureChoice) -> None:
        self._terminal = PictureTerminal(choice, os.environ)
        self._begin_cell()

    def draw(self, output: Output) -> str:
        """Return the sequence that shows an output's picture, without control characters of the kernel; empty for none."""
        if not self._terminal.may_have_protocol or not isinstance(output, DisplayData | ExecuteResult):
            return ""
        image = best_image(output)
        if image is None or (size := image.size) is None or (protocol := self._terminal.choose_protocol()) is None:
            return ""
        pixels = size[0] * size[1]
        is_affordable = pixels <= self._pixels and self._chars > 0
        self._pixels -= pixels if is_affordable else 0  # damaged pictures count too: they may take as long
        with warnings.catch_warnings(action="ignore"):  # the decoder's, about damaged metadata
            sequence = encode_picture(image, protocol, PictureArea.read()) if is_affordable else ""
        if sequence is None:
            return ""
        if not sequence or len(sequence) > self._chars:
            self._omitted += 1
            return ""
        self._chars -= len(sequence)
        return sequence

    def end_cell(self) -> int:
        """Return how many pictures of the cell were too large or too many; the next cell begins."""
        omitted = self._omitted
        self._begin_cell()
        return omitted

    def _begin_cell(self) -> None:
        self._pixels, self._chars, self._omitted = _CELL_PIXELS, _CELL_CHARS, 0


def encode_picture(image: Image, protocol: PictureProtocol, area: PictureArea) -> str | None:
    """Return the sequence that shows a picture at the cursor; None for a damaged one, or of more than ``DECODED_PIXELS``."""
    if (size := image.size) is None or size[0] * size[1] > DECODED_PIXELS:
        return None
    if protocol == "sixel":
        sides = [min(side, _SIXEL_SIDE) for side in area.pixels]
        decoded = decode_picture(image, *sides)
        return None if decoded is None else encode_sixels(decoded[0])
    content = image.content if _can_be_sent(image.content, size, protocol) else _make_smaller_png(image, area)
    if content is None:
        return None
    columns, rows = area.fit(*size)
    if protocol == "iterm2":
        return _encode_iterm2(content, columns, rows)
    is_natural = area.is_measured and size[0] <= area.pixels[0] and size[1] <= area.pixels[1]
    return _encode_kitty(content, "" if is_natural else f",c={columns},r={rows}")


def _can_be_sent(content: bytes, size: tuple[int, int], protocol: PictureProtocol) -> bool:
    """Return whether a terminal takes a picture as it is: of a kind that it decodes, complete, and not too large."""
    if len(content) > _SENT_BYTES or max(size) > _SENT_SIDE:
        return False
    is_jpeg = content.startswith(_JPEG_ENDS[0]) and content.endswith(_JPEG_ENDS[1])
    return (protocol == "iterm2" and is_jpeg) or is_whole_png(content)


def _make_smaller_png(image: Image, area: PictureArea) -> bytes | None:
    """Return a picture as a PNG of the size in which it is shown; None for a damaged one."""
    decoded = decode_picture(image, *(min(side, _SMALLER_SIDE) for side in area.pixels))
    if decoded is None:
        return None
    written = BytesIO()
    decoded[0].save(written, "PNG")
    return written.getvalue()


def _encode_kitty(png: bytes, placement: str) -> str:
    """Return a PNG in pieces of base64; q=2 asks for no answer, which would be taken for typed text."""
    text = base64.b64encode(png).decode("ascii")
    pieces = [text[begin : begin + _PIECE_CHARS] for begin in range(0, len(text), _PIECE_CHARS)]
    last = len(pieces) - 1
    keys = [f"a=T,f=100,q=2{placement},m={int(last > 0)}", *(f"m={int(number < last)},q=2" for number in range(1, last + 1))]
    return "".join(f"\x1b_G{key};{piece}\x1b\\" for key, piece in zip(keys, pieces, strict=True))


def _encode_iterm2(content: bytes, columns: int, rows: int) -> str:
    """Return a picture as a file that is shown inside a number of columns and rows, with its proportions."""
    keys = f"inline=1;size={len(content)};width={columns};height={rows};preserveAspectRatio=1"
    return f"\x1b]1337;File={keys}:{base64.b64encode(content).decode('ascii')}\x07"
