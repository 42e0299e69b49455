"""What a model is shown stays within bounds whatever a cell puts out, says what was cut, and every cut part can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it comes without types
import pytest

from kernelexec.results import ExecutionResult
from kernelexec.results.media import SIDE_PIXELS
from tests.support.mcp_clients import Agent, connected, record_of, text_of, transport
from tests.unit.mcp.test_answer_limits import ANSWER_BYTES, pictures, size_of

pytestmark = pytest.mark.nightly


def read_all(agent: Agent, execution_id: str) -> str:
    actual = ""
    offset: int | None = 0
    while offset is not None:
        page = agent.call("read_output", execution_id=execution_id, offset=offset, limit=100_000)
        assert page.meta is not None
        note, _, text = text_of(page).partition("\n")
        assert note.startswith("[kernelexec: from byte ")
        actual += text
        offset = page.meta["kernelexec/page"]["next_offset"]
    return actual


def test_five_megabytes_of_text(agent: Agent) -> None:
    result = agent.call("execute_code", code="for n in range(500_000): print(f'{n:09d}')", session="text")
    answer = text_of(result)
    assert len(answer) < 25_000
    assert "characters left out: read_output(execution_id=" in answer
    record = record_of(result)
    assert (record["truncated"], record["total_bytes"]) == (True, 5_000_000)
    assert read_all(agent, record["execution_id"]) == "".join(f"{n:09d}\n" for n in range(500_000))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(transport(tmp_path_factory.mktemp("budgets")), "auto") as agent:
        yield agent


def test_a_gigabyte_in_one_print(agent: Agent) -> None:
    result = agent.call("execute_code", code="print('x' * 10**9)", session="print", timeout=120, wait=120)
    record = record_of(result)
    assert (record["status"], record["state"], record["truncated"]) == ("ok", "kept", True)
    assert size_of(result) < 50_000
    assert record["total_bytes"] == 10**9 + 1
    page = agent.text("read_output", execution_id=record["execution_id"], offset=200 * 10**6, limit=1000)
    assert page.partition("\n")[2].startswith("x") or "end of the kept output" in page
    assert agent.text("execute_code", code="1 + 1", session="print").splitlines()[0] == "2"


@pytest.mark.parametrize(("width", "height", "shown"), [(10_000, 400, True), (400, 10_000, True), (10_000, 10_000, False)])
def test_a_picture_of_ten_thousand_pixels(agent: Agent, width: int, height: int, shown: Any) -> None:
    code = f"import PIL.Image\nPIL.Image.radial_gradient('L').resize(({width}, {height})).convert('RGB')"
    result = agent.call("execute_code", code=code, session="picture", timeout=120, wait=120)
    assert record_of(result)["status"] == "ok"
    assert [max(picture.size) for picture in pictures(result)] == [SIDE_PIXELS] * shown
    assert f"1 picture(s) {'shown smaller' if shown else 'not shown here'}" in text_of(result)
    (whole,) = record_of(result)["files"]
    assert f"see {whole} in the workspace" in text_of(result)
    check = f"import PIL.Image; PIL.Image.MAX_IMAGE_PIXELS = None; PIL.Image.open('{whole}').size"
    assert f"({width}, {height})" in agent.text("execute_code", code=check, session="picture")


def test_two_hundred_figures(agent: Agent) -> None:
    code = "import matplotlib.pyplot as plt\nfor n in range(200):\n    plt.figure(figsize=(1, 1)); plt.plot([n]); plt.show()"
    result = agent.call("execute_code", code=code, session="figures", timeout=300, wait=300)
    assert len(pictures(result)) == 4
    assert size_of(result) < ANSWER_BYTES
    assert "196 picture(s) not shown here" in text_of(result)
    listed = agent.rows("list_files", "entries", path="outputs", session="figures")
    assert len(listed) == 200


def record_schema() -> dict[str, Any]:
    """The schema of a record: that of results, without their outputs."""
    schema = ExecutionResult.json_schema()
    kept = {name: schema_of for name, schema_of in schema["properties"].items() if name not in ("outputs", "late")}
    places = {name: {"type": "integer", "minimum": 0} for name in ("cursor", "place")}
    required = [name for name in schema["required"] if name in kept]
    return {**schema, "properties": kept | places, "required": required, "additionalProperties": False}


def test_pictures_come_as_pictures_beside_a_record_of_the_published_schema(agent: Agent) -> None:
    tools = {tool.name: tool for tool in agent.do("list_tools")}
    schema = record_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for code in ("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", "1/0", "import os; os._exit(3)", "x ="):
        result = agent.call("execute_code", code=code, session="schema")
        assert result.structured_content is None
        jsonschema.validate(record_of(result), schema)
    running = agent.call("execute_code", code="import time; time.sleep(0.5)", session="schema", wait=0)
    jsonschema.validate(record_of(running), schema)
    for name in ("execute_code", "wait_execution", "interrupt_kernel"):
        assert tools[name].output_schema is None


def test_a_wide_frame_has_a_line_for_each_row(agent: Agent) -> None:
    code = "import pandas as pd\npd.DataFrame({f'column_{n}': range(1000) for n in range(50)})"
    answer = agent.text("execute_code", code=code, session="frame").splitlines()
    header = next(line for line in answer if "column_0" in line)
    assert header.startswith(" | column_0 | column_1 | ")
    assert header.endswith("| column_49")
    assert answer[answer.index(header) + 1].startswith("0 | 0 | 0 |")
    assert "1000 rows x 50 columns" in "\n".join(answer).replace("\N{MULTIPLICATION SIGN}", "x")
    assert not any(line.endswith("\\") for line in answer)
    styled = agent.text("execute_code", code="pd.DataFrame({'a': [1.5]}).style", session="frame")
    assert "0 | 1.500000" in styled
