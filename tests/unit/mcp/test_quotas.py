"""What each client may have at once, and how often it may call; others never pay for it."""

from __future__ import annotations

import pytest

from kernelexec.errors import CapacityReached, InvalidConfig
from kernelexec.mcp.quotas import Allotment, Quotas


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_calls_come_back_with_time_and_each_client_has_its_own() -> None:
    clock = Clock()
    allotment = Allotment(Quotas(calls_per_minute=6), clock=clock)
    for _ in range(6):
        allotment.call("a")
    with pytest.raises(CapacityReached, match=r"6 a minute are allowed here\. Call again in 10 s"):
        allotment.call("a")
    allotment.call("b")
    clock.now = 9.0
    with pytest.raises(CapacityReached, match="Call again in 1 s"):
        allotment.call("a")
    clock.now = 10.0
    allotment.call("a")
    clock.now = 10_000.0
    for _ in range(6):  # a long pause saves up no more than a minute's
        allotment.call("a")
    with pytest.raises(CapacityReached):
        allotment.call("a")


def test_a_refused_call_costs_nothing() -> None:
    clock = Clock()
    allotment = Allotment(Quotas(calls_per_minute=1), clock=clock)
    allotment.call("a")
    for clock.now in range(1, 60):
        with pytest.raises(CapacityReached):
            allotment.call("a")
    clock.now = 60
    allotment.call("a")


def test_no_number_of_clients_fills_the_memory() -> None:
    allotment = Allotment(Quotas(sessions=1, calls_per_minute=1))
    for number in range(20_000):
        allotment.call(str(number))
        with allotment.session(str(number), str(number), lambda _: False):
            pass
    assert len(allotment._calls) == len(allotment._sessions) == 10_000
    assert not allotment._making


@pytest.mark.parametrize("given", [0, -1, True, 1.5])
def test_a_bound_is_a_number(given: int) -> None:
    with pytest.raises(InvalidConfig, match="it is a whole number, 1 or more"):
        Allotment(Quotas(sessions=given))
