"""Groups of tools, of which an operator serves some, and the options of a server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from kernelexec.errors import InvalidConfig, InvalidRequest, did_you_mean
from kernelexec.mcp.quotas import Quotas

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
    "variables": ("list_variables", "set_variables", "get_variable"),
    "background": ("start_background", "background_output", "kill_background", "list_background"),
    "tests": ("run_tests",),
    "packages": ("install_packages",),
    "files": ("list_files", "read_file", "write_file", "edit_file", "delete_files"),
    "checkpoints": ("checkpoint", "restore", "undo", "branch", "promote"),
}

#: Seconds that a call blocks by default; clients end calls after a minute.
WAIT_SECONDS = 45.0
#: Seconds that the sessions of an older client's connection live without a request.
SILENT_SECONDS = 300.0

#: Where pictures are for a client.
PicturePlace = Literal["inline", "files", "both"]
#: Source of packages: the network, for the installation only, or a directory of wheels; None is the network of cells.
Source = Path | Literal["network"] | None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server: its groups of tools, the source of ``install_packages``, and its quotas."""

    groups: frozenset[str] = field(default=frozenset(GROUPS))
    packages_from: Source = None
    quotas: Quotas = field(default_factory=Quotas)
    allow_input: bool = False
    """Whether cells may call `input()`."""
    keep_kernels: bool = False
    """Whether the kernels outlive the server, for the next server in the workspace."""
    pictures: PicturePlace = "both"
    """Where the pictures of a cell are: in the answer, in files of the workspace that the answer names, or both."""
    links: bool = False
    """Whether answers link to files, as resources, instead of naming them: adapters of many frameworks cannot read links."""
    wait: float = WAIT_SECONDS
    """How many seconds a call blocks that does not say how long."""
    silent_seconds: float | None = SILENT_SECONDS
    """How long the sessions of an older client's connection live without a request; None for no limit."""

    def __post_init__(self) -> None:
        """Refuse an unknown place of pictures: it may come from a command line."""
        if self.pictures not in get_args(PicturePlace):
            raise InvalidConfig(f"--pictures {self.pictures!r:.50} must be inline, files or both.")

    @property
    def tools(self) -> list[str]:
        """The names of all tools in these groups, in their fixed order."""
        return [tool for group, tools in GROUPS.items() if group in self.groups for tool in tools]


ALL_TOOLS = ServerOptions()
#: The groups that `kernelexec mcp` serves by default: the lists of all tools take a tenth of a small model's context.
DEFAULT_GROUPS = frozenset({"core", "files", "packages"})


def select_toolsets(groups: Iterable[str]) -> frozenset[str]:
    """Return the groups of these names and always ``core``, which the other groups need; ``all`` names all of them.

    Raises:
        InvalidRequest: a group is unknown.
    """
    names = [name.strip() for name in groups]
    if names == ["all"]:
        return frozenset(GROUPS)
    for name in names:
        if name not in GROUPS:
            hint, listed = did_you_mean(name, GROUPS), ", ".join(GROUPS)
            raise InvalidRequest(f"tools={name!r:.100} is no group of tools{hint}. The groups are {listed}, and all.")
    return frozenset({"core", *names})
