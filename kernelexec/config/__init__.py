"""Settings: one frozen tree of checked models."""

from __future__ import annotations

from kernelexec.config.cache import ResultCache
from kernelexec.config.container import CREDENTIALS, HOME_INSIDE, Container, Mount
from kernelexec.config.container_detection import in_container
from kernelexec.config.interpreter import InterpreterOptions
from kernelexec.config.limits import LimitChange
from kernelexec.config.loading import isolation_help, isolation_variable, load, override, profile, seconds
from kernelexec.config.paths import ContextPath
from kernelexec.config.profiles import Profile
from kernelexec.config.protected_paths import (
    WORKSPACE_INSIDE,
    normalize_target,
    system_refusal,
    target_refusal,
    why_not_mountable,
)
from kernelexec.config.settings import (
    Budgets,
    Capacity,
    Config,
    Environment,
    FileBounds,
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
    "Config",
    "Container",
    "ContextPath",
    "Environment",
    "FileBounds",
    "InterpreterOptions",
    "LimitChange",
    "Limits",
    "Mount",
    "OutputLimits",
    "Profile",
    "ResultCache",
    "in_container",
    "isolation_help",
    "isolation_variable",
    "load",
    "normalize_target",
    "override",
    "profile",
    "seconds",
    "size",
    "system_refusal",
    "target_refusal",
    "why_not_mountable",
]
