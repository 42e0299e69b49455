"""What each client may have at once, and how often it may call; others never pay for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec.errors import CapacityReached, InvalidConfig
from kernelexec.mcp.quotas import Allotment, Quotas
from tests.mcp_clients import ERAS, text_of
from tests.test_cli import BOUND, kernelexec
from tests.test_mcp_http import Server, made, serving


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


def test_the_command_refuses_a_bound_that_is_none(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "mcp", "--isolation", "local", "--max-sessions", "0")
    assert done.returncode == 125
    assert "--max-sessions 0: it is a whole number" in done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("quotas")
    with serving(place, "--max-sessions", "2", "--calls-per-minute", "30") as found:
        yield found


@pytest.mark.parametrize("era", ERAS)
def test_a_client_has_so_many_sessions_and_no_more(server: Server, era: str) -> None:
    with (
        server.client(era, x_kernelexec_agent=f"few-{era}") as one,
        server.client(era, x_kernelexec_agent=f"other-{era}") as other,
    ):
        asked = [one.start("execute_code", code="1", session=f"s{number}") for number in range(6)]
        said = [text_of(call.result(BOUND)) for call in asked]
        assert sum("You have 2 open sessions, your limit is 2: close_session ends one." in text for text in said) == 4
        assert "your limit is 2" in one.text("create_session")
        assert "[ok:" in other.text("execute_code", code="1")
        opened = [row["name"] for row in one.rows("list_sessions", "sessions")]
        assert len(opened) == 2
        assert "[ok:" in one.text("execute_code", code="1", session=opened[0])
        one.text("close_session", session=opened[0])
        handle = one.call("create_session").structured_content["session"]  # type: ignore[index]
        assert "[ok:" in one.text("execute_code", code="1", session=handle)
        assert "your limit is 2" in one.text("execute_code", code="1", session="another")


def test_a_client_that_calls_too_often_is_told_when_to_call_again(server: Server) -> None:
    with server.client(x_kernelexec_agent="often") as often, server.client(x_kernelexec_agent="seldom") as seldom:
        for _ in range(40):
            often.do("list_tools")
        said = [often.text("list_sessions") for _ in range(40)]
        assert sum("Too many calls: 30 a minute are allowed here." in text for text in said) >= 5
        assert not seldom.call("list_sessions").is_error


def test_names_of_agents_are_no_way_around_the_quota_of_who_is_authenticated(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = made(tmp_path, tokens, "alice")
    with serving(tmp_path, "--tokens", str(tokens), "--max-sessions", "1") as server:
        with server.client(authorization=f"Bearer {token}", x_kernelexec_agent="one") as agent:
            assert "[ok:" in agent.text("execute_code", code="1")
        with server.client(authorization=f"Bearer {token}", x_kernelexec_agent="two") as agent:
            assert "your limit is 1" in agent.text("execute_code", code="1")
