"""The options of a build. Pure: its network, its proxies and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelexec.config.images import sudo_variant
from kernelexec.docker.images.recipes import Files, Recipe

#: Labels of every image of ours: the name of its recipe, and with ``RECIPE`` the digest of its files.
IMAGE, RECIPE = "kernelexec.image", "kernelexec.recipe"
#: The engine passes these to each step, and keeps them out of the image and its history.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")


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
