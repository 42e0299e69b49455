"""The groups of tools: an operator serves some of them, and models have fewer to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelexec.errors import InvalidRequest, nearest
from kernelexec.mcp.quotas import NO_QUOTAS, Quotas

#: What an operator names, and what of it is served: sessions and their cells; the rest stands beside them.
GROUPS: dict[str, tuple[str, ...]] = {
    "core": (
        "execute_code",
        "execute_command",
        "wait_execution",
        "read_output",
        "interrupt_kernel",
        "restart_kernel",
        "create_session",
        "list_sessions",
        "close_session",
    ),
    "variables": ("list_variables",),
    "background": ("start_background", "background_output", "kill_background", "list_background"),
    "tests": ("run_tests",),
    "packages": ("install_packages",),
    "files": ("list_files", "read_file", "write_file", "delete_files"),
}

#: Where packages come from: the network, for the installation only, or a directory of wheels; None is what cells reach.
Source = Path | Literal["network"] | None


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server has for its clients: groups of tools, where ``install_packages`` takes packages from, and how much."""

    groups: frozenset[str] = field(default=frozenset(GROUPS))
    packages_from: Source = None
    quotas: Quotas = NO_QUOTAS
    allow_input: bool = False
    """Whether cells may ask, by `input()`."""

    @property
    def tools(self) -> frozenset[str]:
        """The names of all tools in its groups."""
        return frozenset(tool for group in self.groups for tool in GROUPS[group])


EVERYTHING = Offer()


def chosen(groups: Iterable[str]) -> frozenset[str]:
    """The groups that are named, ``core`` among them always: nothing works without it.

    Raises:
        InvalidRequest: there is no such group, or none is named.
    """
    found = [name.strip() for name in groups]
    for name in found:
        if name not in GROUPS:
            message = f"tools={name!r:.100} is no group of tools{nearest(name, GROUPS)}: there are {', '.join(GROUPS)}."
            raise InvalidRequest(message)
    if not found:
        raise InvalidRequest(f"tools: name groups of tools with commas between them, of {', '.join(GROUPS)}.")
    return frozenset({"core", *found})
