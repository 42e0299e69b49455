"""The session's notebook: valid after every cell, written whole or not at all, bounded from its oldest cell on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec import Session
from kernelexec.cells import CodeCell
from kernelexec.config import OutputLimits
from kernelexec.events import CellExecuted, DisplayUpdated, Event, KernelChanged, SessionClosed, SessionOpened
from kernelexec.outputs import Collector
from kernelexec.records.notebook.recorder import Recorder as Noting
from kernelexec.results import DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream
from tests.hostile.messages import feeds
from tests.support.paths import ROOT

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ODD: dict[str, Output] = {
    "stdout": Stream("stdout", "a\nb"),
    "stderr": Stream("stderr", "\n"),
    "unicode": Stream("stdout", "\u65e5\u672c \U0001f389 e\u0301 \u2028\u2029\x85"),
    "control characters": Stream("stdout", "a\x00b\x1b[31m\x07\r\n\x0c"),
    "quotes": Stream("stdout", '"\\"],"cells":[]}'),
    "error": Error("ValueError", "no\n\x00", ("\x1b[31mline\x1b[0m", "", "end")),
    "bare error": Error("", ""),
    "empty display": DisplayData({}),
    "picture": DisplayData({"image/png": PNG, "text/plain": "<Figure>"}, {"image/png": {"width": 1}}),
    "drawing": DisplayData({"image/svg+xml": "<svg>\n<g/>\n</svg>"}),
    "json object": DisplayData({"application/json": {"a": [1, None, True, {"": []}]}}),
    "json text": DisplayData({"application/json": "text"}),
    "json null": DisplayData({"application/json": None}),
    "vendor's json": DisplayData({"application/vnd.x.v1+json": {"a": 1}}, {"m": {"n": [1]}}),
    "script": DisplayData({"text/html": "<script>\n</script>", "application/javascript": "1"}),
    "value": ExecuteResult({"text/plain": "42"}, {}, 7, "d"),
    "value without a count": ExecuteResult({"text/plain": "42"}),
}
NOTE = "[outputs left out: the notebook had grown too large]\n"


class Recorder(Noting):
    """A recorder that writes at once."""

    def __call__(self, event: Event, /) -> None:
        super().__call__(event)
        self.write()


def executed(*outputs: Output, source: str = "1", **fields: Any) -> CellExecuted:
    return CellExecuted("s", CodeCell(source), ExecutionResult(uuid.uuid4().hex, "s", "ok", outputs=outputs, **fields))


def update(display_id: str, text: str) -> DisplayUpdated:
    return DisplayUpdated("s", display_id, {"text/plain": text}, {"new": True})


def shown(text: str, display_id: str) -> DisplayData:
    return DisplayData({"text/plain": text}, {}, display_id)


def cells_of(path: Path) -> Any:
    """The cells of a notebook that is valid."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    return nbformat.from_dict(notebook).cells


