"""The recorder notes at once and writes on request, by any thread: all that it kept, and nothing twice."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from kernelexec.cells import ShellCell
from kernelexec.events import DisplayUpdated
from kernelexec.records.notebook import recorder
from kernelexec.records.notebook.notebook_io import notebook_output
from kernelexec.records.notebook.recorder import Recorder, make_empty, open_recorder
from kernelexec.results import DisplayData, Stream
from kernelexec.workspace import FileChanges
from kernelexec.workspace.safe_files import replace_file
from tests.contract.records.test_recorder import NOTE, ODD, cells_of, executed, shown, texts_of, update
from tests.support.slow_disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.ipynb"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_file_is_what_nbformat_makes_of_the_same_cells(path: Path) -> None:
    kept = Recorder(path)
    event = executed(*ODD.values(), shown("long \u65e5" * 100_000, "d"), source="a\nb", execution_count=3)
    for each in (event, executed(source="")):
        kept(each)
    kept.write()
    outputs: list[Any] = []
    for output in event.result.outputs:
        fields = json.loads(json.dumps(notebook_output(output)))
        outputs.append(new_output(fields.pop("output_type"), **fields))
    first, second = json.loads(path.read_text())["cells"]
    cells = [
        new_code_cell("a\nb", id=first["id"], metadata=first["metadata"], execution_count=3, outputs=outputs),
        new_code_cell("", id=second["id"], metadata=second["metadata"], outputs=[]),
    ]
    metadata = json.loads(path.read_text())["metadata"]
    expected = new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(expected)
    actual = nbformat.read(path, as_version=4)
    assert actual == nbformat.reads(nbformat.writes(expected), as_version=4)
    assert (actual.nbformat, actual.nbformat_minor) == (expected.nbformat, expected.nbformat_minor)


def test_unchanged_outputs_are_not_built_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, created, whole = Recorder(path), [], recorder._dump

    def make(output: Any) -> bytes:
        created.append(output)
        return whole(output)

    monkeypatch.setattr(recorder, "_dump", make)
    for number in range(10):
        kept(executed(shown(f"{number}", f"d{number}"), Stream("stdout", "a")))
        kept.write()
    assert len(created) == 20
    kept(update("d3", "new"))
    kept.write()
    assert len(created) == 21
    assert texts_of(path) == ["0", "1", "2", "new", *"456789"]


def test_nothing_is_written_where_nothing_changed(path: Path, disk: Disk) -> None:
    kept = Recorder(path)
    kept.write()
    kept(executed(shown("old", "d")))
    kept.write()
    kept(update("unknown", "new"))
    kept.write()
    assert disk.writes == 1
    kept(update("d", "new"))
    kept.write()
    assert disk.writes == 2


def test_of_many_updates_the_newest_is_kept_and_they_take_no_more_than_the_limit(path: Path) -> None:
    kept = Recorder(path, limit_bytes=100_000)
    kept(executed(*(shown("old", f"d{n}") for n in range(20))))
    for n in range(1000):
        kept(update(f"d{n % 20}", f"{n:010}" * 1000))
    kept(DisplayUpdated("s", "d0", {"application/json": [["x" * 1000] * 1000]}, {}))
    assert sum(weight for _, weight in kept._noted.values()) == kept._noted_bytes <= 100_000
    kept.write()
    assert kept._noted_bytes == 0
    assert path.stat().st_size < 110_000
    [cell] = cells_of(path)
    texts = {output.data["text/plain"] for output in cell.outputs}
    assert texts - {"old"} <= {f"{n:010}" * 1000 for n in range(980, 1000)}
    kept(update("d19", "end"))
    kept.write()
    assert cells_of(path)[0].outputs[19].data["text/plain"] == "end"


def test_an_update_makes_room_at_the_expense_of_older_cells(path: Path) -> None:
    kept = Recorder(path, limit_bytes=5000)
    for text in ("a" * 1500, "b" * 1500):
        kept(executed(Stream("stdout", text)))
    kept(executed(shown("old", "d")))
    kept(update("d", "c" * 2000))
    kept.write()
    assert texts_of(path) == [NOTE, "b" * 1500, "c" * 2000]
    kept(update("d", "e" * 6000))
    kept.write()
    assert texts_of(path) == [NOTE, "b" * 1500, "c" * 2000]


def test_events_and_writes_of_several_threads_do_not_disturb_each_other(path: Path) -> None:
    kept, stop = Recorder(path), threading.Event()

    def write() -> None:
        while not stop.is_set():
            kept.write()

    writers = [threading.Thread(target=write) for _ in range(3)]
    for thread in writers:
        thread.start()
    for n in range(200):
        kept(executed(shown(f"old {n}", f"d{n % 5}"), source=f"{n}"))
        kept(update(f"d{n % 5}", f"new {n}"))
    stop.set()
    for thread in writers:
        thread.join()
    kept.write()
    cells = cells_of(path)
    assert [cell.source for cell in cells] == [f"{n}" for n in range(200)]
    assert {cell.outputs[0].data["text/plain"] for cell in cells} == {f"new {n}" for n in range(195, 200)}


def test_a_big_display_is_recorded_whole(path: Path) -> None:
    kept, text = Recorder(path), '"\\\n\u65e5\U0001f389' * 200_000
    kept(executed(DisplayData({"data": "short", "text/html": text, "application/json": {"a": text}}, {"m": text}), source=text))
    kept(executed(Stream("stdout", text)))
    kept.write()
    first, second = json.loads(path.read_text())["cells"]
    assert first["outputs"][0]["data"] == {"data": "short", "text/html": text, "application/json": {"a": text}}
    assert (first["source"], first["outputs"][0]["metadata"], second["outputs"][0]["text"]) == (text, {"m": text}, text)


def test_a_notebook_that_is_being_written_is_no_file_of_a_cell(tmp_path: Path) -> None:
    watch = FileChanges(tmp_path, ignore=frozenset({"own.ipynb"}))
    seen: list[tuple[str, ...]] = []

    def content() -> Iterator[bytes]:
        yield b"{"
        seen.append(watch.changes())
        yield b"}"

    replace_file(tmp_path / "own.ipynb", content())
    replace_file(tmp_path / "other.ipynb", content())
    assert seen[0] == ()
    assert len(seen[1]) == 1
    assert watch.changes() == ("other.ipynb",)


def held_here() -> int:
    """The bytes that recorders, their encoders and this module have allocated: threads of other tests may go on meanwhile."""
    own = [tracemalloc.Filter(True, pattern) for pattern in (__file__, "*/kernelexec/*", "*/json/*")]  # noqa: FBT003 - inclusive
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(own).traces)


@pytest.mark.parametrize("what", ["left out", "source"])
def test_omitted_outputs_and_long_sources_take_no_memory(path: Path, what: str) -> None:
    recorder = Recorder(path, limit_bytes=100_000)
    held = []
    tracemalloc.start()
    try:
        for number in range(40):
            long = f"{number}" * 50_000
            recorder(executed(shown(long, "d")) if what == "left out" else executed(source=long))
            recorder.write()
            if number in (9, 39):  # the first ones import modules
                held.append(held_here())
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 1_000_000
    assert len(cells_of(path)) == 40


def forged(path: Path, **cell: Any) -> None:
    """Write a notebook that looks like a recorder's, with one cell."""
    fields = {"cell_type": "code", "metadata": {"kernelexec": {}}, "source": "", "outputs": [], **cell}
    make_empty(path)
    notebook = json.loads(path.read_text())
    notebook["cells"] = [fields]
    path.write_text(json.dumps(notebook))


