"""Which checkpoints are dropped, where there may be only so many: those of a user's request stay longest."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def find_excess(numbers: Collection[int], requested: Collection[int], limit: int) -> list[int]:
    """Return the checkpoints over the limit: ``limit`` of the requested ones stay, and automatic ones in the room left.

    The newest automatic one stays in any case, since the session goes on from it if its kernel ends.
    """
    by_request = sorted(number for number in numbers if number in requested)
    automatic = sorted(number for number in numbers if number not in requested)
    room = max(1, limit - len(by_request))
    return [*by_request[:-limit], *automatic[:-room]]


def find_excess_bytes(costs: Mapping[int, int], requested: Collection[int], limit_bytes: int) -> list[int]:
    """Return the checkpoints without which the others, or the newest alone, cost at most so much: automatic ones first."""
    excess, left = [], sum(costs.values())
    for number in sorted(set(costs) - {max(costs, default=0)}, key=lambda each: (each in requested, each)):
        if left <= limit_bytes:
            break
        excess.append(number)
        left -= costs[number]
    return excess
