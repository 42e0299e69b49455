"""Whether an image serves for kernels: what it lacks, and how that is added. Pure."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from kernelexec.docker.images.image_info import ImageFacts

_PYTHON_MIN = "3.11"
_IPYKERNEL = re.compile(r"ipykernel\b[^;]*?>=(?P<version>[\d.]+)")
_NUMBER = re.compile(r"\d+")
_FACT_CHARS = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of an image: what was found, and how to add it where it is not ``ok``."""

    check: str
    ok: bool
    found: str
    mend: str = ""
    needed: bool = True
    """Whether kernels need it; what they do not need may be missing."""


def judge(image: str, facts: ImageFacts) -> list[Finding]:
    """All checks of an image."""
    wanted = ipykernel_min()
    upon = f"`kernelexec image build minimal --base-image {image} --tag NAME` builds an image upon it that has it."
    install = f"{upon} Or in a Dockerfile of yours: RUN python3 -m pip install 'ipykernel>={wanted}'"
    alone = facts.any_user and facts.failure is None
    how = facts.failure or "its Python runs for its own user only"
    return [
        Finding(
            "python", at_least(facts.python, _PYTHON_MIN), _found(facts.python), f"{_PYTHON_MIN} or newer is needed. {upon}"
        ),
        Finding(
            "ipykernel", at_least(facts.ipykernel, wanted), _found(facts.ipykernel), f"{wanted} or newer is needed. {install}"
        ),
        Finding(
            "jupyter_client", facts.jupyter_client is not None, _found(facts.jupyter_client), f"It comes with ipykernel. {upon}"
        ),
        Finding(
            "any user, read-only root",
            alone and facts.python is not None,
            "works" if alone and facts.python else how[:_FACT_CHARS] if facts.python else "nothing runs",
            "Everybody must be able to read the interpreter and its packages: chmod -R a+rX, and nothing below /root.",
        ),
        Finding("bash", "bash" in facts.shells, ", ".join(facts.shells) or "no shell", "sh is used.", needed=False),
        Finding("node", facts.node is not None, _found(facts.node), "Without it there is no JavaScript.", needed=False),
        Finding("git", facts.git is not None, _found(facts.git), "RUN apt-get install -y git", needed=False),
    ]


def python_min() -> str:
    """The oldest Python that our launcher works with."""
    return _PYTHON_MIN


def ipykernel_min() -> str:
    """The oldest ipykernel that our launcher works with, as this package requires it of its own machine too."""
    required = importlib.metadata.requires("kernelexec") or []
    found = [match["version"] for line in required if (match := _IPYKERNEL.match(line.replace(" ", "")))]
    return found[0] if found else "7.3"


def at_least(version: str | None, wanted: str) -> bool:
    """Whether that version, if there is one, is not older."""
    return version is not None and _numbers(version) >= _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(version)[:3])


def _found(version: str | None) -> str:
    return version or "missing"
