"""Build images by the engine, list them, and remove leftovers of builds."""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from kernelexec.config.container import NAMES, sudo_variant
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.recipes import Files, Recipe, pack_files, recipe
from kernelexec.errors import EngineFailed, EngineRefused, ImageBuildFailed, ImageMissing

#: Labels of every image of ours: the name of its recipe, and with ``RECIPE`` the digest of its files.
IMAGE, RECIPE = "kernelexec.image", "kernelexec.recipe"
#: The engine passes these to each step, and keeps them out of the image and its history.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
_STEP = re.compile(r"Step (?P<step>\d+/\d+) : (?P<order>.*)")
_MADE = re.compile(r" ---> (?P<id>[0-9a-f]{12})")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAIL = 20
_LINE_CHARS = 500
_HINTS = (
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "certificate is NOT trusted", "x509:"),
        "A certificate authority of your network is missing: give it by --extra-ca FILE, or take this machine's by --host-ca.",
    ),
    (
        ("Temporary failure in name resolution", "Could not resolve", "Network is unreachable", "failed to create endpoint"),
        "The build has no network: try --network host, or build offline by --wheels from a base that has all Debian packages.",
    ),
    (("No matching distribution found",), "The index, or the wheels' directory, does not have it for this Python."),
    (("No space left on device",), "Free some space where the container engine keeps its images."),
    (("exec format error",), "The base image is of another architecture than this machine emulates."),
    (("pull access denied", "manifest unknown", "not found: manifest"), "Name a base that is there by --base-image."),
)


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """An image to be built."""

    recipe: Recipe
    base_image: str | None = None
    """The base image, instead of the recipe's own."""
    authorities: Files = field(default_factory=dict)
    """Certificate authorities that the image will trust."""
    wheels: Files = field(default_factory=dict)
    """Wheels of Python packages; if there are any, no index is used."""
    sudo: bool = False
    """Whether users may become root in it; the image's name says so too."""
    platform: str | None = None
    """Such as ``linux/arm64``; by default the engine's own."""
    tag: str | None = None
    """The image's name, instead of the recipe's own."""
    network: str | None = None
    """``none``, ``host``, or a network of the engine; by default a fitting one."""
    cache: bool = True
    """Whether results of earlier builds are used."""

    @property
    def image(self) -> str:
        """Return the image's name."""
        return self.tag or (sudo_variant(self.recipe.tag) if self.sudo else self.recipe.tag)

    @property
    def base(self) -> str:
        """Return the base image; empty if only the Dockerfile knows."""
        return self.base_image or self.recipe.base_image

    @property
    def files(self) -> Files:
        """Return all files of the build's context."""
        return {**self.recipe.files, **self.authorities, **self.wheels}

    def network_for(self, environment: Mapping[str, str]) -> str | None:
        """Return the network of the build; None is the engine's default.

        It is ``none`` if all packages come from wheels. Behind a proxy or a private authority it is the machine's own,
        which is set up for that: a proxy on a loopback address, a resolver, a tunnel.
        """
        if self.network is not None:
            return self.network
        if self.wheels and self.recipe.bare and not self.sudo:
            return "none"
        return "host" if self.authorities or _proxies(environment) else None

    def parameters(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the engine's own parameters of a build."""
        arguments = _proxies(environment) | {"SUDO": "yes" if self.sudo else "no"}
        if index := environment.get("PIP_INDEX_URL"):
            arguments["PIP_INDEX_URL"] = index
        if self.base_image:
            arguments["BASE_IMAGE"] = self.base_image
        values = {
            "t": self.image,
            "rm": "1",
            "forcerm": "1",
            "nocache": "0" if self.cache else "1",
            "buildargs": json.dumps(arguments),
            "labels": json.dumps({RECIPE: self.recipe.digest}),
            "networkmode": self.network_for(environment),
            "platform": self.platform,
        }
        return {name: value for name, value in values.items() if value is not None}


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    names = (spelled for name in _PROXIES for spelled in (name, name.lower()))
    return {name: environment[name] for name in names if environment.get(name)}


#: How long to wait for an interrupted build to release its images, in seconds.
_LETTING_GO_SECONDS, _PAUSE_SECONDS = 10.0, 0.2


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
    log, before = BuildLog(), ""
    with suppress(ImageMissing):
        before = str(engine.inspect_image(order.image)["Id"])
    try:
        with pack_files(order.files) as context, map_docker_errors(f"build {order.image}"):
            url = f"{engine.api.base_url}/v{engine.api.api_version}/build"
            options: dict[str, Any] = {"headers": {"Content-Type": "application/x-tar"}, "stream": True, "timeout": None}
            parameters = order.parameters(os.environ)
            # Closing the response ends a build, and the library's own build() does not return it.
            with closing(engine.api.post(url, data=context, params=parameters, **options)) as response:
                if response.status_code >= 400:  # noqa: PLR2004 - of HTTP
                    refusal = next(_messages(response.iter_lines()), {})
                    log.error = str(refusal.get("message", f"status {response.status_code}")).strip()
                for line in (line for message in _messages(response.iter_lines()) for line in log.add(message)):
                    tell(line)
        if log.error:
            raise ImageBuildFailed(f"The image {order.image} was not built{log.failure()}")
        return _describe(engine.inspect_image(order.image))
    finally:
        deadline = time.monotonic() + _LETTING_GO_SECONDS
        while _remove_nameless(engine, log.created_images) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)  # in a thread: the engine has no event for the release of an image
        _remove_nameless(engine, [before])


