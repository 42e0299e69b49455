"""Contents of images that are known already: each image is probed once in the life of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.image_info import ImageFacts
from kernelexec.docker.images.image_probe import probe_image
from kernelexec.errors import ImageMissing

_known: dict[tuple[str, str], ImageFacts] = {}
#: Held during a probe.
asking = threading.Lock()


def known_facts(images: Sequence[str], python: str) -> ImageFacts:
    """Return the contents of the first of these images that exists, with that interpreter. It blocks: for a thread.

    Raises:
        ImageMissing: none of the images exists.
        EngineRefused, EngineUnavailable: the image could not be probed.
    """
    with Engine.acquire() as engine:
        identity = _first(engine, images)
        with asking:
            if (identity, python) not in _known:
                _known[identity, python] = probe_image(engine, identity, python=python)
            return _known[identity, python]


def _first(engine: Engine, images: Sequence[str]) -> str:
    """Return the id of the first existing image: a name may get other contents later."""
    for image in images:
        with suppress(ImageMissing), map_docker_errors("describe the image", image=image):
            return str(engine.api.inspect_image(image)["Id"])
    message = f"None of these images is here: {', '.join(images)}."
    raise ImageMissing(message)
