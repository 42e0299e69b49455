"""What a model is told where its output is not all there, or it cannot be known how something ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mcp_clients import ERAS, Agent, connected, record_of, text_of, transport


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(transport(tmp_path_factory.mktemp("served")), ERAS[0]) as found:
        yield found


def test_a_picture_that_could_not_be_kept_is_told_of(agent: Agent) -> None:
    code = (
        "import os\nfrom IPython.display import Image\nImage(b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(20_000_000), format='png')"
    )
    answer = agent.call("execute_code", code=code, session="pictures")
    assert record_of(answer)["truncated"]
    assert "(no output)" not in text_of(answer)
    assert "1 output(s) were too large to keep" in text_of(answer)
    assert "too large" not in agent.text("execute_code", code="1", session="pictures")


def test_displays_over_their_budget_are_told_of(agent: Agent) -> None:
    code = "for n in range(5): display({'text/plain': f'shown {n}', 'application/json': {'x': 'y' * 5_000_000}}, raw=True)"
    text = agent.text("execute_code", code=code, session="displays")
    assert "shown 2" in text
    assert "shown 3" not in text
    assert "2 output(s) were too large to keep" in text
