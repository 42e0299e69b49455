"""Groups of tools, of which an operator serves some, and the options of a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.mcp.quotas import NO_QUOTAS, Quotas

#: Groups by name, with their tools. The group ``core`` is always served.
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

#: Source of packages: the network, for the installation only, or a directory of wheels; None is the network of cells.
Source = Path | Literal["network"] | None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server: its groups of tools, the source of ``install_packages``, and its quotas."""

    groups: frozenset[str] = field(default=frozenset(GROUPS))
    packages_from: Source = None
    quotas: Quotas = NO_QUOTAS
    allow_input: bool = False
    """Whether cells may call `input()`."""

    @property
    def tools(self) -> frozenset[str]:
        """The names of all tools in these groups."""
        return frozenset(tool for group in self.groups for tool in GROUPS[group])


ALL_TOOLS = ServerOptions()


def select_toolsets(groups: Iterable[str]) -> frozenset[str]:
    """Return the groups of these names and always ``core``, which the other groups need.

    Raises:
        InvalidRequest: a group is unknown, or there is no name.
    """
    names = [name.strip() for name in groups]
    for name in names:
        if name not in GROUPS:
            message = (
                f"tools={name!r:.100} is no group of tools{did_you_mean(name, GROUPS)}. The groups are {', '.join(GROUPS)}."
            )
            raise InvalidRequest(message)
    if not names:
        raise InvalidRequest(f"tools must name groups, separated by commas, of {', '.join(GROUPS)}.")
    return frozenset({"core", *names})
