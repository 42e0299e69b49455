"""The images that get a mounted Python instead of their own, which is decided once in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread

from kernelexec.config import Container
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, ImageMissing, KernelStartFailed
from kernelexec.provisioning.container.mounts import Bind

if TYPE_CHECKING:
    from kernelexec.docker.images.image_python import PythonVolume

#: The interpreter of the mounted Python.
MOUNTED_PYTHON = f"{RUNTIME_INSIDE}/bin/python3"
_chosen: dict[tuple[object, ...], PythonVolume] = {}


def chosen_python(options: Container) -> PythonVolume | None:
    """Return the mounted Python of kernels with these options; None if the image's own is used."""
    return _chosen.get(_options_key(options))


async def choose_python(options: Container, failure: KernelStartFailed | None) -> None:
    """Find a mounted Python for the next kernel with these options, if one is configured or the image's own caused ``failure``.

    Raises:
        KernelStartFailed: a mounted Python is needed but not available, or the named one is missing in the image.
    """
    if chosen_python(options) is not None or (failure is None and options.runtime != "mounted"):
        return
    from kernelexec.docker.images.image_python import missing_requirement, provide_python, wrong_interpreter  # noqa: PLC0415 - see ``explain_unavailable``

    image, python = options.image, options.python
    if message := await anyio.to_thread.run_sync(wrong_interpreter, image, python):
        raise KernelStartFailed(message) from failure
    if options.runtime == "image" or (
        options.runtime == "auto" and not await anyio.to_thread.run_sync(missing_requirement, image, python)
    ):
        return
    try:
        _chosen[_options_key(options)] = await anyio.to_thread.run_sync(provide_python, image, python, options.runtime_image)
    except (EngineFailed, ImageMissing) as exc:
        before = f"{failure} " if failure else ""
        message = (
            f"{before}No Python can be mounted from the image {options.runtime_image} in place of the image's own: {exc} "
            f"`kernelexec image check {image[0]}` says what it lacks, and how to add it."
        )
        raise KernelStartFailed(message) from exc


def python_of(options: Container) -> tuple[str, tuple[Bind, ...]]:
    """Return the interpreter of kernels with these options, and the mounts that it needs."""
    mounted = chosen_python(options)
    return (MOUNTED_PYTHON, ((mounted.volume, RUNTIME_INSIDE, True),)) if mounted else (options.python, ())


def describe_python(options: Container) -> tuple[str, ...]:
    """Return the note of a kernel's first result on its mounted Python."""
    mounted = chosen_python(options)
    if mounted is None:
        return ()
    lacks = f"The image {' or '.join(options.image)} has {mounted.missing}: the" if mounted.missing else "The"
    return (f"{lacks} kernel runs on a Python that is mounted there ({mounted.version}); commands see the image as it is.",)


def _options_key(options: Container) -> tuple[object, ...]:
    return options.image, options.python, options.runtime_image, options.runtime
