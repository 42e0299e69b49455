"""Settings: one frozen tree of checked models."""

from __future__ import annotations

from kernelexec.config.cache import ResultCache
from kernelexec.config.container import CREDENTIALS, HOME_INSIDE, Container, Mount
from kernelexec.config.container_detection import in_container
from kernelexec.config.interpreter import InterpreterOptions
from kernelexec.config.limits import LimitChange
from kernelexec.config.loading import check_seconds, find_profile, isolation_help, isolation_variable, load, override
from kernelexec.config.paths import ContextPath
from kernelexec.config.profiles import Profile
from kernelexec.config.protected_paths import (
    WORKSPACE_INSIDE,
    mount_refusal,
    normalize_target,
    system_refusal,
    target_refusal,
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
from kernelexec.config.types import MIB, SHORTEST_TIMEOUT, parse_size

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
    "check_seconds",
    "find_profile",
    "in_container",
    "isolation_help",
    "isolation_variable",
    "load",
    "mount_refusal",
    "normalize_target",
    "override",
    "parse_size",
    "system_refusal",
    "target_refusal",
]
