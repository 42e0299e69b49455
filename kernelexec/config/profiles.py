"""Named limits of memory, CPUs and time."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, PlainSerializer

from kernelexec.config.types import MIB, Count, Cpus, FrozenModel, Seconds


class Profile(FrozenModel):
    """Limits of a kernel and its cells."""

    memory_bytes: Annotated[Count, Field(ge=6 * MIB)]
    """The memory of the kernel's container."""
    cpus: Cpus
    """The number of CPUs of the kernel's container."""
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


def _add_builtin_profiles(profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    if not all(name.strip() for name in profiles):
        raise ValueError("a profile's name must not be empty")
    return MappingProxyType({**PROFILES, **profiles})


def _as_dict(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    return dict(profiles)


#: Profiles by name: the configured ones and the predefined ones, which they can override.
Profiles = Annotated[Mapping[str, Profile], AfterValidator(_add_builtin_profiles), PlainSerializer(_as_dict)]
