"""Sixel graphics: the encoding of a decoded picture, as terminals since the VT340 show it (DEC STD 070, chapter 9)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import PIL.Image

#: Colours of a picture, and the number of a pixel that is left as it is.
_COLOURS, _TRANSPARENT = 255, 255
_HALF_OPAQUE = 128
#: Rows of pixels in a band, which is a line of sixels.
_BAND = 6
#: Longer runs of a sixel are written as a count.
_RUN_MIN = 4


def encode_sixels(picture: PIL.Image.Image) -> str:
    """Return a picture in mode RGB or RGBA as a sequence for the terminal, in at most 255 colours.

    Pixels that are more than half transparent are left out.
    """
    import PIL.Image

    indexed = picture.convert("RGB").quantize(_COLOURS, PIL.Image.Quantize.MEDIANCUT)
    if picture.mode == "RGBA":
        hidden = [255 * (alpha < _HALF_OPAQUE) for alpha in range(256)]
        indexed.paste(_TRANSPARENT, mask=picture.getchannel("A").point(hidden))
    pixels, palette, width = indexed.tobytes(), indexed.getpalette() or [], picture.width
    colours = sorted(set(pixels) - {_TRANSPARENT})
    registers = b"".join(_define_colour(colour, palette[3 * colour : 3 * colour + 3]) for colour in colours)
    rows = [pixels[begin : begin + width] for begin in range(0, len(pixels), width)]
    bands = (_encode_band(rows[top : top + _BAND]) for top in range(0, len(rows), _BAND))
    body = b'\x1bP0;1;0q"1;1;%d;%d' % picture.size + registers + b"-".join(bands) + b"\x1b\\"
    return body.decode("ascii")


def _define_colour(colour: int, channels: Sequence[int]) -> bytes:
    """Return the definition of a colour, in percent of red, green and blue."""
    return b"#%d;2;%d;%d;%d" % (colour, *(round(channel / 2.55) for channel in channels))


def _encode_band(rows: Sequence[bytes]) -> bytes:
    """Return up to six rows of pixels, colour by colour; equal columns that follow each other are encoded once."""
    lines: dict[int, list[bytes]] = {}
    ends: dict[int, int] = {}
    begin = 0
    for column, run in groupby(zip(*rows, strict=True)):
        end = begin + sum(1 for _ in run)
        for colour, sixel in _split_column(column):
            line = lines.setdefault(colour, [b"#%d" % colour])
            if (gap := begin - ends.get(colour, 0)) > 0:
                line.append(_repeat(b"?", gap))
            line.append(_repeat(sixel, end - begin))
            ends[colour] = end
        begin = end
    return b"$".join(map(b"".join, lines.values()))


@lru_cache(maxsize=4096)
def _split_column(column: tuple[int, ...]) -> tuple[tuple[int, bytes], ...]:
    """Return the colours of a column, each with the sixel of its pixels: bit N of a sixel is row N, and no bit is ``?``."""
    bits: dict[int, int] = {}
    for row, colour in enumerate(column):
        bits[colour] = bits.get(colour, 0) | 1 << row
    bits.pop(_TRANSPARENT, None)
    return tuple((colour, bytes([ord("?") + value])) for colour, value in bits.items())


def _repeat(sixel: bytes, count: int) -> bytes:
    return sixel * count if count < _RUN_MIN else b"!%d%b" % (count, sixel)
