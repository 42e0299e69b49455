"""MCP as an agent meets it: a real server process behind fastmcp's stdio client, in both protocol eras."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernelexec
from tests.fuzz.test_mcp_calls import TOOLS
from tests.support.command_line import BOUND
from tests.support.mcp_clients import ERAS, Agent, connected, output_of, record_of, text_of, transport
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import slow

SEVEN = ["success", "exit_code", "stdout", "stderr", "execution_time", "command", "work_dir"]
FRAME = "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2, 3]})"


@pytest.fixture(scope="module", params=ERAS)
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(transport(tmp_path_factory.mktemp("served")), request.param) as agent:
        yield agent


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return re.sub(r"\W", "", request.node.originalname)[:60]


def structure(result: Any) -> dict[str, Any]:
    actual: dict[str, Any] = result.structured_content
    assert list(actual)[:7] == SEVEN
    assert not result.is_error
    return actual


def test_a_frame_of_one_call_is_plotted_in_the_next(agent: Agent, name: str) -> None:
    first = agent.call("execute_code", code=FRAME, session=name)
    assert re.fullmatch(r"\[ok · \d+\.\d\d s · state kept · no output\]", text_of(first))
    plotted = agent.call("execute_code", code="frame.plot();", session=name)
    assert [block.type for block in plotted.content] == ["text", "image"]
    assert [block.mime_type for block in plotted.content if block.type == "image"] == ["image/png"]
    assert plotted.structured_content is None
    record = record_of(plotted)
    assert (record["status"], record["state"], record["files"]) == ("ok", "kept", ["outputs/cell-0002-1.png"])
    assert "outputs" not in record


def test_a_long_cell_is_collected_later(agent: Agent, name: str) -> None:
    code = (
        "import time\nimport os\nprint('begun', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nprint('ended')\n'value'"
    )
    begun = agent.call("execute_code", code=code, session=name, wait=0)
    running = agent.until("begun", "wait_execution", execution_id=record_of(begun)["execution_id"], wait=0)
    record = record_of(running)
    assert record["status"] == "running"
    assert "begun" in text_of(running)
    assert f"wait_execution(execution_id='{record['execution_id']}', cursor={record['cursor']})" in text_of(running)
    [row] = [row for row in agent.rows("list_sessions", "sessions") if row["name"] == name]
    assert row["busy"]
    assert row["executions"] == [{"execution_id": record["execution_id"], "code": "import time"}]
    Path(row["workspace"], "go").touch()
    ended = agent.call("wait_execution", execution_id=record["execution_id"], cursor=record["cursor"])
    assert record_of(ended)["status"] == "ok"
    assert "ended\n'value'" in text_of(ended)
    assert "begun" not in text_of(ended)
    whole = agent.text("wait_execution", execution_id=record["execution_id"])
    assert "begun\nended\n'value'" in whole


def test_pictures_of_a_detached_cell_come_with_its_end(agent: Agent, name: str) -> None:
    code = "import matplotlib.pyplot as plt, time\ntime.sleep(0.5)\nplt.plot([1, 2]);"
    running = agent.call("execute_code", code=code, session=name, wait=0)
    ended = agent.call("wait_execution", execution_id=record_of(running)["execution_id"])
    assert [block.type for block in ended.content] == ["text", "image"]


def test_a_failed_cell_is_an_answer_with_its_traceback_and_state(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="x = 5", session=name)
    failed = agent.call("execute_code", code="print('before')\nx / 0", session=name)
    assert not failed.is_error
    assert record_of(failed)["status"] == "error"
    text = text_of(failed)
    assert [block.type for block in failed.content] == ["text"]
    assert re.match(r"\[error · exit code 1 · \d+\.\d\d s · state kept\]\n\[kernelexec: hint: ", text)
    assert text.index("[kernelexec: hint: ") < text.index("before") < text.index("ZeroDivisionError")
    assert agent.text("execute_code", code="x", session=name) == "5"


def test_a_lost_state_is_reported_with_its_names(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="precious = 1", session=name)
    text = agent.text("execute_code", code="exit()", session=name)
    assert "exit code 1" in text
    assert "state lost (exited): precious are gone. Import and define again" in text


def test_a_restored_state_is_reported(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="precious = 1", session=name)
    text = agent.text("execute_code", code="import os; os._exit(3)", session=name)
    assert re.match(r"\[error · exit code 3 · \d+\.\d\d s · state restored · no output\]\n", text)
    assert "goes on from its checkpoint before this cell" in text
    assert agent.text("execute_code", code="precious", session=name) == "1"


def test_a_failed_cell_says_that_it_can_be_undone(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="rows = [1, 2]", session=name)
    text = agent.text("execute_code", code="rows.clear(); 1 / 0", session=name)
    assert "[kernelexec: undo takes back what this cell has changed, except for files]" in text
    assert '"cells_undone":1' in agent.text("undo", session=name)
    assert agent.text("execute_code", code="rows", session=name) == "[1, 2]"


def test_long_output_is_shown_at_both_ends_and_read_on(agent: Agent, name: str) -> None:
    result = agent.call("execute_code", code="for i in range(20000): print(f'line {i}')", session=name)
    text, execution_id = output_of(result), record_of(result)["execution_id"]
    assert len(text) < 20_500
    assert "line 0\n" in text
    assert text.endswith("line 19999\n")
    actual = re.search(rf"read_output\(execution_id='{execution_id}', offset=(\d+)\)", text)
    assert actual is not None
    note, page = agent.text("read_output", execution_id=execution_id, offset=int(actual[1]), limit=100).split("\n", 1)
    shown = text[: text.index("\n[kernelexec: ")]
    everything = "".join(f"line {i}\n" for i in range(20000))
    assert shown + page[:50] == everything[: len(shown) + 50]
    assert "continue with offset=" in note
    matching = agent.text("read_output", execution_id=execution_id, grep="^line 1999[89]$")
    assert matching.splitlines()[1:] == ["line 19998", "line 19999"]


def test_at_most_four_pictures_are_inline_and_the_others_are_named(agent: Agent, name: str) -> None:
    code = "import matplotlib.pyplot as plt\nfor n in range(6):\n    plt.plot([n])\n    plt.show()"
    result = agent.call("execute_code", code=code, session=name)
    assert [block.type for block in result.content] == ["text", *["image"] * 4]
    assert "2 picture(s) not shown here" in text_of(result)
    assert "see outputs/cell-0001-5.png, outputs/cell-0001-6.png in the workspace" in text_of(result)


def test_large_and_invalid_pictures_are_not_sent_as_pictures(agent: Agent, name: str) -> None:
    code = (
        "import os, zlib, struct\nfrom IPython.display import display, Image\n"
        "part = lambda kind, body: struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))\n"
        "def picture(side):\n    head = part(b'IHDR', struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0))\n"
        "    rows = b''.join(b'\\0' + os.urandom(3 * side) for _ in range(side))\n"
        "    return b'\\x89PNG\\r\\n\\x1a\\n' + head + part(b'IDAT', zlib.compress(rows, 0)) + part(b'IEND', b'')\n"
        "display(Image(picture(100)))\ndisplay(Image(picture(500)))\n"
        "display({'image/png': 'bm8gcGljdHVyZQ=='}, raw=True)"
    )
    result = agent.call("execute_code", code=code, session=name)
    assert [block.type for block in result.content] == ["text", "image", "image"]
    assert all(len(block.data) < 700_000 for block in result.content if block.type == "image")
    assert "1 picture(s) not shown here" in text_of(result)


def test_pictures_together_fit_into_one_answer(agent: Agent, name: str) -> None:
    code = (
        "import os, io, base64, PIL.Image\nfrom IPython.display import display\nfile = io.BytesIO()\n"
        "PIL.Image.frombytes('RGB', (500, 500), os.urandom(750_000)).save(file, 'JPEG', quality=90)\n"
        "content = base64.b64encode(file.getvalue()).decode()\n"
        "for _ in range(3): display({'image/jpeg': content}, raw=True)\nlen(content)"
    )
    result = agent.call("execute_code", code=code, session=name)
    assert [block.type for block in result.content] == ["text", "image", "image"]
    assert sum(len(block.data) for block in result.content if block.type == "image") < 900_000
    assert "see outputs/cell-0001-3.jpg in the workspace" in text_of(result)


def test_a_command_that_works_has_the_seven_fields(agent: Agent, name: str) -> None:
    agent.call("execute_command", command="mkdir -p sub && cd sub && export MODE=fast", session=name)
    actual = structure(agent.call("execute_command", command="pwd; echo $MODE >&2", session=name))
    assert (actual["success"], actual["exit_code"], actual["stderr"]) == (True, 0, "fast\n")
    assert actual["stdout"].endswith(f"/workspaces/{name}/sub\n")
    assert (actual["status"], actual["state"], actual["timed_out"], actual["truncated"]) == ("ok", "kept", False, False)
    assert actual["execution_time"] > 0
    assert actual["command"] == "pwd; echo $MODE >&2"
    assert actual["work_dir"] == actual["stdout"].strip()


def test_a_command_that_fails_has_the_seven_fields(agent: Agent, name: str) -> None:
    actual = structure(agent.call("execute_command", command="echo out; echo err >&2; exit 7", session=name))
    assert [actual[field] for field in SEVEN[:4]] == [False, 7, "out\n", "err\n"]
    assert actual["status"] == "error"


def test_a_command_over_its_timeout_keeps_its_output(agent: Agent, name: str) -> None:
    actual = structure(agent.call("execute_command", command="echo first; sleep 600", timeout=slow(2), session=name))
    assert [actual[field] for field in SEVEN[:3]] == [False, 124, "first\n"]
    assert (actual["timed_out"], actual["state"]) == (True, "kept")
    assert any("larger timeout" in note for note in actual["notes"])


def test_a_command_that_still_runs_says_so(agent: Agent, name: str) -> None:
    command = "echo first; until test -e go; do sleep 0.02; done; echo last"
    asked = {"command": command, "session": name, "request_id": "one", "wait": 0.1}
    actual = structure(agent.until("first", "execute_command", **asked))
    assert (actual["success"], actual["exit_code"], actual["status"], actual["stdout"]) == (False, None, "running", "first\n")
    Path(actual["work_dir"], "go").touch()
    assert "last" in agent.text("wait_execution", execution_id=actual["execution_id"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"command": " "}, "command is empty"),
        ({"command": "ls", "timeout": 0}, "timeout=0"),
        ({"command": "ls", "work_dir": "missing"}, "does not exist"),
        ({"command": "ls", "work_dir": "/"}, "outside of the workspace"),
        ({"command": "a\0b"}, "NUL character"),
        ({"command": "ls", "session": "../up"}, "session name '../up'"),
        ({"command": "ls", "wait": -1}, "wait=-1"),
    ],
)
def test_a_command_that_is_refused_has_the_seven_fields(agent: Agent, arguments: dict[str, Any], reason: str) -> None:
    actual = structure(agent.call("execute_command", **({"session": "refusals"} | arguments)))
    assert [actual[field] for field in (*SEVEN[:3], "execution_time")] == [False, -1, "", 0.0]
    assert reason in actual["stderr"]
    assert actual["command"] == arguments["command"]


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("execute_code", {"code": ""}, "code is empty"),
        ("execute_code", {"code": "1", "session": "a b"}, "session name 'a b'"),
        ("execute_code", {"code": "1", "timeout": -1}, "timeout=-1"),
        ("execute_code", {"code": "1", "tiemout": 1}, "Unknown arguments: 'tiemout' (did you mean 'timeout'?)."),
        ("execute_code", {"code": "1", "timeout": "5 m"}, "timeout: Input should be a valid number (given: '5 m')"),
        ("execute_code", {}, "code is required"),
        ("wait_execution", {"execution_id": "nobody"}, "None of your open sessions has an execution 'nobody'"),
        ("read_output", {"execution_id": "nobody"}, "None of your open sessions has an execution 'nobody'"),
        ("interrupt_kernel", {"session": "defautl"}, "No session 'defautl' is open (did you mean 'default'?)"),
        ("restart_kernel", {"session": "nobody"}, "execute_code and execute_command create one"),
        ("list_variables", {"session": "nobody"}, "No session 'nobody' is open"),
        ("run_code", {}, "There is no tool 'run_code' (did you mean 'execute_code'?). The tools are: execute_code, "),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(agent: Agent, tool: str, arguments: dict[str, Any], reason: str) -> None:
    agent.call("execute_code", code="1")
    refused = agent.call(tool, **arguments)
    assert refused.is_error
    assert reason in text_of(refused)
    assert "pydantic" not in text_of(refused)


def test_an_interrupt_keeps_the_state_and_gives_the_result(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="x = 5", session=name)
    running = agent.begin("begun", code="print('begun', flush=True)\nimport time; time.sleep(600)", session=name)
    interrupted = agent.call("interrupt_kernel", session=name)
    assert record_of(interrupted)["execution_id"] == record_of(running)["execution_id"]
    assert text_of(interrupted).startswith("[error · exit code 130 · ended by request · ")
    assert "begun" in text_of(interrupted)
    assert "Nothing runs" in agent.text("interrupt_kernel", session=name)
    assert "5" in agent.text("execute_code", code="print(x)", session=name).splitlines()


def test_a_restart_is_a_new_kernel_in_the_same_workspace(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="x = 5\nopen('kept', 'w').close()", session=name)
    assert "kernel_epoch 2" in agent.text("restart_kernel", session=name)
    text = agent.text("execute_code", code="import os\nprint('x' in globals(), os.path.exists('kept'))", session=name)
    assert "False True" in text


def test_ten_calls_at_once_on_two_sessions_each_get_their_own_answer(agent: Agent) -> None:
    calls = [agent.start("execute_code", code=f"print('n', {n})", session=f"many{n % 2}") for n in range(10)]
    assert ["n " + str(n) in text_of(call.result(BOUND)) for n, call in enumerate(calls)] == [True] * 10
    rows = agent.rows("list_sessions", "sessions")
    epochs = {row["name"]: row["kernel_epoch"] for row in rows if row["name"].startswith("many")}
    assert epochs == {"many0": 1, "many1": 1}


def test_the_tools_stand_in_a_fixed_order_and_say_what_matters(agent: Agent) -> None:
    tools = agent.do("list_tools")
    assert [tool.name for tool in tools] == list(TOOLS)
    for tool in tools:
        assert "persist" in tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert all("type" in argument for argument in tool.input_schema["properties"].values())
    described = {tool.name: tool.description for tool in tools}
    assert "wait_execution(execution_id)" in described["execute_code"]
    assert "Example" in described["execute_code"]
    structured = [tool.name for tool in tools if tool.output_schema is not None]
    background = ["start_background", "background_output", "kill_background", "list_background"]
    assert structured == [
        "execute_command",
        "create_session",
        "list_sessions",
        "list_variables",
        "get_variable",
        *background,
        "run_tests",
        "install_packages",
        "list_files",
        "delete_files",
        "checkpoint",
        "restore",
        "undo",
        "branch",
        "promote",
    ]
    assert agent.do("list_tools") == tools


def test_the_server_describes_itself(agent: Agent) -> None:
    instructions, who = agent.client.instructions or "", agent.client.server_info
    assert who is not None
    assert (who.name, who.version) == ("kernelexec", kernelexec.__version__)
    for word in ("persist", "workspace", "wait_execution", "state kept, restored, lost or new", "60 s"):
        assert word in instructions
    [execute_code] = [tool.description for tool in agent.do("list_tools") if tool.name == "execute_code"]
    assert "`wait` seconds (45)" in execute_code  # most frameworks do not show the instructions
    assert "`timeout` seconds (60)" in execute_code


def test_the_default_tools_take_a_small_part_of_a_models_context(tmp_path: Path) -> None:
    default = InMemory(tmp_path)
    default.words = [word for word in default.words if word not in ("--tools", "all")]
    with connected(default, "auto") as agent:
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            for tool in agent.do("list_tools")
        ]
        instructions = str(agent.client.instructions)
    text = json.dumps(tools, separators=(",", ":"), ensure_ascii=False)
    assert len(text) + len(instructions) < 11_000  # 2,324 tokens of o200k


def test_variables_are_listed_also_while_a_cell_runs(agent: Agent, name: str) -> None:
    agent.call("execute_code", code=FRAME, session=name)
    agent.begin("begun", code="print('begun', flush=True)\nimport time; time.sleep(600)", session=name)
    [frame] = [row for row in agent.rows("list_variables", "variables", session=name) if row["name"] == "frame"]
    assert frame["type"].endswith("DataFrame")
    assert frame["shape"] == [3, 1]
    agent.call("interrupt_kernel", session=name)


def test_code_is_tested_apart_from_the_session(agent: Agent, name: str) -> None:
    agent.call("execute_code", code="x = 1", session=name)
    cases = ["half(4) == 2", "half(x) == 2", "x.none", "import os; os._exit(0)"]
    actual = agent.call("run_tests", code="def half(n): return n / 2", cases=cases, session=name).structured_content
    assert actual is not None
    assert (actual["ok"], actual["summary"], actual["error"]) == (False, "1 PASS, 1 FAIL, 2 ERROR", None)
    assert [case["verdict"] for case in actual["cases"]] == ["PASS", "FAIL", "ERROR", "ERROR"]
    assert actual["cases"][1]["message"] == "half(x) == 2 does not hold; half(x) is 0.5"
    refused = agent.call("run_tests", code="!sudo ls", cases=["True"], session=name)
    assert refused.is_error
    assert "rule 'sudo'" in text_of(refused)
    assert agent.call("run_tests", cases=[], session=name).is_error


def test_commands_run_beside_cells(agent: Agent, name: str) -> None:
    agent.begin("begun", code="print('begun', flush=True)\nimport time; time.sleep(600)", session=name)
    started = agent.call("start_background", command="echo begun; sleep 300", session=name).structured_content
    assert started is not None
    assert started["status"] == "running"
    command = {"command_id": started["command_id"], "session": name}
    seen = agent.until('"stdout":"begun', "background_output", **command).structured_content or {}
    assert (seen["status"], seen["stdout"], seen["lines_left_out"]) == ("running", "begun\n", 0)
    killed = agent.call("kill_background", **command).structured_content
    assert killed is not None
    assert (killed["status"], killed["exit_code"]) == ("killed", 143)
    assert [row["status"] for row in agent.rows("list_background", "commands", session=name)] == ["killed"]
    refused = agent.call("start_background", command="sudo ls", session=name)
    assert refused.is_error
    assert "rule 'sudo'" in text_of(refused)
    assert agent.call("background_output", command_id="shell_none", session=name).is_error
    agent.call("interrupt_kernel", session=name)


def test_code_may_be_of_another_language(agent: Agent, name: str) -> None:
    assert "3\n" in agent.text("execute_code", code="echo $((1 + 2))", language="bash", session=name) + "\n"
    refused = agent.call("execute_code", code="1", language="klingon", session=name)
    assert refused.is_error
    assert "klingon" in text_of(refused)


def test_a_request_that_is_sent_again_runs_once(agent: Agent, name: str) -> None:
    code = "n = globals().get('n', 0) + 1\nprint('n is', n)"
    first = agent.call("execute_code", code=code, session=name, request_id="mine")
    again = agent.call("execute_code", code=code, session=name, request_id="mine")
    assert record_of(first)["execution_id"] == record_of(again)["execution_id"]
    assert "n is 1" in text_of(again)
    assert "n is 1" not in agent.text("execute_code", code=code, session=name)
