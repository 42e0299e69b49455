"""Options of a server: groups of tools for the operator to choose from, and quotas of clients.

A quota's client is the authenticated client, else the agent by name or connection. All unknown agents share a quota.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from kernelexec.config.types import is_count
from kernelexec.errors import CapacityReached, InvalidConfig, InvalidRequest, did_you_mean

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
#: The groups that `kernelexec mcp` serves by default: the lists of all tools take a tenth of a small model's context.
DEFAULT_GROUPS = frozenset({"core", "files", "packages"})
#: Seconds that a call blocks by default; clients end calls after a minute.
WAIT_SECONDS = 45.0
#: Seconds that the sessions of an older client's connection live without a request.
SILENT_SECONDS = 300.0
#: Where pictures are for a client.
PicturePlace = Literal["inline", "files", "both"]
#: Source of packages: the network, for the installation only, or a directory of wheels; None is the network of cells.
Source = Path | Literal["network"] | None
#: Number of clients with a count; beyond it the least recent caller loses its count.
_CLIENTS_MAX = 10_000
_MINUTE = 60.0
#: Seconds by which sums of fractions of a minute may be too large.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of each client; None means no limit.

    Args:
        sessions: open sessions.
        calls_per_minute: calls of tools and reads of resources; after a minute's pause all may come at once.

    Raises:
        InvalidConfig: a limit is not a whole number of at least 1.
    """

    sessions: int | None = None
    calls_per_minute: int | None = None

    def __post_init__(self) -> None:
        """Refuse invalid limits."""
        for name, value in (("max-sessions", self.sessions), ("calls-per-minute", self.calls_per_minute)):
            if value is not None and (not is_count(value) or value < 1):
                raise InvalidConfig(f"--{name} {value} must be a whole number, 1 or more; leave it out for no limit.")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server with any transport."""

    groups: frozenset[str] = field(default=frozenset(GROUPS))
    packages_from: Source = None
    quotas: Quotas = field(default_factory=Quotas)
    allow_input: bool = False
    """Whether cells may call `input()`."""
    keep_kernels: bool = False
    """Whether kernels outlive the server and wait for the next server in the workspace."""
    pictures: PicturePlace = "both"
    """Place of a cell's pictures: in the answer, in workspace files named by the answer, or both."""
    links: bool = False
    """Whether answers have resource links to files instead of names; adapters of many frameworks cannot read links."""
    wait: float = WAIT_SECONDS
    """Seconds for a call without ``wait`` to block."""
    silent_seconds: float | None = SILENT_SECONDS
    """Seconds for the sessions of an older client's connection to live without a request; None for no limit."""

    def __post_init__(self) -> None:
        """Refuse unknown places of pictures: the value may come from a command line."""
        if self.pictures not in get_args(PicturePlace):
            raise InvalidConfig(f"--pictures {self.pictures!r:.50} must be inline, files or both.")

    @property
    def tools(self) -> list[str]:
        """The names of all tools in these groups, in their fixed order."""
        return [tool for group, tools in GROUPS.items() if group in self.groups for tool in tools]


ALL_TOOLS = ServerOptions()


def select_toolsets(groups: Iterable[str]) -> frozenset[str]:
    """Return the named groups and always ``core``, the base of the other groups; ``all`` stands for all groups.

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


def read_host(url: str) -> str | None:
    """Return the host of an HTTP address, in lower case; None for any other text."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.port != 0:
            return parts.hostname
    return None


class QuotaTracker:
    """Tracker of sessions and calls by client.

    Args:
        quotas: the limits.
        clock: returns monotonic seconds.
    """

    def __init__(self, quotas: Quotas, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._clock = clock
        self._calls: dict[str, float] = {}
        """The time of each client's full recovery, with all calls available; the least recent caller first."""
        self._sessions: dict[str, dict[str, None]] = {}
        self._making: Counter[str] = Counter()

    def count_call(self, client: str) -> None:
        """Count a call.

        Raises:
            CapacityReached: the client called too often; the message has the seconds until the next call.
        """
        limit = self._quotas.calls_per_minute
        if limit is None:
            return
        # Generic cell rate algorithm: a call moves the time of the full recovery by 60 s / limit. If that time would be more
        # than a minute ahead, all calls are used up. A refused call moves nothing, so a client that retries is not shut out.
        now = self._clock()
        full = max(self._calls.pop(client, now), now)
        wait = full + _MINUTE / limit - (now + _MINUTE)
        self._calls[client] = full if wait > _ROUNDING else full + _MINUTE / limit  # removed above, so now the last key
        _forget_oldest(self._calls)  # clients without authentication choose their names, so there is no other bound
        if wait > _ROUNDING:
            message = f"Too many calls: the limit is {limit} a minute. Call again in {math.ceil(wait)} s; nothing ran."
            raise CapacityReached(message)

    @contextmanager
    def reserve_session(self, client: str, name: str, is_open: Callable[[str], bool]) -> Iterator[None]:
        """Reserve a session, by the executor's name, while the block opens it; concurrent reservations count too.

        Raises:
            CapacityReached: the client has reached its limit.
        """
        limit, making = self._quotas.sessions, self._making
        if limit is None:
            yield
            return
        # A session is not open while it is being made, so `making` keeps it in the count. Sessions that have ended drop out.
        mine = {session: None for session in self._sessions.pop(client, {}) if is_open(session) or making[session]}
        is_allowed = name in mine or is_open(name) or len(mine) < limit
        self._sessions[client] = mine | {name: None} if is_allowed else mine
        if not is_allowed:
            raise CapacityReached(f"You have {len(mine)} open sessions and your limit is {limit}: end one with close_session.")
        making[name] += 1
        try:
            yield
        finally:
            making[name] -= 1
            making += Counter()  # removes names with a count of 0
        _forget_oldest(self._sessions)


def _forget_oldest(clients: dict[str, Any]) -> None:
    while len(clients) > _CLIENTS_MAX:
        del clients[next(iter(clients))]
