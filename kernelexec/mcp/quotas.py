"""Quotas: how many sessions each client may have, and how often it may call.

A client is the authenticated client, or else the agent by its name or connection. All unknown agents share one quota.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernelexec.config.types import is_count
from kernelexec.errors import CapacityReached, InvalidConfig

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
        calls_per_minute: tool calls; after a pause of a minute all of them may come at once.
    """

    sessions: int | None = None
    calls_per_minute: int | None = None

    def check(self) -> None:
        """Refuse invalid limits.

        Raises:
            InvalidConfig: a limit is not a whole number of at least 1.
        """
        for name, value in (("max-sessions", self.sessions), ("calls-per-minute", self.calls_per_minute)):
            if value is not None and (not is_count(value) or value < 1):
                raise InvalidConfig(f"--{name} {value} must be a whole number, 1 or more; leave it out for no limit.")


class QuotaTracker:
    """Tracker of the sessions and calls of each client.

    Args:
        quotas: the limits.
        clock: returns seconds, to count calls per minute.
    """

    def __init__(self, quotas: Quotas, *, clock: Callable[[], float] = time.monotonic) -> None:
        quotas.check()
        self._quotas = quotas
        self._clock = clock
        self._calls: dict[str, float] = {}
        """The time at which each client has all its calls again; the least recent caller first."""
        self._sessions: dict[str, dict[str, None]] = {}
        self._making: Counter[str] = Counter()

    def count_call(self, client: str) -> None:
        """Count a call.

        Raises:
            CapacityReached: the client called too often; the message has the time of the next call.
        """
        limit = self._quotas.calls_per_minute
        if limit is None:
            return
        now = self._clock()
        full = max(self._calls.pop(client, now), now)
        wait = full + _MINUTE / limit - (now + _MINUTE)
        self._calls[client] = full if wait > _ROUNDING else full + _MINUTE / limit
        _forget_oldest(self._calls)
        if wait > _ROUNDING:
            message = f"Too many calls: the limit is {limit} a minute. Call again in {math.ceil(wait)} s; nothing ran."
            raise CapacityReached(message)

    @contextmanager
    def reserve_session(self, client: str, name: str, is_open: Callable[[str], bool]) -> Iterator[None]:
        """Reserve a session, by the executor's name, while the caller opens it; concurrent reservations count too.

        Raises:
            CapacityReached: the client has reached its limit.
        """
        limit, making = self._quotas.sessions, self._making
        if limit is None:
            yield
            return
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