def texts_of(path: Path) -> list[str]:
    """The first output of each cell, as text."""
    return [cell.outputs[0].get("text") or cell.outputs[0].data["text/plain"] for cell in cells_of(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    return directory / "s.ipynb"


def test_the_notebook_is_valid_after_every_cell_and_holds_what_was_put_out(path: Path) -> None:
    recorder = Recorder(path)
    for number, output in enumerate(ODD.values(), 1):
        recorder(executed(output, source=f"# {number} \u65e5\n'\\x00'", execution_count=number))
        cells = cells_of(path)
        assert len(cells) == number
        assert cells[-1].source == f"# {number} \u65e5\n'\\x00'"
        assert cells[-1].execution_count == number
        [recorded] = cells[-1].outputs
        match output:
            case Stream():
                assert recorded == {"output_type": "stream", "name": output.name, "text": output.text}
            case Error():
                assert (recorded.ename, recorded.evalue, recorded.traceback) == (
                    output.ename,
                    output.evalue,
                    list(output.traceback),
                )
            case _:
                assert (recorded.output_type, recorded.data, recorded.metadata) == (
                    output.output_type,
                    output.data,
                    output.metadata,
                )
    assert b"\x00" not in path.read_bytes()


def test_surrogates_are_escaped(path: Path) -> None:
    collector = Collector(OutputLimits())
    collector.feed("stream", {"name": "stdout", "text": "\ud800"})
    collector.feed("error", {"ename": "E\udfff", "evalue": "\ud800", "traceback": ["\ud800"]})
    collector.feed("display_data", {"data": {"text/plain": "\ud800"}, "metadata": {"\ud800": "\udfff"}})
    Recorder(path)(executed(*collector.outputs()))
    [cell] = cells_of(path)
    stream, error, display = cell.outputs
    assert stream.text == "\\ud800"
    assert (error.ename, error.evalue, error.traceback) == ("E\\udfff", "\\ud800", ["\\ud800"])
    assert (display.data, display.metadata) == ({"text/plain": "\\ud800"}, {"\\ud800": "\\udfff"})


def test_notebooks_stay_valid_with_any_message_of_a_kernel(path: Path) -> None:
    invalid = []
    for msg_type, content in feeds():
        collector = Collector(OutputLimits())
        collector.feed(msg_type, content)
        Recorder(path)(executed(*collector.outputs()))
        try:
            cells_of(path)
        except nbformat.ValidationError as exc:
            invalid.append((msg_type, repr(content)[:60], str(exc)[:60]))
    assert invalid == []


def test_the_cell_says_what_became_of_it(path: Path) -> None:
    event = executed(state="kept")
    Recorder(path)(event)
    [cell] = cells_of(path)
    noted = {"execution_id": event.result.execution_id, "status": "ok", "state": "kept", "seconds": event.result.timing.run}
    assert cell.metadata.kernelexec == noted


def test_an_update_changes_the_displays_of_earlier_cells(path: Path) -> None:
    recorder = Recorder(path)
    recorder(executed(shown("old", "d"), shown("other", "e"), ExecuteResult({"text/plain": "old"}, {}, 1, "d")))
    recorder(executed(shown("old", "d")))
    recorder(update("d", "new"))
    recorder(update("unknown", "new"))
    recorder(executed())
    first, second, third = cells_of(path)
    assert [(output.data, output.metadata) for output in (*first.outputs, *second.outputs)] == [
        ({"text/plain": "new"}, {"new": True}),
        ({"text/plain": "other"}, {}),
        ({"text/plain": "new"}, {"new": True}),
        ({"text/plain": "new"}, {"new": True}),
    ]
    assert third.outputs == []


def test_other_events_write_nothing(path: Path) -> None:
    recorder = Recorder(path)
    for event in (SessionOpened("s", path.parent), KernelChanged("s", 1, "started"), update("d", "x"), SessionClosed("s")):
        recorder(event)
    assert list(path.parent.iterdir()) == []


def test_only_the_oldest_cells_lose_their_outputs_to_the_limit(path: Path) -> None:
    recorder = Recorder(path, limit_bytes=5000)
    recorder(executed(source="nothing"))
    for number in range(10):
        recorder(executed(Stream("stdout", f"{number}" * 1000), source=f"source {number}"))
    nothing, *cells = cells_of(path)
    texts = [cell.outputs[0].text for cell in cells]
    kept = sum(text != NOTE for text in texts)
    assert 0 < kept < 5
    assert texts == [NOTE] * (10 - kept) + [f"{number}" * 1000 for number in range(10 - kept, 10)]
    assert [cell.source for cell in cells] == [f"source {number}" for number in range(10)]
    assert nothing.outputs == []


def test_the_limit_is_in_bytes_whatever_the_characters(path: Path) -> None:
    recorder = Recorder(path, limit_bytes=20_000)
    for _ in range(10):
        recorder(executed(Stream("stdout", "\u65e5" * 2000)))
    assert NOTE in texts_of(path)
    assert path.stat().st_size < 20_000 + 1000


def test_the_newest_cell_keeps_its_outputs_whatever_the_limit(path: Path) -> None:
    recorder = Recorder(path, limit_bytes=10)
    recorder(executed(Stream("stdout", "a" * 1000)))
    assert texts_of(path) == ["a" * 1000]
    recorder(executed(Stream("stdout", "b" * 1000)))
    assert texts_of(path) == [NOTE, "b" * 1000]


def test_an_update_brings_back_nothing_that_was_left_out(path: Path) -> None:
    recorder = Recorder(path, limit_bytes=2000)
    recorder(executed(shown("old" * 1000, "d")))
    recorder(executed(shown("old", "d")))
    recorder(update("d", "new"))
    recorder(executed(Stream("stdout", "end")))
    assert texts_of(path) == [NOTE, "new", "end"]


@pytest.mark.parametrize("name", ["s.ipynb", f".s.ipynb.{os.getpid()}.tmp"], ids=["itself", "temporary"])
def test_a_link_in_the_notebooks_place_is_replaced_and_not_followed(path: Path, name: str) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_text("precious")
    path.with_name(name).symlink_to(elsewhere)
    Recorder(path)(executed(Stream("stdout", "a")))
    assert elsewhere.read_text() == "precious"
    assert not path.is_symlink()
    assert texts_of(path) == ["a"]


def test_nothing_but_the_notebook_is_left(path: Path) -> None:
    recorder = Recorder(path)
    for _ in range(3):
        recorder(executed(Stream("stdout", "a")))
        assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing_and_the_next_one_holds_all(path: Path) -> None:
    recorder = Recorder(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        recorder(executed(Stream("stdout", "a")))
    assert list(path.parent.iterdir()) == [path]
    path.rmdir()
    path.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        recorder(executed(Stream("stdout", "b")))
    assert list(path.parent.parent.iterdir()) == []
    path.parent.mkdir()
    recorder(executed(Stream("stdout", "c")))
    assert texts_of(path) == ["a", "b", "c"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("handler", "status"), [("SIG_DFL", -signal.SIGXFSZ), ("SIG_IGN", 1)])
def test_a_write_that_breaks_off_leaves_the_old_file_whole(path: Path, handler: str, status: int) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from kernelexec.cells import CodeCell
from kernelexec.events import CellExecuted
from kernelexec.records.notebook.recorder import Recorder
from kernelexec.results import ExecutionResult, Stream
def record(text):
    recorder(CellExecuted("s", CodeCell("1"), ExecutionResult("id", "s", "ok", outputs=(Stream("stdout", text),))))
    recorder.write()
recorder = Recorder(Path({str(path)!r}))
record("a")
signal.signal(signal.SIGXFSZ, signal.{handler})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
record("b" * 1_000_000)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == status
    assert texts_of(path) == ["a"]
    if status == 1:
        assert b"File too large" in done.stderr
        assert list(path.parent.iterdir()) == [path]


def test_a_session_keeps_its_notebook(session: Session) -> None:
    path = session.workspace / f"{session.name}.ipynb"
    shows = "from IPython.display import SVG, JSON, display\nhandle = display('old', display_id=True)\n"
    sources = [
        shows + "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), JSON({'a': [1]}))",
        "print('\\u65e5\\x00')\nhandle.update('new')\n42",
        "raise ValueError('\\ud800')",
    ]
    for number, source in enumerate(sources, 1):
        session.execute(source)
        session.save_notebook()
        assert [cell.source for cell in cells_of(path)] == sources[:number]
    session.execute_command("echo hello; exit 7")
    session.save_notebook()
    first, second, third, last = cells_of(path)
    assert [min(output.data) for output in first.outputs] == ["text/plain", "image/svg+xml", "application/json"]
    assert first.outputs[0].data["text/plain"] == "'new'"
    assert [output.output_type for output in second.outputs] == ["stream", "execute_result"]
    assert second.outputs[0].text == "\u65e5\x00\n"
    assert (third.outputs[0].ename, third.outputs[0].evalue) == ("ValueError", "\\ud800")
    assert (last.source, last.outputs[0].text) == ("%%bash\necho hello; exit 7", "hello\n")
    assert last.metadata.kernelexec.status == "error"
