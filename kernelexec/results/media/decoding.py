"""The check and the decoding of pictures of kernels: the header is read first, and a huge picture is never decoded."""

from __future__ import annotations

import logging
import math
from io import BytesIO
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    import PIL.Image

    from kernelexec.results.media.images import Image

logger = logging.getLogger("kernelexec")

#: The largest picture that is decoded, in pixels: 64 megapixels take 256 MB of memory; pictures are decoded one by one.
DECODED_PIXELS = 64_000_000
#: The largest picture that is converted as a whole, and the part of a larger one that is, in pixels.
_COPIED_PIXELS, _STRIP_PIXELS = 16_000_000, 1_000_000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


def is_whole_png(content: bytes) -> bool:
    """Return whether a PNG is complete and all its chunks have their checksums; the pixels are not decoded."""
    if not content.startswith(_SIGNATURE):
        return False
    at, kind, data = len(_SIGNATURE), b"", 0
    while kind != b"IEND":
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(content) or crc32(content[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            return False
        data += length if kind == b"IDAT" else 0
        at = end + 4
    return data > 0


def decode_picture(image: Image, width: int, height: int) -> tuple[PIL.Image.Image, bool] | None:
    """Return a picture in mode RGB or RGBA that fits into a width and height in pixels, and whether it was larger. Blocks.

    None for another format than PNG, JPEG, GIF and WebP, for a damaged picture, and for one of more than ``DECODED_PIXELS``.
    """
    import PIL.Image  # noqa: PLC0415 - few pictures need it

    try:
        with PIL.Image.open(BytesIO(image.content), formats=FORMATS) as opened:
            if not 0 < opened.width * opened.height <= DECODED_PIXELS:
                return None
            is_larger = opened.width > width or opened.height > height
            opened.draft("RGB", (width, height))  # decodes a JPEG at a reduced size
            plain = _reduce(opened, width, height)
        plain.thumbnail((width, height))
    except Exception as exc:  # noqa: BLE001 - what decoders raise for damaged files is not documented
        logger.info("kernelexec.picture_not_shown", extra={"mime": image.mime, "why": repr(exc)[:200]})
        return None
    return plain, is_larger


def _reduce(opened: PIL.Image.Image, width: int, height: int) -> PIL.Image.Image:
    """Return a picture in mode RGB or RGBA, of which each pixel stands for a square; of a large one, it fits into the area.

    It is made of strips: decoders keep four bytes for a pixel, and each conversion of the whole would take as many again.
    """
    import PIL.Image  # noqa: PLC0415 - as above

    mode = "RGBA" if opened.has_transparency_data else "RGB"
    ratio = max(opened.width / width, opened.height / height, 1.0)
    side = math.ceil(ratio) if opened.width * opened.height > _COPIED_PIXELS else int(ratio)
    reduced = PIL.Image.new(mode, (-(-opened.width // side), -(-opened.height // side)))
    rows = side * max(1, _STRIP_PIXELS // (side * opened.width))
    for top in range(0, opened.height, rows):
        strip = opened.crop((0, top, opened.width, min(top + rows, opened.height)))
        eight_bits = strip.point(lambda level: level * (1 / 256)) if strip.mode == "I;16" else strip
        reduced.paste(eight_bits.convert(mode).reduce(side), (0, top // side))
    return reduced
