"""Pictures that models accept: whole, of a bounded size, and in a usual format.

Kernels are not trusted, so the header of a picture is checked before it is decoded, and a huge picture is never decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING

from kernelexec.results.media.decoding import DECODED_PIXELS, FORMATS, decode_picture, is_whole_png
from kernelexec.results.media.images import Image

if TYPE_CHECKING:
    import PIL.Image

#: Limits of a picture: its bytes, and the pixels of a side; models see no more.
PICTURE_BYTES = 500_000
SIDE_PIXELS = 1568
#: The number of pictures in an answer; models see no more.
PICTURES_MAX = 4
_QUALITY, _SMALLER, _STEPS = 85, 0.7, 6


def is_fit(image: Image) -> bool:
    """Return whether a picture needs no change; an invalid picture would break the whole conversation."""
    content = image.content
    if image.mime != "image/png" or len(content) > PICTURE_BYTES:
        return False
    return image.size is not None and max(image.size) <= SIDE_PIXELS and is_whole_png(content)


def fit_picture(image: Image) -> tuple[Image | None, bool]:
    """Return a picture converted for models, or None, and whether it has fewer pixels. Blocks: run it in a thread."""
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
    """Return the first pictures in the form that models accept, without damaged ones; ``limit`` at most. Blocks as above."""
    pictures = (image if is_fit(image) else fit_picture(image)[0] for image in images[: 2 * limit])
    return list(islice((picture for picture in pictures if picture is not None), limit))


def open_picture(content: bytes) -> PIL.Image.Image | None:
    """Return a picture that Pillow decodes when it is used; None for other data, other formats, and too many pixels."""
    import PIL.Image  # noqa: PLC0415 - few pictures need it

    try:
        picture = PIL.Image.open(BytesIO(content), formats=FORMATS)  # decoders of others start programs
    except (OSError, ValueError, PIL.Image.DecompressionBombError):
        return None
    return picture if picture.width * picture.height <= DECODED_PIXELS else None


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
