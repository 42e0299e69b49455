"""Named amounts of memory, processor time and patience."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer

from kernelexec.config.types import MIB, Count, Cpus, FrozenModel, Seconds


class Profile(FrozenModel):
    """What a kernel may use, and how long its cells may run."""

    memory_bytes: Annotated[Count, Field(ge=6 * MIB)]
    """The memory of its container."""
    cpus: Cpus
    """How many processors' time its container gets."""
    timeout: Seconds
    """How long a cell may run, in seconds."""


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "simple": Profile(memory_bytes=256 * MIB, cpus=0.5, timeout=30.0),
        "medium": Profile(memory_bytes=512 * MIB, cpus=1.0, timeout=120.0),
        "complex": Profile(memory_bytes=1024 * MIB, cpus=2.0, timeout=600.0),
        "default": Profile(memory_bytes=1024 * MIB, cpus=1.0, timeout=300.0),
    }
)


def _with_ours(profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    if not all(name.strip() for name in profiles):
        raise ValueError("a profile has a name")
    return MappingProxyType({**PROFILES, **profiles})


def _plain(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    return dict(profiles)


#: Profiles by name: those given, and those of ours whose names are not among them.
Profiles = Annotated[Mapping[str, Profile], AfterValidator(_with_ours), PlainSerializer(_plain)]
