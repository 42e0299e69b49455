"""Build images, list them, and remove leftovers of builds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kernelexec.config.images import NAMES
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.build_options import IMAGE, RECIPE, BuildOrder
from kernelexec.docker.images.build_progress import BuildLog
from kernelexec.docker.images.recipes import pack_context, recipe
from kernelexec.errors import EngineFailed, EngineRefused, ImageBuildFailed, ImageMissing

#: How long to wait for an interrupted build to release its images, in seconds.
_LETTING_GO_SECONDS = 10.0
_PAUSE_SECONDS = 0.2

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image of ours that the engine has."""

    id: str
    names: tuple[str, ...]
    """Its names; empty if a newer image took them."""
    recipe: str
    """The name of its recipe."""
    current: bool
    """Whether its recipe is the current one; False if the recipe changed since, or is unknown here."""
    architecture: str
    size_bytes: int
    created: str


def build_image(engine: Engine, order: BuildOrder, tell: Tell = lambda _line: None) -> BuiltImage:
    """Build an image; ``tell`` gets a line for each step.

    Intermediate images are removed, however the build ends; so is the image that had the name before, unless it is
    used. This may take minutes. An exception in ``tell`` or Ctrl+C ends the build in the engine too.

    Raises:
        ImageBuildFailed: a step failed; the message ends with its output.
        ImageMissing, EngineRefused, EngineUnavailable: the build did not begin.
    """
    _fetch_base(engine, order, tell)
    before = _id_of(engine, order.image)
    log = BuildLog()
    try:
        with pack_context(order.files) as context, map_docker_errors(f"build {order.image}"):
            url = f"{engine.api.base_url}/v{engine.api.api_version}/build"
            options: dict[str, Any] = {"headers": {"Content-Type": "application/x-tar"}, "stream": True, "timeout": None}
            parameters = order.parameters(os.environ)
            # Closing the response ends a build, and the library's own build() does not return it.
            with closing(engine.api.post(url, data=context, params=parameters, **options)) as response:
                _check(response.status_code, response, log)
                for message in _messages(response.iter_lines()):
                    for line in log.add(message):
                        tell(line)
        if log.error:
            raise ImageBuildFailed(f"The image {order.image} was not built{log.failure()}")
        return _inspect(engine, order.image)
    finally:
        _remove_made(engine, log.created_images)
        _remove_nameless(engine, [before])


def built_images(engine: Engine) -> list[BuiltImage]:
    """Return all images of ours that the engine has, sorted by name.

    Raises:
        EngineRefused, EngineUnavailable: the engine does not answer.
    """
    with map_docker_errors("list images"):
        images = [engine.api.inspect_image(image["Id"]) for image in engine.api.images(filters={"label": IMAGE})]
    return sorted((_describe(image) for image in images), key=lambda image: (image.names, image.id))


def _fetch_base(engine: Engine, order: BuildOrder, tell: Tell) -> None:
    """Pull the base image if the engine does not have it, or not for that platform."""
    if not order.base:
        return
    try:
        with map_docker_errors("describe an image", image=order.base):
            there = engine.api.inspect_image(order.base)
        if order.platform is None or order.platform.split("/")[1:2] == [there["Architecture"]]:
            return
    except ImageMissing:
        pass
    tell(f"fetching {order.base}")
    try:
        engine.pull(order.base, platform=order.platform)
    except (EngineRefused, ImageMissing) as exc:
        message = (
            f"The base image {order.base} is not here, and did not come from a registry. Name one that is here by "
            f"--base-image: any Debian or Ubuntu with Python 3.11 or newer serves. {exc}"
        )
        raise ImageMissing(message) from exc


def _check(status: int, response: Any, log: BuildLog) -> None:  # noqa: ANN401 - requests is docker's, not ours
    """Record a refusal of the whole build."""
    if status >= 400:  # noqa: PLR2004 - of HTTP
        answer = next(_messages(response.iter_lines()), {})
        log.add({"error": answer.get("message", f"status {status}")})


def _messages(lines: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - see _check
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _remove_made(engine: Engine, images: list[str]) -> None:
    """Remove the intermediate images of a build that have no name; the engine keeps those that others are built upon.

    An interrupted build releases its last image only when its container has ended.
    """
    deadline = time.monotonic() + _LETTING_GO_SECONDS
    while _remove_nameless(engine, images) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)  # in a thread: the engine has no event for the release of an image


def _remove_nameless(engine: Engine, images: Sequence[str]) -> int:
    """Remove images by their full or short ids if they have no name and are unused; return how many stay."""
    remaining: list[str] = []
    with suppress(EngineFailed), map_docker_errors("list images"):
        dangling = [str(image["Id"]) for image in engine.api.images(filters={"dangling": True})]
        remaining = [image for image in dangling if image in images or image.removeprefix("sha256:")[:12] in images]
    for image in tuple(remaining):
        with suppress(EngineFailed), map_docker_errors("remove an image"):
            engine.api.remove_image(image)
            remaining.remove(image)
    return len(remaining)


def _id_of(engine: Engine, image: str) -> str:
    with suppress(ImageMissing), map_docker_errors("describe the image", image=image):
        return str(engine.api.inspect_image(image)["Id"])
    return ""


def _inspect(engine: Engine, image: str) -> BuiltImage:
    with map_docker_errors("describe the image", image=image):
        return _describe(engine.api.inspect_image(image))


def _describe(answer: dict[str, Any]) -> BuiltImage:
    labels = answer["Config"].get("Labels") or {}
    name = str(labels.get(IMAGE, ""))
    return BuiltImage(
        id=str(answer["Id"]),
        names=tuple(str(tag).removesuffix(":latest") for tag in answer.get("RepoTags") or ()),
        recipe=name,
        current=name in NAMES and labels.get(RECIPE) == recipe(name).digest,
        architecture=str(answer["Architecture"]),
        size_bytes=int(answer["Size"]),
        created=str(answer["Created"]),
    )