def test_half_a_character_of_a_forged_notebook_is_escaped(path: Path) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": "\udfff" * 200_000}
    forged(path, source="\ud800", metadata={"kernelexec": {"execution_id": "\ud801"}}, outputs=[output, {"\ud802": 1}])
    for kept in (Recorder.of(path), Recorder(path.with_name("t.ipynb"), is_reserved=False)):
        assert kept is not None
        if not kept.cell_count:
            kept.extend(path, 0)
        kept.write()
        [cell] = json.loads(kept.path.read_text())["cells"]
        assert (cell["source"], cell["metadata"]) == ("\\ud800", {"kernelexec": {"execution_id": "\\ud801"}})
        assert (cell["outputs"][0]["text"], cell["outputs"][1]) == ("\\udfff" * 200_000, {"\\ud802": 1})


def test_a_forged_notebook_that_is_nested_deep_is_cut_there(path: Path) -> None:
    deep: Any = "bottom"
    for _ in range(400):
        deep = [deep]
    forged(path, outputs=[{"data": {"application/json": deep}}])
    kept = Recorder.of(path)
    assert kept is not None
    kept.write()
    assert "bottom" not in path.read_text()
    assert json.loads(path.read_text())["cells"]


@pytest.mark.parametrize(
    "cell", [{"metadata": "kernelexec"}, {"metadata": ["kernelexec"]}, {"metadata": {"kernelexec": None}}, {"outputs": "text"}]
)
def test_a_cell_that_no_recorder_writes_makes_a_notebook_of_another_program(path: Path, cell: dict[str, Any]) -> None:
    forged(path, **cell)
    assert Recorder.of(path) is None
    Recorder(path.with_name("t.ipynb")).extend(path, 0)


def test_an_argument_that_cannot_be_encoded_is_escaped(path: Path) -> None:
    kept, event = Recorder(path), executed()
    kept(replace(event, cell=ShellCell("%%bash\nls", "ls", persistent=True, work_dir="\udc80", language="bash")))
    kept.write()
    [cell] = json.loads(path.read_text())["cells"]
    assert cell["metadata"]["kernelexec"]["command"]["work_dir"] == "\\udc80"


def test_nine_forged_notebooks_keep_no_session_from_its_notebook(path: Path) -> None:
    for number in range(1, 10):
        each = path if number == 1 else path.with_name(f"s-{number}.ipynb")
        forged(each, source="\ud800")
        os.utime(each, (number, number))
    assert open_recorder("s", path.parent, is_replay=True).path == path
    assert json.loads(path.read_text())["cells"] == []


def test_a_forged_notebook_is_continued_as_far_as_it_can_be_written(path: Path) -> None:
    forged(path, source="\ud800")
    recorder = open_recorder("s", path.parent)
    assert (recorder.path, recorder.cell_count) == (path, 1)
    recorder.finish()
    other = open_recorder("s", path.parent)
    assert open_recorder("s", path.parent).path == path.with_name("s-2.ipynb")  # the first one has the directory
    other.finish()
