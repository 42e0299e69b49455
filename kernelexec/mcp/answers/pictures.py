"""Pictures in answers: a bounded number that fits into an answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread
from mcp.types import ImageContent

from kernelexec.results import Image
from kernelexec.results.media.model_pictures import PICTURES_MAX, fit_picture, is_fit

#: Number of pictures to try, as some may be unusable.
_TRIED = 2 * PICTURES_MAX
_ENVELOPE_BYTES = 100
_ONE_THREAD = anyio.CapacityLimiter(1)


@dataclass(frozen=True, slots=True)
class InlinePictures:
    """Pictures of an answer, and the numbers of those that are shown smaller or left out."""

    shown: list[ImageContent]
    smaller: list[int]
    left_out: list[int]


async def select_pictures(images: Sequence[Image], room: int) -> InlinePictures:
    """Return the first usable pictures that fit into ``room`` bytes of an answer."""
    pictures = InlinePictures([], [], [])
    for number, image in enumerate(images):
        fit, smaller = None, False
        if len(pictures.shown) < PICTURES_MAX and number < _TRIED:
            if is_fit(image):
                fit = image
            else:
                fit, smaller = await anyio.to_thread.run_sync(fit_picture, image, limiter=_ONE_THREAD)
        encoded_bytes = 0 if fit is None else (len(fit.content) + 2) // 3 * 4 + _ENVELOPE_BYTES
        if fit is None or encoded_bytes > room:
            pictures.left_out.append(number)
            continue
        room -= encoded_bytes
        if smaller:
            pictures.smaller.append(number)
        data = base64.b64encode(fit.content).decode("ascii")
        pictures.shown.append(ImageContent(type="image", data=data, mime_type=fit.mime))
    return pictures
