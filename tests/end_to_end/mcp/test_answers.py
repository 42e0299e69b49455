"""Answers to a model whose output is incomplete, or whose outcome is unknown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.command_line import BOUND, appears
from tests.support.mcp_clients import Agent, connected, raw, record_of, text_of
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import until


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(InMemory(tmp_path_factory.mktemp("served")), "auto") as agent:
        yield agent


def test_a_picture_without_room_in_the_result_is_a_file(agent: Agent) -> None:
    code = (
        "import os\nfrom IPython.display import Image\nImage(b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(20_000_000), format='png')"
    )
    answer = agent.call("execute_code", code=code, session="pictures")
    assert record_of(answer)["truncated"]
    assert "no output could be kept" in text_of(answer)
    assert "1 output(s) were too large for this result" in text_of(answer)
    assert "files made or changed: outputs/cell-0001-1.png" in text_of(answer)
    assert "too large" not in agent.text("execute_code", code="1", session="pictures")


def test_a_sound_is_a_sound(agent: Agent) -> None:
    code = "from IPython.display import Audio\nAudio([0, 1, 0, -1] * 500, rate=8000)"
    answer = agent.call("execute_code", code=code, session="sounds")
    (sound,) = [block for block in answer.content if block.type == "audio"]
    assert (sound.mime_type, base64.b64decode(sound.data)[:4]) == ("audio/wav", b"RIFF")
    assert text_of(answer).endswith("]\n[audio]")
    fake = "display({'audio/wav': 'AAAA', 'text/plain': 'no sound'}, raw=True)"
    assert [block.type for block in agent.call("execute_code", code=fake, session="sounds").content][:1] == ["text"]
    assert "audio" not in [block.type for block in agent.call("execute_code", code=fake, session="sounds").content]


def test_displays_over_their_budget_are_reported(agent: Agent) -> None:
    code = "for n in range(5): display({'text/plain': f'shown {n}', 'application/json': {'x': 'y' * 5_000_000}}, raw=True)"
    text = agent.text("execute_code", code=code, session="displays")
    assert "shown 2" in text
    assert "shown 3" not in text
    assert "2 output(s) were too large for this result" in text


def test_a_page_of_what_still_runs_is_not_the_end(agent: Agent) -> None:
    running = agent.begin("first", code="import time\nprint('first', flush=True)\ntime.sleep(600)", session="pages")
    execution_id = record_of(running)["execution_id"]
    page = agent.text("read_output", execution_id=execution_id)
    assert "all output so far; the cell still runs, continue later with offset=6]" in page
    assert "all output so far" in agent.text("read_output", execution_id=execution_id, grep="nowhere")
    interrupted = agent.call("interrupt_kernel", session="pages")
    assert record_of(interrupted)["execution_id"] == execution_id
    assert "end of output]" in agent.text("read_output", execution_id=execution_id)
    nothing = agent.text("read_output", execution_id=execution_id, grep="nowhere")
    assert nothing.startswith("[kernelexec: no matching line; ")
    assert "no more output" in agent.text("read_output", execution_id=execution_id, offset=100)


def test_the_end_of_what_was_kept_is_not_the_end_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.session.cells.runner.SPILL_BYTES", 8_388_608)
    with connected(InMemory(tmp_path), "auto") as agent:
        code = "for n in range(10): print('y' * 999_999)"
        execution_id = record_of(agent.call("execute_code", code=code))["execution_id"]
        page = agent.text("read_output", execution_id=execution_id, offset=8_388_600)
    assert "of 10000000; end of the kept output, the first 8388608 bytes]\ny" in page


def test_omitted_output_is_reported_with_at_least_its_size(agent: Agent) -> None:
    text = agent.text("execute_code", code="print('x' * 3_000_000)", session="long")
    assert "[kernelexec: at least 1" in text
    assert "[kernelexec: 10000 characters" in agent.text("execute_code", code="print('x' * 29_999)", session="long")
    answer = agent.call("execute_command", command="head -c 3000000 /dev/zero | tr '\\0' x", session="long")
    assert answer.structured_content is not None
    assert "[kernelexec: at least 1" in answer.structured_content["stdout"]


@pytest.mark.nightly  # in the gate the tests of the ids of requests read the same answer
def test_an_unknown_outcome_says_so_and_what_to_do(tmp_path: Path) -> None:
    call = {"code": "open('begun', 'w').close()\nimport time\ntime.sleep(600)", "request_id": "one"}
    with raw(tmp_path, "legacy") as client:
        client.call("execute_code", **call)
        appears(client.process, tmp_path / "workspaces" / "default" / "begun")  # type: ignore[arg-type]
        family = psutil.Process(client.process.pid).children(recursive=True)
        client.process.kill()
        psutil.wait_procs(family, timeout=BOUND)
    with connected(InMemory(tmp_path), "legacy") as agent:
        text = agent.text("execute_code", **call)
    assert text.startswith("[unknown · its output is unknown]\n[kernelexec: ")
    assert "It did not run again." in text
    assert "With a new request_id it would run again." in text


def test_a_command_in_the_queue_says_so_and_one_that_is_interrupted_has_no_traceback(agent: Agent) -> None:
    agent.text("execute_code", code="1", session="waiting")
    [workspace] = [row["workspace"] for row in agent.rows("list_sessions", "sessions") if row["name"] == "waiting"]
    first = agent.start("execute_command", command="touch begun; sleep 600", timeout=700, wait=600, session="waiting")
    until(Path(workspace, "begun").exists)
    waiting = agent.call("execute_command", command="echo 1", session="waiting", wait=0).structured_content
    assert waiting is not None
    assert waiting["notes"][0].startswith("It waits behind 1 other(s): call wait_execution(")
    agent.call("interrupt_kernel", session="waiting")
    interrupted = first.result(BOUND).structured_content
    assert interrupted is not None
    assert (interrupted["exit_code"], interrupted["stderr"]) == (130, "")


def test_an_outcome_of_an_earlier_server_promises_no_more_than_it_has(tmp_path: Path) -> None:
    call = {"code": "print('x' * 100_000)", "request_id": "one"}
    texts = []
    for _ in range(2):
        with connected(InMemory(tmp_path), "auto") as agent:
            texts.append(agent.text("execute_code", **call))
    assert "read_output(" in texts[0]
    assert "[kernelexec: 80001 characters left out: it ran before, and its output is no longer available]" in texts[1]
