"""Which images get a mounted Python in place of their own: decided once in the life of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from kernelexec.config import Container
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, ImageMissing, KernelStartFailed

if TYPE_CHECKING:
    from kernelexec.docker.images.python_volume import Mounted

#: Its interpreter, where it is mounted.
PYTHON = f"{RUNTIME_INSIDE}/bin/python3"

_chosen: dict[tuple[object, ...], Mounted] = {}


def stand_in(options: Container) -> Mounted | None:
    """The mounted Python of kernels with these options; None where the image's own is taken."""
    return _chosen.get(_key(options))


async def find_stand_in(options: Container, failure: KernelStartFailed | None) -> None:
    """Have a mounted Python for the next kernel with these options, if it needs one: after a ``failure``, or if one is wanted.

    Raises:
        KernelStartFailed: it needs one, and cannot have it; or the image has not the one that is named.
    """
    if stand_in(options) is not None or (failure is None and options.runtime != "mounted"):
        return
    from kernelexec.docker.images.python_volume import lacking, mistaken, replacement  # noqa: PLC0415 - see ``places.unavailable``

    image, python = options.image, options.python
    if why := await anyio.to_thread.run_sync(mistaken, image, python):
        raise KernelStartFailed(why) from failure
    if options.runtime == "image" or (options.runtime == "auto" and not await anyio.to_thread.run_sync(lacking, image, python)):
        return
    try:
        _chosen[_key(options)] = await anyio.to_thread.run_sync(replacement, image, python, options.runtime_image)
    except (EngineFailed, ImageMissing) as exc:
        raise KernelStartFailed(_told(options, failure, exc)) from exc


def notice(options: Container) -> tuple[str, ...]:
    """What a result says once of a mounted Python."""
    found = stand_in(options)
    if found is None:
        return ()
    lacks = f"The image {' or '.join(options.image)} has {found.why}: the" if found.why else "The"
    return (f"{lacks} kernel runs on a Python that is mounted there ({found.version}); commands see the image as it is.",)


def _key(options: Container) -> tuple[object, ...]:
    return options.image, options.python, options.runtime_image, options.runtime


def _told(options: Container, failure: KernelStartFailed | None, why: Exception) -> str:
    said = f"{failure} " if failure else ""
    return (
        f"{said}No Python can be mounted from the image {options.runtime_image} in place of the image's own: {why} "
        f"`kernelexec image check {options.image[0]}` says what it lacks, and how to add it."
    )
