"""Which of those that were killed for want of memory was the kernel: the engine tells how many there were, not who."""

from __future__ import annotations

import time

#: How late the engine may tell of a kill that the kernel has told of already, in seconds.
_LATE_SECONDS = 2.0


class Kills:
    """Counts the kills that a kernel lived to tell of; one more is its own."""

    def __init__(self) -> None:
        self._told = 0
        self._events = 0
        self._to_come = 0
        self._until = 0.0

    def survived(self, told: int, events: int) -> None:
        """The kernel lives and counts ``told`` kills; the engine told of ``events`` so far, and may be late."""
        self._to_come = max(0, told - max(events, self._told))
        self._until = time.monotonic() + _LATE_SECONDS
        self._told, self._events = told, events

    def is_exceeded(self, kills: int) -> bool:
        """Whether there were more, ``kills`` in all since the kernel's start, than it lived to tell of."""
        return kills > self._told

    def was_one(self, events: int, *, flagged: bool) -> bool:
        """Whether the kernel, which a signal of that kind ended, was one of them.

        ``flagged`` is the engine's word that there was any: it stands in where the engine was away and told of none.
        """
        to_come = self._to_come if time.monotonic() < self._until else 0
        return events > self._events + to_come or (flagged and not self._told)
