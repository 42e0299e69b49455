"""What is known of images already: each is asked once in the life of this process, whoever wants to know."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from kernelexec.docker.client import Engine, mapped
from kernelexec.docker.images.image_info import ImageFacts
from kernelexec.docker.images.image_probe import probe_image
from kernelexec.errors import ImageMissing

_known: dict[tuple[str, str], ImageFacts] = {}
#: Held while something is found out.
asking = threading.Lock()


def known_facts(images: Sequence[str], python: str) -> ImageFacts:
    """What the first of these images has that is there, with that interpreter. It blocks: for a thread.

    Raises:
        ImageMissing: none of them is there.
        EngineRefused, EngineAway: nobody says.
    """
    with Engine.shared() as engine:
        identity = _first(engine, images)
        with asking:
            if (identity, python) not in _known:
                _known[identity, python] = probe_image(engine, identity, python=python)
            return _known[identity, python]


def _first(engine: Engine, images: Sequence[str]) -> str:
    """The id of the first image that is there: a name may mean other contents by tomorrow."""
    for image in images:
        with suppress(ImageMissing), mapped("describe the image", image=image):
            return str(engine.api.inspect_image(image)["Id"])
    message = f"None of these images is here: {', '.join(images)}."
    raise ImageMissing(message)
