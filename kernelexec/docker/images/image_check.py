"""Checks whether kernels can run in an image, and how to add what is missing."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from kernelexec.docker.images.image_info import ImageFacts

#: The oldest Python that the launcher supports.
PYTHON_MIN = "3.11"
_IPYKERNEL = re.compile(r"ipykernel\b[^;]*?>=(?P<version>[\d.]+)")
_FACT_CHARS = 300


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """The result of one check of an image, and how to add what is missing."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    """Whether kernels need it."""

    def to_dict(self) -> dict[str, object]:
        """Return the check as JSON values."""
        return {"check": self.check, "ok": self.ok, "found": self.detail, "fix": self.remedy, "needed": self.needed}


def check_image(image: str, facts: ImageFacts) -> list[ImageCheck]:
    """Return all checks of an image."""
    wanted = ipykernel_min()
    upon = f"`kernelexec image build minimal --base-image {image} --tag NAME` builds an image upon it that has it."
    install = f"{upon} Or in a Dockerfile of yours: RUN python3 -m pip install 'ipykernel>={wanted}'"
    alone = facts.any_user and facts.failure is None
    how = facts.failure or "its Python runs for its own user only"
    return [
        _check_version("python", facts.python, PYTHON_MIN, f"{PYTHON_MIN} or newer is needed. {upon}"),
        _check_version("ipykernel", facts.ipykernel, wanted, f"{wanted} or newer is needed. {install}"),
        _check_version("jupyter_client", facts.jupyter_client, "", f"It comes with ipykernel. {upon}"),
        ImageCheck(
            "any user, read-only root",
            alone and facts.python is not None,
            "works" if alone and facts.python else how[:_FACT_CHARS] if facts.python else "nothing runs",
            "Everybody must be able to read the interpreter and its packages: chmod -R a+rX, and nothing below /root.",
        ),
        ImageCheck("bash", "bash" in facts.shells, ", ".join(facts.shells) or "no shell", "sh is used.", needed=False),
        _check_version("node", facts.node, "", "Without it there is no JavaScript.", needed=False),
        _check_version("git", facts.git, "", "RUN apt-get install -y git", needed=False),
    ]


def _check_version(name: str, version: str | None, wanted: str, remedy: str, *, needed: bool = True) -> ImageCheck:
    return ImageCheck(name, at_least(version, wanted), version or "missing", remedy, needed)


def ipykernel_min() -> str:
    """Return the oldest ipykernel that the launcher supports: the one that this package requires."""
    required = importlib.metadata.requires("kernelexec") or []
    versions = [match["version"] for line in required if (match := _IPYKERNEL.match(line.replace(" ", "")))]
    return versions[0] if versions else "7.3"


def at_least(version: str | None, wanted: str) -> bool:
    """Return whether a version, if any, is at least as new as the wanted one."""
    numbers, least = ([int(number) for number in re.findall(r"\d+", text or "")[:3]] for text in (version, wanted))
    return version is not None and numbers >= least
