"""What an answer costs: nothing that says nothing, each file once, a short record, pictures where the operator wants them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.client import CallToolResult

from tests.support.mcp_clients import Agent, connected, links_of, output_of, record_of, text_of
from tests.support.mcp_in_memory import InMemory

_PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


class PlainAgent(Agent):
    """A client that asks for nothing but the answer."""

    def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        result: CallToolResult = self.do("call_tool", tool, arguments, raise_on_error=False)
        return result


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainAgent]:
    with connected(InMemory(tmp_path_factory.mktemp("lean")), "auto") as opened:
        yield PlainAgent(opened.portal, opened.client)


def test_a_cell_that_ends_as_expected_is_its_output(agent: PlainAgent) -> None:
    answer = agent.call("execute_code", code="print('hi')")
    assert [block.type for block in answer.content] == ["text"]
    assert re.fullmatch(r"\[ok · \d+\.\d\d s · state kept\]\nhi\n", text_of(answer))
    assert answer.structured_content is None


@pytest.mark.parametrize("code", ["1", "1/0", "import time; time.sleep(9)", "open('f', 'w').close()", "import os; os._exit(3)"])
def test_the_record_is_short_unless_a_program_asks(code: str, agent: PlainAgent) -> None:
    record = record_of(agent.call("execute_code", code=code, timeout=1, session="records"))
    assert len(json.dumps(record)) <= 300
    assert {"execution_id", "status", "state", "exit_code", "kernel_epoch"} <= set(record)
    whole = record_of(Agent.call(agent, "execute_code", code="1", session="records"))
    assert {"timing", "isolation", "files", "notes"} <= set(whole)


def test_a_command_has_the_fields_that_say_something(agent: PlainAgent) -> None:
    answer = agent.call("execute_command", command="echo hi")
    assert (output_of(answer), answer.structured_content) == (
        "hi\n",
        {"success": True, "exit_code": 0, "stdout": "hi\n", "stderr": ""},
    )
    failed = agent.call("execute_command", command="echo no >&2; exit 7")
    assert failed.structured_content is not None
    assert (failed.structured_content["exit_code"], failed.structured_content["stderr"]) == (7, "no\n")
    assert text_of(failed).startswith("[error · exit code 7 · ")
    late = agent.call("execute_command", command="sleep 9", timeout=0.5)
    assert late.structured_content is not None
    assert late.structured_content["timed_out"]
    assert "Traceback" not in text_of(late)
    running = agent.call("execute_command", command="sleep 600", wait=0, session="running")
    assert running.structured_content is not None
    assert {"status", "execution_id", "notes"} <= set(running.structured_content)
    refused = agent.call("execute_command", command=" ")
    assert refused.structured_content is not None
    assert (refused.structured_content["status"], refused.structured_content["exit_code"]) == ("aborted", -1)
    assert text_of(refused).startswith("[aborted]\n[kernelexec: The command did not run: ")


def test_a_file_is_named_once_as_a_resource_where_the_client_reads_links(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--links"), "auto") as agent:
        answer = agent.call("execute_code", code="open('a b.csv', 'w').write('x');")
        [link] = [block for block in answer.content if block.type == "resource_link"]
        assert (link.name, link.mime_type) == ("a b.csv", "text/csv")
        assert "a b.csv" not in text_of(answer)
        assert agent.do("read_resource", str(link.uri))[0].text == "x"
        answer = agent.call("execute_code", code="for n in range(12): open(f'{n}.txt', 'w').close()")
        assert len(links_of(answer)) == 10
        named = text_of(answer).replace(",", " ").split("changed:")[1]
        assert len([n for n in range(12) if f"{n}.txt" in named]) >= 2


def test_by_default_the_text_names_the_files(agent: PlainAgent) -> None:
    answer = agent.call("execute_code", code="open('a.csv', 'w').write('x');", session="files")
    assert [block.type for block in answer.content] == ["text"]
    assert "\n[kernelexec: files made or changed: a.csv]" in text_of(answer)


@pytest.mark.parametrize(("setting", "kinds"), [("inline", {"text", "image"}), ("files", {"text"})])
def test_pictures_are_where_the_operator_wants_them(setting: str, kinds: set[str], tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--pictures", setting), "auto") as agent:
        answer = agent.call("execute_code", code=_PLOT)
        assert {block.type for block in answer.content} == kinds


def test_a_file_is_edited_in_place(agent: PlainAgent) -> None:
    agent.call("write_file", path="m.py", content="a = 1\nb = 1\n", session="edits")
    assert "m.py was edited: 12 bytes" in agent.text(
        "edit_file", path="m.py", old_text="a = 1", new_text="a = 2", session="edits"
    )
    assert "contains the text 2 times" in agent.text("edit_file", path="m.py", old_text=" = ", new_text=" := ", session="edits")
    agent.call("edit_file", path="m.py", old_text=" = ", new_text=" := ", replace_all=True, session="edits")
    assert agent.text("read_file", path="m.py", session="edits").endswith("]\na := 2\nb := 1\n")
    for path, old, reason in (("m.py", "c", "does not contain"), ("m.py", "", "must not be empty"), ("no.py", "c", "no.py")):
        refused = agent.call("edit_file", path=path, old_text=old, new_text="", session="edits")
        assert refused.is_error
        assert reason in text_of(refused)


def test_by_default_the_groups_core_files_and_packages_are_served_and_the_rest_is_named(tmp_path: Path) -> None:
    default = InMemory(tmp_path)
    default.words = [word for word in default.words if word not in ("--tools", "all")]
    with connected(default, "auto") as agent:
        tools = agent.do("list_tools")
        assert {"edit_file", "install_packages"} <= {tool.name for tool in tools}
        assert "run_tests" not in {tool.name for tool in tools}
        assert all(tool.title for tool in tools)
        assert "background, checkpoints, tests, variables" in str(agent.client.instructions)
