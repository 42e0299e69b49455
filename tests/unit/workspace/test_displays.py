"""Displays as files of the workspace: which representation, under which name, and never outside of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kernelexec.results import DisplayData, Error, ExecuteResult, Output, Stream
from kernelexec.workspace import DisplayFiles

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PNG_TEXT = base64.b64encode(PNG).decode()
FIGURE = {"data": [{"y": [1, 2, "\u65e5"]}], "layout": {}}
HTML = "<table><td>\u65e5\U0001f389</td></table>"
MIB = 1024 * 1024
MEDIA: dict[str, tuple[Any, str, bytes]] = {
    "image/png": (PNG_TEXT, "png", PNG),
    "image/jpeg": (PNG_TEXT, "jpg", PNG),
    "image/gif": (PNG_TEXT, "gif", PNG),
    "image/webp": (PNG_TEXT, "webp", PNG),
    "application/pdf": (PNG_TEXT, "pdf", PNG),
    "image/svg+xml": ("<svg>\u65e5</svg>", "svg", "<svg>\u65e5</svg>".encode()),
    "text/html": (HTML, "html", HTML.encode()),
    "application/vnd.plotly.v1+json": (FIGURE, "plotly.json", json.dumps(FIGURE).encode()),
    "application/vnd.vega.v5+json": (FIGURE, "vega.json", json.dumps(FIGURE).encode()),
    "application/geo+json": ([1, FIGURE], "geojson", json.dumps([1, FIGURE]).encode()),
}
CONTENTS: dict[str, tuple[dict[str, Any], dict[str, bytes]]] = {
    "base64 over lines": ({"image/png": base64.encodebytes(PNG).decode()}, {"png": PNG}),
    "a picture before a table": ({"text/html": HTML, "image/png": PNG_TEXT}, {"png": PNG}),
    "a raster before a drawing": ({"image/svg+xml": "<svg/>", "image/jpeg": PNG_TEXT}, {"jpg": PNG}),
    "a lone surrogate": ({"text/html": "a\ud800b"}, {"html": b"a?b"}),
    "no base64": ({"image/png": "not base64!"}, {}),
    "base64 that lacks its end": ({"image/png": PNG_TEXT[:-3]}, {}),
    "base64 of other letters": ({"image/png": "\u65e5\u672c\u8a9e\u65e5"}, {}),
    "base64 of nothing": ({"image/png": ""}, {}),
    "no base64, but a table": ({"image/png": "!", "text/html": HTML}, {"html": HTML.encode()}),
    "plain text": ({"text/plain": "4"}, {}),
    "an unknown kind": ({"application/x-own": PNG_TEXT}, {}),
    "a number": ({"image/png": 5, "text/html": 5}, {}),
    "nothing": ({"image/png": None}, {}),
    "no representation": ({}, {}),
    "a picture that is an object": ({"image/png": {"a": 1}}, {}),
    "a table that is a list": ({"text/html": ["<b>"]}, {}),
    "a figure that is text": ({"application/vnd.plotly.v1+json": PNG_TEXT}, {}),
}


def saved(workspace: Path, *outputs: Output, cell: int = 7, limit: int = MIB) -> dict[str, bytes]:
    """What was saved, by path and in order; each path is one in outputs/, and a file."""
    paths = DisplayFiles(workspace, limit).save(cell, outputs)
    assert all(not (workspace / path).is_symlink() for path in paths)
    return {path: (workspace / path).read_bytes() for path in paths}


@pytest.mark.parametrize(("mime", "value", "extension", "content"), [(mime, *rest) for mime, rest in MEDIA.items()])
@pytest.mark.parametrize("kind", [DisplayData, ExecuteResult])
def test_the_extension_is_that_of_the_media_type(
    tmp_path: Path, kind: type[DisplayData | ExecuteResult], mime: str, value: Any, extension: str, content: bytes
) -> None:
    assert saved(tmp_path, kind({"text/plain": "p", mime: value})) == {f"outputs/cell-0007-1.{extension}": content}


@pytest.mark.parametrize(("data", "files"), CONTENTS.values(), ids=CONTENTS)
def test_the_best_representation_that_can_be_read_is_saved(
    tmp_path: Path, data: dict[str, Any], files: dict[str, bytes]
) -> None:
    assert saved(tmp_path, DisplayData(data)) == {f"outputs/cell-0007-1.{name}": content for name, content in files.items()}


def test_displays_are_numbered_in_their_order_and_other_outputs_are_not(tmp_path: Path) -> None:
    picture, table = DisplayData({"image/png": PNG_TEXT}), ExecuteResult({"text/html": HTML})
    actual = saved(
        tmp_path, Stream("stdout", "a"), picture, DisplayData({"text/plain": "p"}), table, Error("E", "v"), cell=12345
    )
    assert list(actual) == ["outputs/cell-12345-1.png", "outputs/cell-12345-2.html"]


def test_without_displays_no_directory_is_made(tmp_path: Path) -> None:
    assert saved(tmp_path, Stream("stdout", "a"), DisplayData({"text/plain": "p"}), Error("E", "v")) == {}
    assert list(tmp_path.iterdir()) == []


def test_without_a_budget_nothing_is_written(tmp_path: Path) -> None:
    assert saved(tmp_path, DisplayData({"image/png": PNG_TEXT}), limit=0) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_display_of_exactly_the_budget_is_saved_and_one_byte_more_is_not(tmp_path: Path) -> None:
    picture = DisplayData({"image/png": PNG_TEXT})
    assert saved(tmp_path, picture, limit=len(PNG) - 1) == {}
    assert list(saved(tmp_path, picture, limit=len(PNG)).values()) == [PNG]


def test_displays_over_the_budget_are_skipped_and_later_ones_saved(tmp_path: Path) -> None:
    outputs = [DisplayData({"text/html": letter * size}) for letter, size in (("a", 40), ("b", 100), ("c", 60), ("d", 1))]
    assert list(saved(tmp_path, *outputs, limit=100).values()) == [b"a" * 40, b"c" * 60]
    assert len(list((tmp_path / "outputs").iterdir())) == 2


def test_the_budget_is_one_for_all_that_a_cell_saves(tmp_path: Path) -> None:
    files = DisplayFiles(tmp_path, 100)
    table = (DisplayData({"text/html": "a" * 60}),)
    assert files.save(1, table) == ("outputs/cell-0001-1.html",)
    assert files.save(1, table) == ()


def test_a_cell_has_a_bounded_number_of_files(tmp_path: Path) -> None:
    files = DisplayFiles(tmp_path, MIB)
    assert len(files.save(1, (DisplayData({"text/html": "a"}),) * 250)) == 200
    assert files.note == "50 display(s) were not saved as files: a cell has 200 at most."


def test_a_file_has_a_name_whatever_names_a_cell_takes(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    for suffix in ("", *(f"-{number}" for number in range(1, 200))):
        (tmp_path / "outputs" / f"cell-0007-1{suffix}.html").touch()
    ((name, content),) = saved(tmp_path, DisplayData({"text/html": "a"})).items()
    assert content == b"a"
    assert int(name.removesuffix(".html").rpartition("-")[2]) > 200


def test_a_name_that_exists_is_left_alone(tmp_path: Path) -> None:
    picture = DisplayData({"image/png": PNG_TEXT})
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "cell-0007-1.png").write_text("mine")
    assert list(saved(tmp_path, picture)) == ["outputs/cell-0007-1-1.png"]
    assert list(saved(tmp_path, picture)) == ["outputs/cell-0007-1-2.png"]
    assert (tmp_path / "outputs" / "cell-0007-1.png").read_text() == "mine"


def test_a_link_in_the_place_of_a_file_is_not_written_through(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    (work / "outputs" / "cell-0007-1.png").symlink_to(tmp_path / "target")
    (work / "outputs" / "cell-0007-1-1.png").symlink_to("nowhere")
    assert saved(work, DisplayData({"image/png": PNG_TEXT})) == {"outputs/cell-0007-1-2.png": PNG}
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("target", ["elsewhere", "nowhere", "work/inner", "work/outputs"])
def test_a_link_in_the_place_of_the_directory_saves_nothing(tmp_path: Path, target: str) -> None:
    for name in ("work/inner", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / "outputs").symlink_to(tmp_path / target)
    before = sorted(tmp_path.rglob("*"))
    assert saved(tmp_path / "work", DisplayData({"image/png": PNG_TEXT})) == {}
    assert sorted(tmp_path.rglob("*")) == before


def note_of(workspace: Path) -> str | None:
    files = DisplayFiles(workspace, MIB)
    files.save(7, (DisplayData({"image/png": PNG_TEXT}), DisplayData({"text/html": HTML})))
    return files.note


def test_displays_without_a_file_are_reported(tmp_path: Path) -> None:
    assert note_of(tmp_path) is None
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "outputs").symlink_to(tmp_path)
    replaced = "2 display(s) were not saved as files: outputs in the workspace is a link or a file."
    assert note_of(tmp_path / "linked") == replaced
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "outputs").touch()
    assert note_of(tmp_path / "file") == replaced
    assert note_of(tmp_path / "gone") == "2 display(s) were not saved as files: No such file or directory."


def test_a_file_in_the_place_of_the_directory_saves_nothing(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("mine")
    assert saved(tmp_path, DisplayData({"image/png": PNG_TEXT})) == {}
    assert (tmp_path / "outputs").read_text() == "mine"


@pytest.mark.parametrize("workspace", ["gone", "link"])
def test_a_workspace_that_was_taken_away_or_replaced_saves_nothing(tmp_path: Path, workspace: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    assert saved(tmp_path / workspace, DisplayData({"image/png": PNG_TEXT})) == {}
    assert list((tmp_path / "elsewhere").iterdir()) == []
