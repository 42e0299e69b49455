"""What each client may have at once, and how often it may call; others never pay for it."""

from __future__ import annotations

import pytest

from kernelexec.errors import CapacityReached, InvalidConfig
from kernelexec.mcp.server_options import Quotas, QuotaTracker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_calls_come_back_with_time_and_each_client_has_its_own() -> None:
    clock = Clock()
    allotment = QuotaTracker(Quotas(calls_per_minute=6), clock=clock)
    for _ in range(6):
        allotment.count_call("a")
    with pytest.raises(CapacityReached, match=r"the limit is 6 a minute\. Call again in 10 s"):
        allotment.count_call("a")
    allotment.count_call("b")
    clock.now = 9.0
    with pytest.raises(CapacityReached, match="Call again in 1 s"):
        allotment.count_call("a")
    clock.now = 10.0
    allotment.count_call("a")
    clock.now = 10_000.0
    for _ in range(6):  # a long pause saves up no more than a minute's
        allotment.count_call("a")
    with pytest.raises(CapacityReached):
        allotment.count_call("a")


def test_a_refused_call_costs_nothing() -> None:
    clock = Clock()
    allotment = QuotaTracker(Quotas(calls_per_minute=1), clock=clock)
    allotment.count_call("a")
    for clock.now in range(1, 60):
        with pytest.raises(CapacityReached):
            allotment.count_call("a")
    clock.now = 60
    allotment.count_call("a")


def test_no_number_of_clients_fills_the_memory() -> None:
    allotment = QuotaTracker(Quotas(sessions=1, calls_per_minute=1))
    for number in range(20_000):
        allotment.count_call(str(number))
        with allotment.reserve_session(str(number), str(number), lambda _: False):
            pass
    assert len(allotment._calls) == len(allotment._sessions) == 10_000
    assert not allotment._making


@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_a_bound_is_a_number(value: int) -> None:
    with pytest.raises(InvalidConfig, match="must be a whole number, 1 or more"):
        QuotaTracker(Quotas(sessions=value))
