"""What each client may have at once, and how often it may call; others never pay for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.support.command_line import BOUND
from tests.support.mcp_clients import ERAS, text_of
from tests.support.mcp_server import Server, create_token, serving
from tests.support.pace import until


def test_the_command_refuses_a_bound_that_is_none(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "mcp", "--isolation", "local", "--max-sessions", "0")
    assert done.returncode == 125
    assert "--max-sessions 0 must be a whole number" in done.stderr


@pytest.mark.parametrize("era", ERAS)
def test_a_client_has_so_many_sessions_and_no_more(server: Server, era: str) -> None:
    with (
        server.client(era, x_kernelexec_agent=f"few-{era}") as item,
        server.client(era, x_kernelexec_agent=f"other-{era}") as other,
    ):
        asked = [item.start("execute_code", code="1", session=f"s{number}") for number in range(6)]
        answers = [text_of(call.result(BOUND)) for call in asked]
        assert sum("You have 2 open sessions and your limit is 2: end one with close_session." in text for text in answers) == 4
        assert "your limit is 2" in item.text("create_session")
        assert other.text("execute_code", code="1") == "1"
        opened = [row["name"] for row in item.rows("list_sessions", "sessions")]
        assert len(opened) == 2
        assert item.text("execute_code", code="1", session=opened[0]) == "1"
        item.text("close_session", session=opened[0])
        handle = item.call("create_session").structured_content["session"]  # type: ignore[index]
        assert item.text("execute_code", code="1", session=handle) == "1"
        assert "your limit is 2" in item.text("execute_code", code="1", session="another")


def test_names_of_agents_are_no_way_around_the_quota_of_an_authenticated_user(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = create_token(tokens, "alice")
    with serving(tmp_path, "--tokens", str(tokens), "--max-sessions", "1") as server:
        with server.client(authorization=f"Bearer {token}", x_kernelexec_agent="one") as agent:
            assert agent.text("execute_code", code="1") == "1"
        with server.client(authorization=f"Bearer {token}", x_kernelexec_agent="two") as agent:
            assert "your limit is 1" in agent.text("execute_code", code="1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("quotas")
    with serving(directory, "--max-sessions", "2", "--calls-per-minute", "30") as server:
        yield server


def test_a_client_that_calls_too_often_learns_when_to_call_again(server: Server) -> None:
    with server.client(x_kernelexec_agent="often") as often, server.client(x_kernelexec_agent="seldom") as seldom:
        for _ in range(40):
            often.do("list_tools")
        answers = list[str]()

        def is_refused() -> bool:
            answers.append(often.text("list_sessions"))
            return sum("Too many calls: the limit is 30 a minute." in text for text in answers) >= 5

        until(is_refused)
        assert len(answers) >= 30
        assert not seldom.call("list_sessions").is_error
