"""One frozen tree of settings, read once; the only reader of the environment."""

from __future__ import annotations

from kernelexec.config.cache import ResultCache
from kernelexec.config.container import CREDENTIALS, HOME_INSIDE, Container, Mount
from kernelexec.config.container_detection import in_container
from kernelexec.config.files import FileBounds
from kernelexec.config.interpreter import Programs
from kernelexec.config.limits import Change
from kernelexec.config.loading import chosen_by, load, over, profile, seconds, ways_out
from kernelexec.config.paths import ContextPath
from kernelexec.config.profiles import Profile
from kernelexec.config.protected_paths import WORKSPACE_INSIDE, place_inside, source_refusal, system_refusal, target_refusal
from kernelexec.config.settings import (
    Budgets,
    Capacity,
    Config,
    Environment,
    Limits,
    OutputLimits,
)
from kernelexec.config.types import MIB, SHORTEST_TIMEOUT, size

__all__ = [
    "CREDENTIALS",
    "HOME_INSIDE",
    "MIB",
    "SHORTEST_TIMEOUT",
    "WORKSPACE_INSIDE",
    "Budgets",
    "Capacity",
    "Change",
    "Config",
    "Container",
    "ContextPath",
    "Environment",
    "FileBounds",
    "Limits",
    "Mount",
    "OutputLimits",
    "Profile",
    "Programs",
    "ResultCache",
    "chosen_by",
    "in_container",
    "load",
    "over",
    "place_inside",
    "profile",
    "seconds",
    "size",
    "source_refusal",
    "system_refusal",
    "target_refusal",
    "ways_out",
]
