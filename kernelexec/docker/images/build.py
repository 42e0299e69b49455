"""Build images by the engine, and list them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from kernelexec.config.container import NAMES, sudo_variant
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.recipes import Files, Recipe, pack_files, recipe
from kernelexec.errors import EngineFailed, ImageBuildFailed, ImageMissing
from kernelexec.results import strip_ansi

#: Labels of every image of ours: the name of its recipe, and with ``RECIPE`` the digest of its files.
IMAGE, RECIPE = "kernelexec.image", "kernelexec.recipe"
#: The engine passes these to each step, and keeps them out of the image and its history.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
#: The short id of an intermediate image in the engine's output.
_INTERMEDIATE = re.compile(r"^ ---> ([0-9a-f]{12})$", re.MULTILINE)
_OUTPUT_CHARS = 10_000
#: How long to wait for an interrupted build to release its images, in seconds.
_RELEASE_SECONDS, _PAUSE_SECONDS = 10.0, 0.2
_HINTS = (
    (
        ("pull access denied", "manifest unknown", "/v2/"),
        "The base image is not here, and no registry gave it: name a Debian or Ubuntu with Python 3.11+ by --base-image.",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "certificate is NOT trusted", "x509:"),
        "A certificate authority of your network is missing: give it by --extra-ca FILE.",
    ),
    (
        ("Temporary failure in name resolution", "Could not resolve", "Network is unreachable", "failed to create endpoint"),
        "The build has no network: try --network host, or build offline by --wheels from a base that has all Debian packages.",
    ),
    (("No matching distribution found",), "The index, or the wheels' directory, does not have it for this Python."),
    (("No space left on device",), "Free some space where the container engine keeps its images."),
    (("exec format error",), "The base image is of another architecture than this machine emulates."),
)


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """An image to be built."""

    recipe: Recipe
    added: Files = field(default_factory=dict)
    """Files besides the recipe's own: certificate authorities, which the image will trust, and wheels. If there are wheels, no
    index is used."""
    base_image: str | None = None
    """The base image, instead of the recipe's own."""
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
    def files(self) -> Files:
        """Return all files of the build's context."""
        return {**self.recipe.files, **self.added}

    def options(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the engine's own options of the build.

        Behind a proxy or a private authority the build uses the machine's network, which reaches the proxy and the resolver.
        """
        names = (spelled for name in _PROXIES for spelled in (name, name.lower()))
        proxies = {name: environment[name] for name in names if environment.get(name)}
        arguments = proxies | {"SUDO": "yes" if self.sudo else "no"}
        if index := environment.get("PIP_INDEX_URL"):
            arguments["PIP_INDEX_URL"] = index
        if self.base_image:
            arguments["BASE_IMAGE"] = self.base_image
        needs_host = proxies or any(name.startswith("extra-ca/") and name.endswith(".crt") for name in self.files)
        return {
            "tag": self.image,
            "rm": True,
            "forcerm": True,
            "nocache": not self.cache,
            "buildargs": arguments,
            "labels": {RECIPE: self.recipe.digest},
            "network_mode": self.network or ("host" if needs_host else None),
            "platform": self.platform,
        }


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image of ours in the engine."""

    id: str
    names: tuple[str, ...]
    """Its names; empty if a newer image took them."""
    recipe: str
    """The name of its recipe."""
    current: bool
    """Whether its recipe is the current one; False if the recipe changed since, or is unknown here."""
    size_bytes: int

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> BuiltImage:
        """Read the engine's description of an image."""
        labels = answer["Config"].get("Labels") or {}
        name = str(labels.get(IMAGE, ""))
        return cls(
            id=str(answer["Id"]),
            names=tuple(str(tag).removesuffix(":latest") for tag in answer.get("RepoTags") or ()),
            recipe=name,
            current=name in NAMES and labels.get(RECIPE) == recipe(name).digest,
            size_bytes=int(answer["Size"]),
        )


def build_image(engine: Engine, order: BuildOrder, tell: Callable[[str], None] = lambda _text: None) -> BuiltImage:
    """Build an image, which may take minutes; ``tell`` gets the output as it comes.

    Intermediate images are removed after any outcome, and so is the former image of the name, unless in use. An exception
    in ``tell`` or Ctrl+C ends the build in the engine too.

    Raises:
        ImageBuildFailed: a step failed; ``tell`` has the output.
        EngineRefused, EngineUnavailable: the build did not begin.
    """
    output, error, previous, intermediate = "", "", "", set[str]()
    with suppress(ImageMissing):
        previous = str(engine.inspect_image(order.image)["Id"])[7:19]  # the short id, after ``sha256:``
    with map_docker_errors("list images"):  # an image that the build reuses belongs to the cache, and stays
        known = {image[7:19] for image in engine.api.images(quiet=True, all=True)}
    try:
        with pack_files(order.files) as context, map_docker_errors(f"build {order.image}"):
            messages = engine.api.build(fileobj=context, custom_context=True, decode=True, **order.options(os.environ))
            with closing(messages):  # which ends the build, if it has not ended
                for message in messages:
                    if text := strip_ansi(str(message.get("stream", ""))):
                        tell(text)
                        intermediate.update(_INTERMEDIATE.findall(text))
                        output = (output + text)[-_OUTPUT_CHARS:]
                    error = str(message.get("error", error)).strip()
        if error:
            hint = next((hint for marks, hint in _HINTS if any(mark in output + error for mark in marks)), "")
            upon = f" upon {order.base_image}" if order.base_image else ""
            raise ImageBuildFailed(f"The image {order.image} was not built{upon}: {error}\n{hint}".rstrip())
        return BuiltImage.read(engine.inspect_image(order.image))
    finally:
        deadline = time.monotonic() + _RELEASE_SECONDS
        while not _remove_nameless(engine, intermediate - known) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)  # in a thread: the engine has no event for the release of an image
        _remove_nameless(engine, {previous})


def built_images(engine: Engine) -> list[BuiltImage]:
    """Return all images of ours in the engine, sorted by name."""
    with map_docker_errors("list images"):
        images = [engine.api.inspect_image(image["Id"]) for image in engine.api.images(filters={"label": IMAGE})]
    return sorted(map(BuiltImage.read, images), key=lambda image: (image.names, image.id))


def _remove_nameless(engine: Engine, images: Collection[str]) -> bool:
    """Remove images by their short ids if they have no name and are unused; return whether none stays.

    The engine keeps the bases of other images. An interrupted build uses its last image until its container has ended.
    """
    remaining: list[str] = []
    with suppress(EngineFailed), map_docker_errors("list images"):
        dangling = engine.api.images(quiet=True, filters={"dangling": True})
        remaining = [str(image) for image in dangling if image[7:19] in images]
    for image in tuple(remaining):
        with suppress(EngineFailed), map_docker_errors("remove an image"):
            engine.api.remove_image(image)
            remaining.remove(image)
    return not remaining
