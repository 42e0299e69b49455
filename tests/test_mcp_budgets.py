"""What a model is shown stays within bounds whatever a cell puts out, says what was cut, and every cut part can be read."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import anyio
import jsonschema  # type: ignore[import-untyped] # it comes without types
import pandas as pd  # type: ignore[import-untyped] # it comes without types
import PIL.Image
import pytest
from fastmcp.client.client import CallToolResult

from kernelexec.mcp.content.pictures import PICTURE_BYTES, SIDE_PIXELS, inline
from kernelexec.mcp.content.tables import table_text
from kernelexec.results import Image
from tests.mcp_clients import Agent, connected, record_of, text_of, transport

ANSWER_BYTES = 900_000


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with connected(transport(tmp_path_factory.mktemp("budgets")), "auto") as found:
        yield found


def size_of(result: CallToolResult) -> int:
    return len(json.dumps([block.model_dump(mode="json") for block in result.content])) + len(json.dumps(result.meta))


def pictures(result: CallToolResult) -> list[PIL.Image.Image]:
    blocks = [block for block in result.content if block.type == "image"]
    found: list[PIL.Image.Image] = [PIL.Image.open(io.BytesIO(base64.b64decode(block.data))) for block in blocks]
    for block, picture in zip(blocks, found, strict=True):
        assert len(base64.b64decode(block.data)) <= PICTURE_BYTES
        assert max(picture.size) <= SIDE_PIXELS
        assert getattr(picture, "format", None) == block.mime_type.removeprefix("image/").upper()
    return found


def read_all(agent: Agent, execution_id: str) -> str:
    found = ""
    offset: int | None = 0
    while offset is not None:
        page = agent.call("read_output", execution_id=execution_id, offset=offset, limit=100_000)
        assert page.meta is not None
        text = text_of(page)
        found += text[: text.rindex("\n[from byte ")]
        offset = page.meta["kernelexec/page"]["next_offset"]
    return found


def test_five_megabytes_of_text(agent: Agent) -> None:
    result = agent.call("execute_code", code="for n in range(500_000): print(f'{n:09d}')", session="text")
    said = text_of(result)
    assert len(said) < 25_000
    assert "characters left out: read_output(execution_id=" in said
    record = record_of(result)
    assert (record["truncated"], record["total_bytes"]) == (True, 5_000_000)
    assert read_all(agent, record["execution_id"]) == "".join(f"{n:09d}\n" for n in range(500_000))


def test_a_gigabyte_in_one_print(agent: Agent) -> None:
    result = agent.call("execute_code", code="print('x' * 10**9)", session="print", timeout=120, wait=120)
    record = record_of(result)
    assert (record["status"], record["state"], record["truncated"]) == ("ok", "kept", True)
    assert size_of(result) < 50_000
    assert record["total_bytes"] == 10**9 + 1
    page = agent.text("read_output", execution_id=record["execution_id"], offset=200 * 10**6, limit=1000)
    assert page.startswith("x") or "the end of what could be kept" in page
    assert agent.text("execute_code", code="1 + 1", session="print").splitlines()[1] == "2"


@pytest.mark.parametrize(("width", "height", "shown"), [(10_000, 400, True), (400, 10_000, True), (10_000, 10_000, False)])
def test_a_picture_of_ten_thousand_pixels(agent: Agent, width: int, height: int, shown: Any) -> None:
    code = f"import PIL.Image\nPIL.Image.radial_gradient('L').resize(({width}, {height})).convert('RGB')"
    result = agent.call("execute_code", code=code, session="picture", timeout=120, wait=120)
    assert record_of(result)["status"] == "ok"
    assert [max(picture.size) for picture in pictures(result)] == [SIDE_PIXELS] * shown
    assert f"1 picture(s) {'shown smaller than they are' if shown else 'not shown here'}" in text_of(result)
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


def test_pictures_come_as_pictures_beside_a_record_of_the_published_schema(agent: Agent) -> None:
    from kernelexec.mcp.content.answers import record_schema  # noqa: PLC0415 - of what is tested here only

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


def picture(width: int, height: int, kind: str, mode: str = "RGB") -> Image:
    written = io.BytesIO()
    noise = PIL.Image.effect_noise((width, height), 80).convert(mode)
    noise.save(written, kind)
    return Image(PIL.Image.MIME[kind], written.getvalue())


def fitted(*images: Image, room: int = ANSWER_BYTES) -> tuple[list[str], list[int], list[int]]:
    found = anyio.run(inline, images, room)
    for block in found.shown:
        assert len(base64.b64decode(block.data)) <= PICTURE_BYTES
        assert max(PIL.Image.open(io.BytesIO(base64.b64decode(block.data))).size) <= SIDE_PIXELS
    return [block.mime_type for block in found.shown], found.smaller, found.left_out


def test_what_fits_goes_as_it_is_and_other_kinds_become_ones_that_clients_take() -> None:
    small = picture(100, 50, "PNG")
    assert fitted(small) == (["image/png"], [], [])
    assert anyio.run(inline, (small,), ANSWER_BYTES).shown[0].data == base64.b64encode(small.content).decode()
    assert fitted(picture(100, 50, "JPEG"), picture(100, 50, "GIF", "P"), picture(100, 50, "WEBP", "RGBA")) == (
        ["image/jpeg", "image/png", "image/png"],
        [],
        [],
    )
    assert fitted(picture(3000, 1000, "PNG", "RGBA"), picture(2000, 2000, "JPEG"))[1:] == ([0, 1], [])


@pytest.mark.parametrize(
    "content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff" + bytes(1000), b"GIF89a" + b"\xff" * 4]
)
@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"])
def test_what_is_no_picture_is_left_out(content: bytes, mime: str) -> None:
    assert fitted(Image(mime, content)) == ([], [], [0])


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_what_is_cut_off_or_damaged_is_left_out(kind: str) -> None:
    whole = picture(100, 50, kind)
    assert fitted(Image(whole.mime, whole.content[: len(whole.content) // 2])) == ([], [], [0])
    if kind == "PNG":
        damaged = bytearray(whole.content)
        damaged[60] ^= 255
        assert fitted(Image(whole.mime, bytes(damaged))) == ([], [], [0])


def test_what_says_that_it_is_huge_is_not_decoded() -> None:
    head = bytearray(picture(10, 10, "PNG").content)
    head[16:24] = (60_000).to_bytes(4, "big") * 2
    assert fitted(Image("image/png", bytes(head))) == ([], [], [0])


def test_pictures_share_the_room_of_an_answer() -> None:
    one = picture(800, 800, "JPEG")
    kinds, smaller, left_out = fitted(one, one, one, room=len(one.content) * 3)
    assert (len(kinds), smaller, left_out) == (2, [], [2])


def test_a_wide_frame_has_a_line_for_each_row(agent: Agent) -> None:
    code = "import pandas as pd\npd.DataFrame({f'column_{n}': range(1000) for n in range(50)})"
    said = agent.text("execute_code", code=code, session="frame").splitlines()
    header = next(line for line in said if "column_0" in line)
    assert header.startswith(" | column_0 | column_1 | ")
    assert header.endswith("| column_49")
    assert said[said.index(header) + 1].startswith("0 | 0 | 0 |")
    assert "1000 rows x 50 columns" in "\n".join(said).replace("\N{MULTIPLICATION SIGN}", "x")
    assert not any(line.endswith("\\") for line in said)
    styled = agent.text("execute_code", code="pd.DataFrame({'a': [1.5]}).style", session="frame")
    assert "0 | 1.500000" in styled


@pytest.mark.parametrize(
    "html",
    [
        pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])).to_html(),
        "<table><tr><td><table><tr><td>1</td></tr></table></td></tr></table>",
        "<td>1</td>",
        "",
        "<table",
    ],
)
def test_tables_whose_cells_span_others_are_left_as_they_are(html: str) -> None:
    assert table_text(html) is None


def test_texts_of_cells_are_read_as_they_are() -> None:
    frame = pd.DataFrame({"a<b": ["x & y", "<i>é</i>\nline"]})
    assert table_text(frame.to_html()) == " | a<b\n0 | x & y\n1 | <i>é</i>\\nline"
