"""Settings: a frozen tree of checked models."""

from __future__ import annotations

from kernelexec.config.container import CREDENTIALS, HOME_INSIDE, Container, Mount
from kernelexec.config.loading import (
    check_seconds,
    in_container,
    isolation_help,
    isolation_variable,
    load,
    override,
    with_limits,
)
from kernelexec.config.protected_paths import WORKSPACE_INSIDE, system_refusal
from kernelexec.config.settings import (
    Budgets,
    Capacity,
    Config,
    ContextPath,
    Environment,
    InterpreterOptions,
    Limits,
    OutputLimits,
    Profile,
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
    "InterpreterOptions",
    "Limits",
    "Mount",
    "OutputLimits",
    "Profile",
    "check_seconds",
    "in_container",
    "isolation_help",
    "isolation_variable",
    "load",
    "override",
    "parse_size",
    "system_refusal",
    "with_limits",
]
