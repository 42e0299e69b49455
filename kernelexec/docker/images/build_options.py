"""What the engine is told to build. Pure: which network, which proxies and which files a build gets is decided here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelexec.config.images import with_sudo
from kernelexec.docker.images.recipes import Files, Recipe

#: Every image of ours says by it which one it is; with ``RECIPE``, of which state of its files.
IMAGE, RECIPE = "kernelexec.image", "kernelexec.recipe"
#: The engine gives these to each step and keeps them out of the image and its history.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """One image to be built."""

    recipe: Recipe
    base_image: str | None = None
    """What to build upon, instead of what the recipe names."""
    authorities: Files = field(default_factory=dict)
    """Certificate authorities that the image is to trust."""
    wheels: Files = field(default_factory=dict)
    """Python packages; if there are any, no index is asked."""
    sudo: bool = False
    """Whether users may become root in it; the image's name says so too."""
    platform: str | None = None
    """As ``linux/arm64``; by default the engine's own."""
    tag: str | None = None
    """What to call it, instead of the recipe's own name."""
    network: str | None = None
    """``none``, ``host``, or one of the engine's; by default what fits."""
    cache: bool = True
    """Whether steps that were done before are not done again."""

    @property
    def image(self) -> str:
        """What the image will be called."""
        return self.tag or (with_sudo(self.recipe.tag) if self.sudo else self.recipe.tag)

    @property
    def base(self) -> str:
        """What it builds upon; empty where only the Dockerfile knows."""
        return self.base_image or self.recipe.base_image

    @property
    def files(self) -> Files:
        """All files of the build's context."""
        return {**self.recipe.files, **self.authorities, **self.wheels}

    def network_for(self, environment: Mapping[str, str]) -> str | None:
        """The network of the build; None is the engine's default.

        None at all where all comes from wheels. Behind a proxy or a private authority, the machine's own, since this is
        the one that was made to work there: a proxy on a loopback address, a resolver, a tunnel.
        """
        if self.network is not None:
            return self.network
        if self.wheels and self.recipe.bare and not self.sudo:
            return "none"
        return "host" if self.authorities or _proxies(environment) else None

    def parameters(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The engine's own parameters of a build."""
        arguments = _proxies(environment) | {"SUDO": "yes" if self.sudo else "no"}
        if index := environment.get("PIP_INDEX_URL"):
            arguments["PIP_INDEX_URL"] = index
        if self.base_image:
            arguments["BASE_IMAGE"] = self.base_image
        given = {
            "t": self.image,
            "rm": "1",
            "forcerm": "1",
            "nocache": "0" if self.cache else "1",
            "buildargs": json.dumps(arguments),
            "labels": json.dumps({RECIPE: self.recipe.digest}),
            "networkmode": self.network_for(environment),
            "platform": self.platform,
        }
        return {name: value for name, value in given.items() if value is not None}


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    names = (spelled for name in _PROXIES for spelled in (name, name.lower()))
    return {name: environment[name] for name in names if environment.get(name)}
