"""What a model is shown stays within bounds whatever a cell puts out, says what was cut, and every cut part can be read."""

from __future__ import annotations

import base64
import io
import json

import anyio
import pandas as pd
import PIL.Image
import pytest
from fastmcp.client.client import CallToolResult

from kernelexec.mcp.answers import select_pictures
from kernelexec.results import Image
from kernelexec.results.media import PICTURE_BYTES, SIDE_PIXELS
from kernelexec.results.model_answers import render_table

ANSWER_BYTES = 900_000


def size_of(result: CallToolResult) -> int:
    return len(json.dumps([block.model_dump(mode="json") for block in result.content])) + len(json.dumps(result.meta))


def pictures(result: CallToolResult) -> list[PIL.Image.Image]:
    blocks = [block for block in result.content if block.type == "image"]
    actual: list[PIL.Image.Image] = [PIL.Image.open(io.BytesIO(base64.b64decode(block.data))) for block in blocks]
    for block, picture in zip(blocks, actual, strict=True):
        assert len(base64.b64decode(block.data)) <= PICTURE_BYTES
        assert max(picture.size) <= SIDE_PIXELS
        assert getattr(picture, "format", None) == block.mime_type.removeprefix("image/").upper()
    return actual


def picture(width: int, height: int, kind: str, mode: str = "RGB") -> Image:
    written = io.BytesIO()
    noise = PIL.Image.effect_noise((width, height), 80).convert(mode)
    noise.save(written, kind)
    return Image(PIL.Image.MIME[kind], written.getvalue())


def fitted(*images: Image, room: int = ANSWER_BYTES) -> tuple[list[str], list[int], list[int]]:
    actual = anyio.run(select_pictures, images, room)
    for block in actual.shown:
        assert len(base64.b64decode(block.data)) <= PICTURE_BYTES
        assert max(PIL.Image.open(io.BytesIO(base64.b64decode(block.data))).size) <= SIDE_PIXELS
    return [block.mime_type for block in actual.shown], actual.smaller, actual.left_out


def test_fitting_pictures_are_unchanged_and_others_converted() -> None:
    small = picture(100, 50, "PNG")
    assert fitted(small) == (["image/png"], [], [])
    assert anyio.run(select_pictures, (small,), ANSWER_BYTES).shown[0].data == base64.b64encode(small.content).decode()
    assert fitted(picture(100, 50, "JPEG"), picture(100, 50, "GIF", "P"), picture(100, 50, "WEBP", "RGBA")) == (
        ["image/jpeg", "image/png", "image/png"],
        [],
        [],
    )
    assert fitted(picture(1700, 300, "PNG", "RGBA"), picture(1200, 1200, "JPEG"))[1:] == ([0, 1], [])


@pytest.mark.parametrize(
    "content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff" + bytes(1000), b"GIF89a" + b"\xff" * 4]
)
@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"])
def test_invalid_pictures_are_left_out(content: bytes, mime: str) -> None:
    assert fitted(Image(mime, content)) == ([], [], [0])


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_and_damaged_pictures_are_left_out(kind: str) -> None:
    whole = picture(100, 50, kind)
    assert fitted(Image(whole.mime, whole.content[: len(whole.content) // 2])) == ([], [], [0])
    if kind == "PNG":
        damaged = bytearray(whole.content)
        damaged[60] ^= 255
        assert fitted(Image(whole.mime, bytes(damaged))) == ([], [], [0])


def test_pictures_with_a_huge_size_are_not_decoded() -> None:
    head = bytearray(picture(10, 10, "PNG").content)
    head[16:24] = (60_000).to_bytes(4, "big") * 2
    assert fitted(Image("image/png", bytes(head))) == ([], [], [0])


def test_pictures_share_the_room_of_an_answer() -> None:
    item = picture(800, 800, "JPEG")
    kinds, smaller, left_out = fitted(item, item, item, room=len(item.content) * 3)
    assert (len(kinds), smaller, left_out) == (2, [], [2])


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
    assert render_table(html) is None


def test_texts_of_cells_are_read_as_they_are() -> None:
    frame = pd.DataFrame({"a<b": ["x & y", "<i>é</i>\nline"]})
    assert render_table(frame.to_html()) == " | a<b\n0 | x & y\n1 | <i>é</i>\\nline"
