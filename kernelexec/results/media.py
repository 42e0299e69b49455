"""Images and sounds among a cell's outputs, decoded, and pictures in the form for models.

Models get whole pictures of a bounded size in usual formats. Kernels are not trusted, so the header of a picture is checked
before decoding, and a huge picture is never decoded. Sizes are read here, since a file can send the library for this purpose
(imagesize) backwards without end.
"""

from __future__ import annotations

import base64
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kernelexec.results.one_line import format_bytes

if TYPE_CHECKING:
    import PIL.Image

#: Number of bytes for the type of a picture, and the first bytes of each type; WebP has the file's length among them.
BEGINNING_BYTES = 12
_PNG_BEGINNING = b"\x89PNG\r\n\x1a\n"
_BEGINNINGS = {"image/png": (_PNG_BEGINNING,), "image/jpeg": (b"\xff\xd8\xff",), "image/gif": (b"GIF87a", b"GIF89a")}
#: Markers of JPEG frames, whose header has the size; three markers of the range are no frames (ITU T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS_MAX = 1000
#: Limits of a picture: its bytes, and the pixels of a side; models see no more.
PICTURE_BYTES = 500_000
SIDE_PIXELS = 1568
#: The number of pictures in an answer; models see no more.
PICTURES_MAX = 4
_QUALITY, _SMALLER, _STEPS = 85, 0.7, 6
logger = logging.getLogger("kernelexec")
#: The largest decoded picture, in pixels: 64 megapixels take 256 MB of memory; pictures are decoded one after the other.
DECODED_PIXELS = 64_000_000
#: The largest picture converted as a whole, and the strip of a larger picture, in pixels.
_COPIED_PIXELS, _STRIP_PIXELS = 16_000_000, 1_000_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


@dataclass(frozen=True, slots=True)
class Image:
    """An image among a cell's outputs, with its media type."""

    mime: str
    content: bytes

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels, from the header of a PNG, GIF, JPEG or WebP; None for other formats."""
        return read_pixel_size(self.content)

    @property
    def summary(self) -> str:
        """The type, the size in pixels and the size in bytes, in one line."""
        size = self.size
        pixels = "" if size is None else f" {size[0]}\N{MULTIPLICATION SIGN}{size[1]}"
        return f"{self.mime}{pixels} {format_bytes(len(self.content))}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the image to a new file or over an existing file; return the path. Raise ``OSError`` on failure."""
        Path(path).write_bytes(self.content)
        return Path(path)

    def to_html(self) -> str:
        """Return an element with the image inside; scripts of an SVG do not run there."""
        return f'<img src="data:{self.mime};base64,{base64.b64encode(self.content).decode()}">'

    def __repr__(self) -> str:
        return f"<Image {self.summary}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:  # noqa: ARG002 - IPython's
        if self.mime == "image/svg+xml":
            return {"text/plain": repr(self), "text/html": self.to_html()}
        return {"text/plain": repr(self), self.mime: base64.b64encode(self.content).decode()}


def describe_images(images: Sequence[Image]) -> str | None:
    """Return the summary of a single image, or the number and total size of several images; None without images."""
    if len(images) == 1:
        return f"1 image {images[0].summary}"
    return f"{len(images)} images {format_bytes(sum(len(image.content) for image in images))}" if images else None


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound among a cell's outputs, with its media type."""

    mime: str
    content: bytes

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sound to a new file or over an existing file; return the path. Raise ``OSError`` on failure."""
        Path(path).write_bytes(self.content)
        return Path(path)

    def __repr__(self) -> str:
        return f"<Audio {self.mime} {format_bytes(len(self.content))}>"


def read_picture_type(content: bytes) -> str | None:
    """Return the media type of a PNG, GIF, JPEG or WebP by the first bytes; None for other formats."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for mime, beginnings in _BEGINNINGS.items() if content.startswith(beginnings)), None)


