"""Pictures as models take them: at most so many, of a bounded size, in a format that clients know.

Pictures come from kernels, so their headers are read before anything is decoded: what says that it is huge is left alone.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
from zlib import crc32

import anyio
import anyio.to_thread
from mcp.types import ImageContent

from kernelexec.results import Image

if TYPE_CHECKING:
    import PIL.Image

logger = logging.getLogger("kernelexec")

#: How many go into one answer, how large each may be in bytes, and how many pixels a side may have: models see no more.
PICTURES_MAX = 4
PICTURE_BYTES = 500_000
SIDE_PIXELS = 1568
#: What is decoded at all: 64 megapixels are 256 MB of memory, and one is decoded at a time.
_DECODED_PIXELS = 64_000_000
#: How many are tried, where some cannot be shown.
_TRIED = 2 * PICTURES_MAX
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_QUALITY, _SMALLER, _STEPS = 85, 0.7, 6
_ENVELOPE_BYTES = 100
_ONE = anyio.CapacityLimiter(1)


@dataclass(frozen=True, slots=True)
class Inline:
    """The pictures of an answer; by their numbers, those that are shown smaller than they are, and those that are not."""

    shown: list[ImageContent]
    smaller: list[int]
    left_out: list[int]


async def inline(images: Sequence[Image], room: int) -> Inline:
    """The first pictures that can be shown, within ``room`` bytes of an answer."""
    found = Inline([], [], [])
    for number, image in enumerate(images):
        fit, smaller = None, False
        if len(found.shown) < PICTURES_MAX and number < _TRIED:
            fit, smaller = (image, False) if _is_fit(image) else await anyio.to_thread.run_sync(_fitted, image, limiter=_ONE)
        encoded_bytes = 0 if fit is None else (len(fit.content) + 2) // 3 * 4 + _ENVELOPE_BYTES
        if fit is None or encoded_bytes > room:
            found.left_out.append(number)
            continue
        room -= encoded_bytes
        if smaller:
            found.smaller.append(number)
        found.shown.append(ImageContent(type="image", data=base64.b64encode(fit.content).decode("ascii"), mime_type=fit.mime))
    return found


def _is_fit(image: Image) -> bool:
    """Whether a picture is shown as it is: one that is not what it says spoils a whole conversation."""
    content = image.content
    if image.mime != "image/png" or len(content) > PICTURE_BYTES or not content.startswith(_SIGNATURE):
        return False
    sides = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return all(0 < side <= SIDE_PIXELS for side in sides) and _is_whole(content)


def _is_whole(png: bytes) -> bool:
    """Whether all pieces of a PNG are there, as they were written: what is cut off or damaged is no picture to a model."""
    at, kind, data = len(_SIGNATURE), b"", 0
    while kind != b"IEND":
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(png) or crc32(png[at + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            return False
        data += length if kind == b"IDAT" else 0
        at = end + 4
    return data > 0


def _fitted(image: Image) -> tuple[Image | None, bool]:
    """A picture that models take, of what was sent, if that can be had, and whether it has fewer pixels. For a thread."""
    try:
        import PIL.Image  # noqa: PLC0415 - only where a picture needs it
    except ImportError:
        return None, False
    bombs = PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning
    try:
        with PIL.Image.open(BytesIO(image.content), formats=_FORMATS) as opened:
            width, height = opened.size
            if not 0 < width * height <= _DECODED_PIXELS:
                return None, False
            if opened.format == "JPEG" and image.mime == "image/jpeg" and _sent_whole(image, max(width, height)):
                opened.load()  # one that is cut off ends here
                return image, False
            opened.draft("RGB", (SIDE_PIXELS, SIDE_PIXELS))  # a JPEG is decoded at a part of its size
            plain = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
            plain.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
            encoded = _encoded(plain)
    except (OSError, ValueError, SyntaxError, ArithmeticError, MemoryError, *bombs) as exc:
        logger.info("kernelexec.picture_not_shown", extra={"mime": image.mime, "why": repr(exc)[:200]})
        return None, False
    if encoded is None:
        return None, False
    found, size = encoded
    return found, size != (width, height)


def _sent_whole(image: Image, side: int) -> bool:
    return side <= SIDE_PIXELS and len(image.content) <= PICTURE_BYTES


def _encoded(picture: PIL.Image.Image) -> tuple[Image, tuple[int, int]] | None:
    """As PNG, where that is small enough; else as JPEG, on white, and then smaller and smaller; with its width and height."""
    import PIL.Image  # noqa: PLC0415 - as above

    written = BytesIO()
    picture.save(written, "PNG")
    if len(written.getvalue()) <= PICTURE_BYTES:
        return Image("image/png", written.getvalue()), picture.size
    if picture.mode == "RGBA":
        white = PIL.Image.new("RGB", picture.size, "white")
        white.paste(picture, mask=picture.getchannel("A"))
        picture = white
    for _ in range(_STEPS):
        written = BytesIO()
        picture.save(written, "JPEG", quality=_QUALITY)
        if len(written.getvalue()) <= PICTURE_BYTES:
            return Image("image/jpeg", written.getvalue()), picture.size
        picture = picture.resize((max(1, int(picture.width * _SMALLER)), max(1, int(picture.height * _SMALLER))))
    return None
