"""Checkpoints of a session, made and gone back to by tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mcp_clients import Agent, connected, text_of
from tests.support.mcp_in_memory import InMemory


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "config.yaml").write_text("checkpoints: each\n")
    with connected(InMemory(tmp_path, "--config", str(tmp_path / "config.yaml")), "auto") as opened:
        yield opened


def structure(agent: Agent, tool: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] | None = agent.call(tool, **arguments).structured_content
    assert answer is not None
    return answer


def test_an_agent_goes_back_by_name_by_number_and_by_cells(agent: Agent) -> None:
    agent.call("execute_code", code="values = [3, 5]")
    answer = structure(agent, "checkpoint", name="before cleaning")
    assert (answer["checkpoint"]["name"], answer["checkpoint"]["cell"]) == ("before cleaning", 2)
    assert answer["checkpoint"] in answer["checkpoints"]
    for target in ("before cleaning", str(answer["checkpoint"]["number"])):
        agent.call("execute_code", code="values.clear(); extra = 1")
        gone_back = structure(agent, "restore", checkpoint=target)
        assert (gone_back["variables"], gone_back["gone"], gone_back["cells_undone"]) == (["values"], ["extra"], None)
        assert "Files are as they are now" in gone_back["notes"][0]
    agent.call("execute_code", code="values.clear()")
    assert structure(agent, "undo")["cells_undone"] == 1
    assert "[3, 5]" in text_of(agent.call("execute_code", code="values"))


def test_files_go_back_where_an_agent_asks_for_it(agent: Agent) -> None:
    agent.call("write_file", path="data.csv", content="a,b\n1,2\n")
    structure(agent, "checkpoint", name="raw", files=True)
    agent.call("execute_code", code="open('data.csv', 'w').close()")
    gone_back = structure(agent, "restore", checkpoint="raw", files=True)
    assert gone_back["notes"][0] == "1 file came back: data.csv."
    assert "1,2" in text_of(agent.call("read_file", path="data.csv"))
    automatic = structure(agent, "checkpoint")["checkpoint"]["number"]
    assert f"Checkpoint {automatic} has no files" in refusal(agent, "restore", checkpoint=str(automatic), files=True)


def test_an_agent_tries_two_ways_and_keeps_the_better_one(agent: Agent) -> None:
    agent.call("execute_code", code="values = [3, None, 5]", session="main")
    for name, code in (("drop", "[v for v in values if v]"), ("fill", "[v or 4 for v in values]")):
        answer = structure(agent, "branch", name=name, session="main")
        assert (answer["session"], answer["work_dir"].endswith(f"branches/{name}")) == (name, True)
        agent.call("execute_code", code=f"values = {code}; open('which', 'w').write('{name}')", session=name)
    assert "[3, None, 5]" in text_of(agent.call("execute_code", code="values", session="main"))
    answer = structure(agent, "promote", session="fill")
    assert (answer["variables"], answer["notes"][0]) == (["values"], "1 file of the branch came with it.")
    shown = text_of(agent.call("execute_code", code="values, open('which').read()", session="main"))
    assert "([3, 4, 5], 'fill')" in shown
    assert "no branch" in refusal(agent, "promote", session="main")
    assert "is open already" in refusal(agent, "branch", name="drop", session="main")
    agent.call("close_session", session="drop")
    assert "'fill'" in refusal(agent, "promote", session="fill")


def refusal(agent: Agent, tool: str, **arguments: Any) -> str:
    answer = agent.call(tool, **arguments)
    assert answer.is_error
    return text_of(answer)


def test_impossible_checkpoint_calls_are_errors_for_the_model(agent: Agent) -> None:
    assert "'other'" in refusal(agent, "undo", session="other")
    agent.call("execute_code", code="import threading, time\nthreading.Thread(target=time.sleep, args=[60], name='w').start()")
    assert "cannot be copied now: these threads run: w" in refusal(agent, "checkpoint")
    assert "no checkpoint 'x'" in refusal(agent, "restore", checkpoint="x")
    assert "no checkpoint of the state before the last 7 cells" in refusal(agent, "undo", cells=7)