def built_images(engine: Engine) -> list[BuiltImage]:
    """Return all images of ours that the engine has, sorted by name."""
    with map_docker_errors("list images"):
        images = [engine.api.inspect_image(image["Id"]) for image in engine.api.images(filters={"label": IMAGE})]
    return sorted((_describe(image) for image in images), key=lambda image: (image.names, image.id))


def _fetch_base(engine: Engine, order: BuildOrder, tell: Tell) -> None:
    """Pull the base image if the engine does not have it, or not for that platform."""
    if not order.base:
        return
    with suppress(ImageMissing):
        present = engine.inspect_image(order.base)
        if order.platform is None or order.platform.split("/")[1:2] == [present["Architecture"]]:
            return
    tell(f"fetching {order.base}")
    try:
        engine.pull(order.base, platform=order.platform)
    except (EngineRefused, ImageMissing) as exc:
        raise ImageMissing(
            f"The base image {order.base} is not here, and did not come from a registry. Name one that is here by "
            f"--base-image: any Debian or Ubuntu with Python 3.11 or newer serves. {exc}"
        ) from exc


def _messages(lines: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401 - requests is docker's, not ours
    for line in lines:
        with suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _remove_nameless(engine: Engine, images: Sequence[str]) -> int:
    """Remove images by their full or short ids if they have no name and are unused; return how many stay.

    The engine keeps images that others are built upon. An interrupted build releases its last one when its container has ended.
    """
    remaining: list[str] = []
    with suppress(EngineFailed), map_docker_errors("list images"):
        dangling = [str(image["Id"]) for image in engine.api.images(filters={"dangling": True})]
        remaining = [image for image in dangling if image in images or image.removeprefix("sha256:")[:12] in images]
    for image in tuple(remaining):
        with suppress(EngineFailed), map_docker_errors("remove an image"):
            engine.api.remove_image(image)
            remaining.remove(image)
    return len(remaining)


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


class BuildLog:
    """The messages of one build; a bounded part of them is kept."""

    def __init__(self) -> None:
        self.step = ""
        """The current step, such as ``3/19 RUN ...``."""
        self.error = ""
        """The reason of a failure."""
        self.created_images: list[str] = []
        """The short ids of intermediate images that this build created."""
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._rest = ""
        self._new = False

    def add(self, message: Mapping[str, object]) -> list[str]:
        """Fold one message; return the lines of it to show while the build runs."""
        if "error" in message:
            self.error = str(message["error"]).strip()
        if "stream" not in message:
            return []
        *lines, self._rest = (self._rest + str(message["stream"])).split("\n")
        self._rest = self._rest[-_LINE_CHARS:]
        return [shown for line in lines if (shown := self._line(_ANSI.sub("", line).rstrip()))]

    def failure(self) -> str:
        """Return the reason of the failure, the last output, and a hint."""
        output = "\n".join(f"  {line}" for line in self._tail)
        hint = next((hint for marks, hint in _HINTS if any(mark in output + self.error for mark in marks)), "")
        where = f" at step {self.step}" if self.step else ""
        parts = (f"{where}: {self.error or 'the engine ended it without a reason'}", output, hint)
        return "\n".join(part for part in parts if part)

    def _line(self, line: str) -> str | None:
        if step := _STEP.match(line):
            self.step = f"{step['step']} {' '.join(step['order'].split())}"
            self._tail.clear()
            self._new = not step["order"].startswith("FROM ")
            return f"[{step['step']}] {' '.join(step['order'].split())[:_LINE_CHARS]}"
        if line == " ---> Using cache":
            self._new = False
        elif match := _MADE.fullmatch(line):
            self.created_images += [match["id"]] if self._new else []
        elif line.strip() and not line.startswith((" ---> ", "Removing intermediate container ")):
            self._tail.append(line[:_LINE_CHARS])
        return None
