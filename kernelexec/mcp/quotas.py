"""What each client may have at once, and how often it may call: nobody takes what others need.

A client is who is authenticated; where nobody is, the agent by its name or its connection; who cannot be known shares one
quota with all such.
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

#: How many clients' calls are counted; of more, the one that called longest ago begins anew.
_CLIENTS = 10_000
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """The bounds of each client; None is no bound.

    Args:
        sessions: open sessions.
        calls_per_minute: tool calls; as many may come at once after a pause of a minute.
    """

    sessions: int | None = None
    calls_per_minute: int | None = None

    def check(self) -> None:
        """Refuse what bounds nothing.

        Raises:
            InvalidConfig: see above.
        """
        for name, value in (("max-sessions", self.sessions), ("calls-per-minute", self.calls_per_minute)):
            if value is not None and (not is_count(value) or value < 1):
                message = f"--{name} {value}: it is a whole number, 1 or more; leave it out for no bound."
                raise InvalidConfig(message)


NO_QUOTAS = Quotas()


class Allotment:
    """What clients have of their quotas.

    Args:
        quotas: the bounds.
        clock: seconds, for what is counted by time.
    """

    def __init__(self, quotas: Quotas = NO_QUOTAS, *, clock: Callable[[], float] = time.monotonic) -> None:
        quotas.check()
        self._quotas = quotas
        self._clock = clock
        self._calls: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._sessions: dict[str, dict[str, None]] = {}
        self._making: Counter[str] = Counter()

    def call(self, client: str) -> None:
        """Take note of a call.

        Raises:
            CapacityReached: too many came; the message says when the next may.
        """
        most = self._quotas.calls_per_minute
        if most is None:
            return
        now = self._clock()
        left, since = self._calls.pop(client, (float(most), now))
        left = min(float(most), left + (now - since) * most / _MINUTE)
        self._calls[client] = (left - 1 if left >= 1 else left), now
        while len(self._calls) > _CLIENTS:
            self._calls.popitem(last=False)
        if left < 1:
            seconds = math.ceil((1 - left) * _MINUTE / most)
            message = f"Too many calls: {most} a minute are allowed here. Call again in {seconds} s; nothing ran."
            raise CapacityReached(message)

    @contextmanager
    def session(self, client: str, name: str, is_open: Callable[[str], bool]) -> Iterator[None]:
        """Make a session within, by the executor's name of it, or have one that there is; who comes at once counts too.

        Raises:
            CapacityReached: the client has as many as it may.
        """
        if self._quotas.sessions is None:
            yield
            return
        mine, making = self._sessions.pop(client, {}), self._making
        mine = {one: None for one in mine if is_open(one) or making[one]}
        known = name in mine or is_open(name)
        self._sessions[client] = mine | {name: None} if known or len(mine) < self._quotas.sessions else mine
        if name not in self._sessions[client]:
            message = f"You have {len(mine)} open sessions, your limit is {self._quotas.sessions}: close_session ends one."
            raise CapacityReached(message)
        making[name] += 1
        try:
            yield
        finally:
            making[name] -= 1
            making += Counter()  # those that are none are forgotten
        while len(self._sessions) > _CLIENTS:
            self._sessions.pop(next(iter(self._sessions)))
