"""Pictures that models accept: whole, of a bounded size, and in a usual format.

Kernels are not trusted, so the header of a picture is checked before it is decoded, and a huge picture is never decoded.
"""

from __future__ import annotations

import logging
from io import BytesIO
from typing import TYPE_CHECKING
from zlib import crc32

from kernelexec.results import Image

if TYPE_CHECKING:
    import PIL.Image

logger = logging.getLogger("kernelexec")

#: Limits of a picture: its bytes, and the pixels of a side; models see no more.
PICTURE_BYTES = 500_000
SIDE_PIXELS = 1568
#: The largest picture that is decoded: 64 megapixels take 256 MB of memory; pictures are decoded one by one.
_DECODED_PIXELS = 64_000_000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_QUALITY, _SMALLER, _STEPS = 85, 0.7, 6


def is_fit(image: Image) -> bool:
    """Return whether a picture needs no change; an invalid picture would break the whole conversation."""
    content = image.content
    if image.mime != "image/png" or len(content) > PICTURE_BYTES or not content.startswith(_SIGNATURE):
        return False
    return image.size is not None and max(image.size) <= SIDE_PIXELS and _is_whole(content)


def _is_whole(png: bytes) -> bool:
    """Return whether a PNG is complete and undamaged; models reject any other."""
    at, kind, data = len(_SIGNATURE), b"", 0
    while kind != b"IEND":
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(png) or crc32(png[at + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            return False
        data += length if kind == b"IDAT" else 0
        at = end + 4
    return data > 0


def fit_picture(image: Image) -> tuple[Image | None, bool]:
    """Return a picture converted for models, or None, and whether it has fewer pixels. Blocks: run it in a thread."""
    try:
        import PIL.Image  # noqa: PLC0415 - few pictures need it
    except ImportError:
        return None, False
    bombs = PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning
    try:
        with PIL.Image.open(BytesIO(image.content), formats=_FORMATS) as opened:
            width, height = opened.size
            if not 0 < width * height <= _DECODED_PIXELS:
                return None, False
            is_small = max(width, height) <= SIDE_PIXELS and len(image.content) <= PICTURE_BYTES
            if opened.format == "JPEG" and image.mime == "image/jpeg" and is_small:
                opened.load()  # raises for a truncated picture
                return image, False
            opened.draft("RGB", (SIDE_PIXELS, SIDE_PIXELS))  # decodes a JPEG at a reduced size
            plain = opened.convert("RGBA" if opened.has_transparency_data else "RGB")
            plain.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
            encoded = _encode(plain)
    except (OSError, ValueError, SyntaxError, ArithmeticError, MemoryError, *bombs) as exc:
        logger.info("kernelexec.picture_not_shown", extra={"mime": image.mime, "why": repr(exc)[:200]})
        return None, False
    return (None, False) if encoded is None else (encoded[0], encoded[1] != (width, height))


def _encode(picture: PIL.Image.Image) -> tuple[Image, tuple[int, int]] | None:
    """Return a picture as PNG if small enough, else as JPEG on white, scaled down until it fits; with its size in pixels."""
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
