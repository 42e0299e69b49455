"""Quotas: how many sessions each client may have, and how often it may call.

A client is the authenticated client, or else the agent by its name or connection. All unknown agents share one quota.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernelexec.config.types import is_count
from kernelexec.errors import CapacityReached, InvalidConfig

#: Number of clients with a count; beyond it the least recent caller loses its count.
_CLIENTS_MAX = 10_000
_MINUTE = 60.0


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
                message = f"--{name} {value} must be a whole number, 1 or more; leave it out for no limit."
                raise InvalidConfig(message)


NO_QUOTAS = Quotas()


class QuotaTracker:
    """Tracker of the sessions and calls of each client.

    Args:
        quotas: the limits.
        clock: returns seconds, to count calls per minute.
    """

    def __init__(self, quotas: Quotas = NO_QUOTAS, *, clock: Callable[[], float] = time.monotonic) -> None:
        quotas.check()
        self._quotas = quotas
        self._clock = clock
        self._calls: OrderedDict[str, tuple[float, float]] = OrderedDict()
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
        calls_left, since = self._calls.pop(client, (float(limit), now))
        calls_left = min(float(limit), calls_left + (now - since) * limit / _MINUTE)
        self._calls[client] = (calls_left - 1 if calls_left >= 1 else calls_left), now
        while len(self._calls) > _CLIENTS_MAX:
            self._calls.popitem(last=False)
        if calls_left < 1:
            seconds = math.ceil((1 - calls_left) * _MINUTE / limit)
            message = f"Too many calls: the limit is {limit} a minute. Call again in {seconds} s; nothing ran."
            raise CapacityReached(message)

    @contextmanager
    def reserve_session(self, client: str, name: str, is_open: Callable[[str], bool]) -> Iterator[None]:
        """Reserve a session, by the executor's name, while the caller opens it; concurrent reservations count too.

        Raises:
            CapacityReached: the client has reached its limit.
        """
        if self._quotas.sessions is None:
            yield
            return
        mine, making = self._sessions.pop(client, {}), self._making
        mine = {session: None for session in mine if is_open(session) or making[session]}
        is_known = name in mine or is_open(name)
        self._sessions[client] = mine | {name: None} if is_known or len(mine) < self._quotas.sessions else mine
        if name not in self._sessions[client]:
            message = (
                f"You have {len(mine)} open sessions and your limit is {self._quotas.sessions}: end one with close_session."
            )
            raise CapacityReached(message)
        making[name] += 1
        try:
            yield
        finally:
            making[name] -= 1
            making += Counter()  # removes names with a count of 0
        while len(self._sessions) > _CLIENTS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
