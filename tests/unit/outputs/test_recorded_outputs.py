"""Outputs for records: what a result cuts or has no room for is whole there, within a bound of its own."""

from __future__ import annotations

from typing import Any

import pytest

from kernelexec.config import OutputLimits
from kernelexec.outputs import Collector, Displays
from kernelexec.results import DisplayData, Error, ExecuteResult, Output, Stream
from kernelexec.text import cut_middle

LIMITS = OutputLimits(stream_bytes=1000, display_bytes=4000)


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.config.settings.RECORD_BYTES", 20_000)


def display(data: dict[str, Any], display_id: str | None = None) -> dict[str, Any]:
    return {"data": data, "metadata": {}, "transient": {} if display_id is None else {"display_id": display_id}}


def collected(*contents: dict[str, Any], limits: OutputLimits = LIMITS) -> Collector:
    collector = Collector(limits)
    for content in contents:
        collector.feed("display_data", content)
    return collector


def data_of(outputs: tuple[Output, ...]) -> list[dict[str, Any]]:
    return [output.data for output in outputs if isinstance(output, DisplayData | ExecuteResult)]


def test_outputs_that_fit_are_the_same() -> None:
    collector = collected(display({"text/plain": "1", "text/html": "<b>"}))
    assert collector.recorded_outputs() == collector.outputs()
    assert not collector.has_cuts


def test_a_long_text_is_cut_in_the_result_only() -> None:
    page = "<p>" + "x" * 3000 + "</p>"
    collector = collected(display({"text/html": page}))
    assert len(data_of(collector.outputs())[0]["text/html"]) < 1100
    assert data_of(collector.recorded_outputs()) == [{"text/html": page}]
    assert collector.has_cuts


def test_a_picture_without_room_in_the_result_is_in_the_record_in_its_place() -> None:
    picture = {"image/png": "a" * 8000, "text/plain": "<Figure>"}
    collector = collected(display({"text/plain": "before"}), display(picture), display({"text/plain": "after"}))
    assert data_of(collector.outputs()) == [{"text/plain": "before"}, {"text/plain": "after"}]
    assert data_of(collector.recorded_outputs()) == [{"text/plain": "before"}, picture, {"text/plain": "after"}]
    assert collector.dropped_displays == 1


def test_the_largest_representations_are_left_out_whole_and_named() -> None:
    bundle = {"image/png": "a" * 30_000, "text/html": "<b>" * 5000, "image/svg+xml": "<svg/>", "text/plain": "chart"}
    (recorded,) = data_of(collected(display(bundle)).recorded_outputs())
    assert recorded["image/svg+xml"] == "<svg/>"
    assert recorded["text/html"] == bundle["text/html"]
    assert recorded["text/plain"] == "chart\n[image/png is left out: 30000 bytes]"
    (recorded,) = data_of(collected(display({"image/png": "a" * 30_000})).recorded_outputs())
    assert recorded == {"text/plain": "[image/png is left out: 30000 bytes]"}


def test_a_flood_of_large_displays_is_bounded() -> None:
    collector = collected(*[display({"image/png": "a" * 5000, "text/html": "x" * 5000})] * 5000)
    assert 1 <= len(collector.recorded_outputs()) < 100
    assert collector.dropped_displays == 5000
    assert collector.memory_bytes < 100_000


def test_without_room_for_records_they_hold_the_results_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.config.settings.RECORD_BYTES", 0)
    collector = collected(display({"text/html": "x" * 3000}), display({"image/png": "a" * 8000}))
    assert collector.recorded_outputs() == collector.outputs()
    assert len(collector.outputs()) == 1


def test_updates_reach_what_is_recorded() -> None:
    displays, updates = Displays(), list[Any]()
    first = Collector(LIMITS, displays=displays, on_update=lambda *update: updates.append(update))
    first.feed("display_data", display({"text/html": "x" * 3000}, "d"))
    later = Collector(LIMITS, displays=displays, on_update=lambda *update: updates.append(update))
    later.feed("update_display_data", display({"text/html": "y" * 5000}, "d"))
    assert data_of(first.recorded_outputs()) == [{"text/html": "y" * 5000}]
    assert len(data_of(first.outputs())[0]["text/html"]) < 1100
    assert updates == [("d", {"text/html": "y" * 5000}, {})]
    later.feed("update_display_data", display({"text/plain": "done"}, "d"))
    assert data_of(first.recorded_outputs()) == data_of(first.outputs()) == [{"text/plain": "done"}]


def test_long_display_ids_cost_no_memory_and_stay_different() -> None:
    displays = Displays()
    collector = Collector(LIMITS, displays=displays)
    for number in range(3):
        collector.feed("display_data", display({"text/plain": "old"}, f"{'x' * 10**6}{number}"))
    collector.feed("update_display_data", display({"text/plain": "new"}, f"{'x' * 10**6}1"))
    assert [data["text/plain"] for data in data_of(collector.outputs())] == ["old", "new", "old"]
    assert all(len(output.display_id or "") < 100 for output in collector.outputs() if isinstance(output, DisplayData))