def read_pixel_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP; None for other formats and damage. Nothing is decoded."""
    size = 0, 0
    match read_picture_type(content):
        case "image/png":
            size = _number(content[16:20]), _number(content[20:24])
        case "image/gif":
            size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
        case "image/jpeg":
            size = _read_jpeg(content)
        case "image/webp":
            size = _read_webp(content)
    return size if all(size) else None


def _read_jpeg(content: bytes) -> tuple[int, int]:
    # FF D8, then segments:  FF | marker | length (2, with itself) | content
    #   content of a frame:  precision (1) | height (2) | width (2) | ...
    # A file may have a segment for every four bytes, so their number is bounded.
    at = 2
    for _ in range(_SEGMENTS_MAX):
        marker = content[at : at + 2]
        if len(marker) < 2 or marker[0] != 0xFF:  # noqa: PLR2004 - every segment begins so
            break
        if marker[1] in _FRAMES:
            return _number(content[at + 7 : at + 9]), _number(content[at + 5 : at + 7])
        at += 2 + _number(content[at + 2 : at + 4])
    return 0, 0


def _read_webp(content: bytes) -> tuple[int, int]:
    """Read the size by the kind of the first chunk (RFC 9649): lossy, lossless or extended."""
    match content[12:16]:
        case b"VP8 ":
            return int.from_bytes(content[26:28], "little") & 0x3FFF, int.from_bytes(content[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
    return 0, 0


def _number(field: bytes) -> int:
    return int.from_bytes(field, "big")


def is_fit(image: Image) -> bool:
    """Return whether a picture needs no conversion; an invalid picture would break the whole conversation."""
    content = image.content
    if image.mime != "image/png" or len(content) > PICTURE_BYTES:
        return False
    return image.size is not None and max(image.size) <= SIDE_PIXELS and is_whole_png(content)


def fit_picture(image: Image) -> tuple[Image | None, bool]:
    """Return a picture converted for models, or None, and whether pixels were lost. Blocks: for a thread."""
    decoded = decode_picture(image, SIDE_PIXELS, SIDE_PIXELS)
    if decoded is None:
        return None, False
    picture, is_smaller = decoded
    is_jpeg = image.mime == "image/jpeg" and image.content.startswith(b"\xff\xd8")
    if is_jpeg and not is_smaller and len(image.content) <= PICTURE_BYTES:
        return image, False
    encoded = _encode(picture)
    return (None, False) if encoded is None else (encoded[0], is_smaller or encoded[1] != picture.size)


def select_pictures(images: Sequence[Image], limit: int = PICTURES_MAX) -> list[Image]:
    """Return the first pictures in the form for models, at most ``limit``, without damaged pictures. Blocks: for a thread."""
    pictures = (image if is_fit(image) else fit_picture(image)[0] for image in images[: 2 * limit])
    return list(islice((picture for picture in pictures if picture is not None), limit))


def open_picture(content: bytes) -> PIL.Image.Image | None:
    """Return a picture, to be decoded by Pillow on first use; None for other data, other formats, and too many pixels."""
    import PIL.Image  # noqa: PLC0415 - few pictures need it

    try:
        picture = PIL.Image.open(BytesIO(content), formats=FORMATS)  # decoders of others start programs
    except (OSError, ValueError, PIL.Image.DecompressionBombError):
        return None
    return picture if picture.width * picture.height <= DECODED_PIXELS else None


def _encode(picture: PIL.Image.Image) -> tuple[Image, tuple[int, int]] | None:
    """Return a picture and its size in pixels: as PNG if small enough, else as JPEG on white, scaled down to fit."""
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


def is_whole_png(content: bytes) -> bool:
    """Return whether a PNG is complete with correct checksums of all chunks; the pixels are not decoded."""
    if not content.startswith(_PNG_BEGINNING):
        return False
    at, kind, data = len(_PNG_BEGINNING), b"", 0
    while kind != b"IEND":
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(content) or crc32(content[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            return False
        data += length if kind == b"IDAT" else 0
        at = end + 4
    return data > 0


def decode_picture(image: Image, width: int, height: int) -> tuple[PIL.Image.Image, bool] | None:
    """Return a picture reduced to a width and height in pixels, in mode RGB or RGBA, and whether it was larger. Blocks.

    None for formats other than PNG, JPEG, GIF and WebP, for damaged pictures, and above ``DECODED_PIXELS``.
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
    """Return a picture in mode RGB or RGBA, with a pixel for each square of pixels; a large picture is reduced to the area.

    The picture is converted in strips: decoders keep four bytes for a pixel, and each conversion of the whole picture would
    need as much memory again.
    """
    import PIL.Image  # noqa: PLC0415 - as above

    mode = "RGBA" if opened.has_transparency_data else "RGB"
    ratio = max(opened.width / width, opened.height / height, 1.0)
    side = math.ceil(ratio) if opened.width * opened.height > _COPIED_PIXELS else int(ratio)
    reduced = PIL.Image.new(mode, (-(-opened.width // side), -(-opened.height // side)))
    rows = side * max(1, _STRIP_PIXELS // (side * opened.width))  # a multiple of the side: no square lies in two strips
    for top in range(0, opened.height, rows):
        strip = opened.crop((0, top, opened.width, min(top + rows, opened.height)))
        # Pillow's own conversion cuts levels off at 255 instead of scaling them.
        eight_bits = strip.point(lambda level: level * (1 / 256)) if strip.mode == "I;16" else strip
        reduced.paste(eight_bits.convert(mode).reduce(side), (0, top // side))
    return reduced
