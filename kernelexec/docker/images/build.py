"""Images of the engine: building ours, listing them, removing what a build left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kernelexec.config.images import NAMES
from kernelexec.docker.client import Engine, mapped
from kernelexec.docker.images.build_options import IMAGE, RECIPE, BuildOrder
from kernelexec.docker.images.build_progress import BuildLog
from kernelexec.docker.images.recipes import packed, recipe
from kernelexec.errors import EngineFailed, EngineRefused, ImageBuildFailed, ImageMissing

#: How long a build that was broken off is given to let go of what it made, in seconds.
_LETTING_GO_SECONDS = 10.0
_PAUSE_SECONDS = 0.2

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that is there."""

    id: str
    names: tuple[str, ...]
    """What it is called; empty where a newer one took its name."""
    recipe: str
    """Which of ours it is."""
    current: bool
    """Whether it is what would be built now; False where its recipe changed since, or is unknown here."""
    architecture: str
    size_bytes: int
    created: str


def build_image(engine: Engine, order: BuildOrder, tell: Tell = lambda _line: None) -> BuiltImage:
    """Build it; ``tell`` gets a line for each step.

    Nothing else that the build made stays, however it ends; nor does the image that had the name before, unless somebody
    uses it. This may take minutes. If it is broken off, by an exception in ``tell`` or by Ctrl+C, the engine ends it too.

    Raises:
        ImageBuildFailed: a step failed; the message ends with what it said.
        ImageMissing, EngineRefused, EngineAway: it could not begin.
    """
    _fetch_base(engine, order, tell)
    before = _id_of(engine, order.image)
    log = BuildLog()
    try:
        with packed(order.files) as context, mapped(f"build {order.image}"):
            url = f"{engine.api.base_url}/v{engine.api.api_version}/build"
            options: dict[str, Any] = {"headers": {"Content-Type": "application/x-tar"}, "stream": True, "timeout": None}
            parameters = order.parameters(os.environ)
            # The response itself is needed: closing it is what ends a build, and docker's own build() keeps it to itself.
            with closing(engine.api.post(url, data=context, params=parameters, **options)) as response:
                _check(response.status_code, response, log)
                for message in _messages(response.iter_lines()):
                    for line in log.take(message):
                        tell(line)
        if log.error:
            raise ImageBuildFailed(f"The image {order.image} was not built{log.failure()}")
        return _seen(engine, order.image)
    finally:
        _remove_made(engine, log.made)
        _remove_nameless(engine, [before])


def built_images(engine: Engine) -> list[BuiltImage]:
    """All images of ours that the engine has, by their names.

    Raises:
        EngineRefused, EngineAway: it does not say.
    """
    with mapped("list images"):
        found = [engine.api.inspect_image(image["Id"]) for image in engine.api.images(filters={"label": IMAGE})]
    return sorted((_described(image) for image in found), key=lambda image: (image.names, image.id))


def _fetch_base(engine: Engine, order: BuildOrder, tell: Tell) -> None:
    """Get the base from its registry where it is not here, or not for that platform."""
    if not order.base:
        return
    try:
        with mapped("describe an image", image=order.base):
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
    """The engine may refuse the whole of it before it begins."""
    if status >= 400:  # noqa: PLR2004 - of HTTP
        said = next(_messages(response.iter_lines()), {})
        log.take({"error": said.get("message", f"status {status}")})


def _messages(lines: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - see _check
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _remove_made(engine: Engine, made: list[str]) -> None:
    """Remove what a build made on its way and nobody has a name for; what is built upon stays by itself.

    A build that was broken off lets go of its last image only when its container has ended.
    """
    deadline = time.monotonic() + _LETTING_GO_SECONDS
    while _remove_nameless(engine, made) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)  # in a thread: the engine does not tell when it lets go of an image


def _remove_nameless(engine: Engine, images: Sequence[str]) -> int:
    """Remove those of these images, by their full or short ids, that have no name and that nobody uses; how many stay."""
    found: list[str] = []
    with suppress(EngineFailed), mapped("list images"):
        dangling = [str(image["Id"]) for image in engine.api.images(filters={"dangling": True})]
        found = [image for image in dangling if image in images or image.removeprefix("sha256:")[:12] in images]
    for image in tuple(found):
        with suppress(EngineFailed), mapped("remove an image"):
            engine.api.remove_image(image)
            found.remove(image)
    return len(found)


def _id_of(engine: Engine, image: str) -> str:
    with suppress(ImageMissing), mapped("describe the image", image=image):
        return str(engine.api.inspect_image(image)["Id"])
    return ""


def _seen(engine: Engine, image: str) -> BuiltImage:
    with mapped("describe the image", image=image):
        return _described(engine.api.inspect_image(image))


def _described(said: dict[str, Any]) -> BuiltImage:
    labels = said["Config"].get("Labels") or {}
    name = str(labels.get(IMAGE, ""))
    return BuiltImage(
        id=str(said["Id"]),
        names=tuple(str(tag).removesuffix(":latest") for tag in said.get("RepoTags") or ()),
        recipe=name,
        current=name in NAMES and labels.get(RECIPE) == recipe(name).digest,
        architecture=str(said["Architecture"]),
        size_bytes=int(said["Size"]),
        created=str(said["Created"]),
    )