def widget(comm_id: str, msg_id: str) -> dict[str, Any]:
    return {"comm_id": comm_id, "data": {"method": "update", "state": {"msg_id": msg_id}}}


def text(value: str) -> dict[str, Any]:
    return {"name": "stdout", "text": value}


def test_an_output_widget_captures_and_clears_its_own_output_only() -> None:
    collector = Collector(LIMITS)
    collector.feed("stream", text("important\n"))
    collector.feed("comm_open", {"comm_id": "w", "data": {"state": {"_model_name": "OutputModel", "msg_id": ""}}})
    collector.feed("comm_msg", widget("w", "m"))
    collector.feed("stream", text("temporary\n"))
    collector.feed("clear_output", {"wait": False})
    collector.feed("stream", text("captured\n"))
    collector.feed("error", {"ename": "E", "evalue": "v", "traceback": ["E: v"]})
    collector.feed("comm_msg", widget("w", ""))
    collector.feed("stream", text("after\n"))
    assert collector.outputs() == (
        Stream("stdout", "important\n"),
        Stream("stdout", "captured\n"),
        Stream("stderr", "E: v\n"),
        Stream("stdout", "after\n"),
    )
    assert collector.recorded_outputs() == (Stream("stdout", "important\n"), Stream("stdout", "after\n"))


def test_widgets_within_widgets_capture_for_themselves() -> None:
    collector = Collector(LIMITS)
    collector.feed("comm_msg", widget("outer", "m"))
    collector.feed("stream", text("1\n"))
    collector.feed("comm_msg", widget("inner", "m"))
    collector.feed("stream", text("2\n"))
    collector.feed("clear_output", {"wait": False})
    collector.feed("comm_msg", widget("inner", ""))
    collector.feed("stream", text("3\n"))
    collector.feed("comm_msg", widget("outer", ""))
    assert collector.outputs() == (Stream("stdout", "1\n3\n"),)


def test_any_number_of_widgets_is_bounded_and_loses_nothing() -> None:
    collector = Collector(OutputLimits())
    for number in range(1000):
        collector.feed("comm_msg", widget(str(number), "m"))
        collector.feed("display_data", display({"text/plain": f"{number}"}))
        collector.feed("comm_msg", widget(str(number), ""))
    assert len(collector.recorded_outputs()) == 1000 - 64
    assert collector.memory_bytes < 4 * 10**6
    for number in range(1000):
        collector.feed("comm_msg", widget(f"{number}{'x' * 10**4}", "m"))
        collector.feed("comm_msg", widget(f"again {number}", "m"))
    assert len(collector._capturing) <= 64


def test_tracebacks_have_colours_in_records_only() -> None:
    collector = Collector(LIMITS)
    collector.feed("error", {"ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[39m: v", "plain"]})
    assert collector.outputs() == (Error("E", "v", ("E: v", "plain")),)
    assert collector.is_recorded_apart
    assert collector.recorded_outputs() == (Error("E", "v", ("\x1b[31mE\x1b[39m: v", "plain")),)


@pytest.mark.parametrize("count", [40_000, 100_000])
@pytest.mark.parametrize("shift", range(8))
def test_a_long_traceback_in_colours_is_plain_before_it_is_cut(count: int, shift: int) -> None:
    collector, head = Collector(LIMITS), "E: " + "p" * shift
    line = head + "\x1b[38;5;123mred\x1b[0m" * count
    collector.feed("error", {"ename": "E", "evalue": "v", "traceback": ["Traceback", line]})
    plain = f"Traceback\n{head}{'red' * count}"
    ((error,), (recorded,)) = collector.outputs(), collector.recorded_outputs()
    assert isinstance(error, Error)
    assert isinstance(recorded, Error)
    assert "\n".join(error.traceback) == cut_middle(plain, 256 * 1024)
    assert "\x1b[38;5;123m" in recorded.traceback[1]
    assert len("\n".join(recorded.traceback)) < 257 * 1024


def test_a_traceback_without_colours_is_the_same_in_records() -> None:
    collector = Collector(LIMITS)
    collector.feed("error", {"ename": "E", "evalue": "v", "traceback": ["E: v"]})
    assert not collector.is_recorded_apart
    assert collector.recorded_outputs() == collector.outputs() == (Error("E", "v", ("E: v",)),)


def test_an_exception_that_a_widget_captures_has_its_colours_there() -> None:
    collector = Collector(LIMITS)
    collector.feed("comm_open", {"comm_id": "w", "data": {"state": {"_model_name": "OutputModel", "msg_id": "m"}}})
    collector.feed("error", {"ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[39m: v"]})
    assert collector.outputs() == (Stream("stderr", "E: v\n"),)
    assert collector.captured_outputs() == {"w": (Error("E", "v", ("\x1b[31mE\x1b[39m: v",)),)}
