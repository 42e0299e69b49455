"""The collector's bounds: budgets, memory, the hand-over to the spill, and contents that fit nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kernelexec.config import OutputLimits
from kernelexec.outputs import Collector, Displays, WidgetStates
from kernelexec.results import DisplayData, ExecutionResult, Output, Stream
from tests.hostile.messages import feeds

pytestmark = pytest.mark.nightly

KIB = 1024
LINE = {"name": "stdout", "text": "\u65e5" * 10 + "\n"}


class Pieces:
    """A spill that remembers."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, text: str) -> None:
        self.pieces.append(text)


def say(collector: Collector, text: str, name: str = "stdout") -> None:
    collector.feed("stream", {"name": name, "text": text})


def show(collector: Collector, data: object, *, display_id: str | None = None, metadata: object = None) -> None:
    content = {"data": data, "metadata": metadata or {}, "transient": {"display_id": display_id}}
    collector.feed("display_data", content)


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
        del kept
    finally:
        tracemalloc.stop()
    return peak


def kept_bytes(outputs: tuple[Output, ...]) -> int:
    return sum(len(output.text.encode()) for output in outputs if isinstance(output, Stream))


def test_hostile_contents_never_raise_and_give_results_that_survive_json() -> None:
    for msg_type, content in feeds():
        collector = Collector(OutputLimits())
        say(collector, "before\n")
        collector.feed("display_data", {"data": {"text/plain": "p"}, "transient": {"display_id": "d"}})
        collector.feed(msg_type, content)
        result = ExecutionResult("e", "s", "ok", outputs=collector.outputs())
        text = result.to_json()
        text.encode()
        assert ExecutionResult.from_json(text) == result, (msg_type, str(content)[:200])
        assert isinstance(result.text, str)
        assert isinstance(result.images, tuple)


@pytest.mark.no_cover
def test_a_flood_of_lines_costs_flat_memory() -> None:
    limits = OutputLimits(stream_bytes=64 * KIB)

    def flood() -> Collector:
        collector = Collector(limits)
        for _ in range(50_000):
            collector.feed("stream", LINE)
        return collector

    assert peak_of(flood) < 16 * 64 * KIB


@pytest.mark.no_cover
@pytest.mark.parametrize("text", ["x\n", "x", "x" * 2000])
def test_alternating_streams_cost_flat_memory(text: str) -> None:
    limits = OutputLimits(stream_bytes=32 * KIB)

    def alternate() -> Collector:
        collector = Collector(limits)
        for number in range(30_000 if len(text) < 10 else 3000):
            say(collector, text, ("stdout", "stderr")[number % 2])
        return collector

    assert peak_of(alternate) < 128 * 32 * KIB


@pytest.mark.parametrize("text", ["x", "x" * 1000, "\u65e5" * 1000])
def test_unfinished_lines_of_alternating_streams_keep_to_the_budget(text: str) -> None:
    collector = Collector(OutputLimits(stream_bytes=4 * KIB))
    for number in range(10_000):
        say(collector, text, ("stdout", "stderr")[number % 2])
    assert kept_bytes(collector.outputs()) <= 2 * (4 * KIB + 100)
    assert collector.has_cuts


@pytest.mark.no_cover
def test_results_of_alternating_streams_are_few_outputs_and_their_memory_counts() -> None:
    collector = Collector(OutputLimits())

    def alternate() -> tuple[Output, ...]:
        for number in range(33_000):
            say(collector, "x", ("stdout", "stderr")[number % 2])
        return collector.outputs()

    held = peak_of(alternate)
    assert len(collector.outputs()) <= 5000
    assert collector.has_cuts
    assert 0.5 * held < collector.memory_bytes < 4 * held


def test_clearing_over_and_over_costs_flat_memory() -> None:
    limits = OutputLimits(stream_bytes=8 * KIB)

    def animate() -> Collector:
        collector = Collector(limits, spill=Pieces())
        for _ in range(3000):
            say(collector, "x" * 1000 + "\n")
            collector.feed("clear_output", {"wait": True})
        assert len(collector.raw_text) <= 3 * 8 * KIB
        return collector

    peak_of(animate)


def test_raw_text_is_everything_until_it_is_spilled() -> None:
    spill = Pieces()
    collector = Collector(OutputLimits(stream_bytes=20), spill=spill)
    for text, name in (("a\r", "stdout"), ("bb\n", "stderr"), ("\u65e5", "stdout")):
        say(collector, text, name)
    assert collector.raw_text == "a\rbb\n\u65e5"
    assert spill.pieces == []
    assert not collector.spilled


def test_the_spill_gets_every_piece_in_order_exactly_once() -> None:
    spill = Pieces()
    collector = Collector(OutputLimits(stream_bytes=100), spill=spill)
    reported = []
    for number in range(500):
        text = f"{number}\r\u65e5\x08" + ("\n" if number % 7 == 0 else "")
        say(collector, text, ("stdout", "stderr")[number % 3 == 0])
        reported.append(text)
    assert "".join(spill.pieces) == "".join(reported)
    assert collector.spilled
    assert collector.raw_text == ""
    assert collector.stream_bytes == len("".join(reported).encode())


@pytest.mark.parametrize("over", [0, 1])
def test_the_spill_begins_at_one_byte_over_the_budget(over: int) -> None:
    spill = Pieces()
    collector = Collector(OutputLimits(stream_bytes=1000), spill=spill)
    say(collector, "x" * 999 + "\n" * (1 + over))
    assert collector.spilled is bool(over)
    assert collector.has_cuts is bool(over)


def test_without_a_spill_nothing_is_held_for_it() -> None:
    collector = Collector(OutputLimits(stream_bytes=100))
    say(collector, "x" * 1000)
    assert collector.raw_text == ""
    assert not collector.spilled


def test_displays_over_the_budget_are_dropped_and_counted() -> None:
    collector = Collector(OutputLimits(display_bytes=10_000))
    for number in range(100):
        show(collector, {"image/png": "x" * 1000, "text/plain": str(number)})
    shown = [output.data["text/plain"] for output in collector.outputs() if isinstance(output, DisplayData)]
    assert shown == [str(number) for number in range(len(shown))]
    assert len(shown) + collector.dropped_displays == 100
    assert 7 <= len(shown) <= 9
    assert collector.has_cuts


def test_a_display_without_room_is_counted_once_whatever_updates_it() -> None:
    collector = Collector(OutputLimits(display_bytes=3000))
    show(collector, {"text/plain": "small"}, display_id="small")
    show(collector, {"image/png": "x" * 5000}, display_id="large")
    for _ in range(20):
        for name in ("small", "large"):
            content = {"data": {"image/png": "x" * 5000}, "metadata": {}, "transient": {"display_id": name}}
            collector.feed("update_display_data", content)
    assert collector.dropped_displays == 2


def test_small_displays_have_a_cost_too() -> None:
    collector = Collector(OutputLimits(display_bytes=10_000))
    for _ in range(1000):
        show(collector, {})
    assert len(collector.outputs()) <= 10_000 / 200


HEAVY: dict[str, tuple[object, object]] = {
    "content": ({"text/plain": "x" * 100_000}, {}),
    "media type": ({"x" * 100_000: ""}, {}),
    "metadata": ({"text/plain": "p"}, {"k": "x" * 100_000}),
    "empty lists": ({"application/json": [[] for _ in range(10_000)]}, {}),
    "empty dicts": ({"application/json": [{} for _ in range(10_000)]}, {}),
    "empty texts": ({"application/json": [""] * 50_000}, {}),
}


@pytest.mark.no_cover
@pytest.mark.parametrize(("data", "metadata"), HEAVY.values(), ids=HEAVY)
def test_all_parts_of_a_display_count(data: object, metadata: object) -> None:
    collector = Collector(OutputLimits(display_bytes=500_000))
    for _ in range(15):
        show(collector, data, metadata=metadata)
    assert len(collector.outputs()) <= 10


def test_updates_keep_to_the_display_budget() -> None:
    collector = Collector(OutputLimits(display_bytes=50_000))
    for number in range(50):
        show(collector, {"text/plain": "p"}, display_id=f"d{number}")
    for number in range(50):
        content = {"data": {"image/png": "x" * 10_000}, "metadata": {}, "transient": {"display_id": f"d{number}"}}
        collector.feed("update_display_data", content)
    held = sum(
        len(value) for output in collector.outputs() if isinstance(output, DisplayData) for value in output.data.values()
    )
    assert held <= 50_000


def test_a_long_text_representation_keeps_head_and_tail() -> None:
    collector = Collector(OutputLimits(stream_bytes=100))
    show(collector, {"text/plain": "a" + "\u65e5" * 1000 + "z", "image/png": "x" * 1000})
    (shown,) = collector.outputs()
    assert isinstance(shown, DisplayData)
    text = shown.data["text/plain"]
    assert text.startswith("a\u65e5")
    assert text.endswith("\u65e5z")
    assert " bytes cut ...]" in text
    assert shown.data["image/png"] == "x" * 1000
    assert collector.has_cuts


def test_a_long_error_keeps_head_and_tail_of_its_lines() -> None:
    collector = Collector(OutputLimits())
    collector.feed("error", {"ename": "E" * 10**6, "evalue": "v" * 10**6, "traceback": ["t" * 10**6] * 3})
    error = ExecutionResult("e", "s", "error", outputs=collector.outputs()).error
    assert error is not None
    assert max(len(error.ename), len(error.evalue)) <= 64 * KIB + 100
    assert sum(map(len, error.traceback)) <= 256 * KIB + 100
    assert error.ename.startswith("EEE")


def test_many_errors_are_bounded() -> None:
    collector = Collector(OutputLimits(display_bytes=10_000, stream_bytes=10_000))
    for _ in range(1000):
        collector.feed("error", {"ename": "E", "evalue": "v" * 1000, "traceback": []})
    assert len(collector.outputs()) <= 20
    assert collector.dropped_displays > 900


def test_many_display_ids_are_bounded_and_the_newest_are_known() -> None:
    displays = Displays()
    collector = Collector(OutputLimits(), displays=displays)
    for number in range(3000):
        show(collector, {"text/plain": "p"}, display_id=f"d{number}")
    assert len(displays) <= 1000
    assert "d2999" in displays


def test_events_for_watchers_are_bounded() -> None:
    collector = Collector(OutputLimits(stream_bytes=1000))
    for _ in range(5000):
        say(collector, "x" * 100)
    actual, cursor, missed = collector.since(0)
    assert kept_bytes(actual) <= 4 * 1000
    assert (cursor, kept_bytes(actual) + missed) == (500_000, 500_000)


def test_one_piece_larger_than_the_bound_is_still_reported() -> None:
    collector = Collector(OutputLimits(stream_bytes=10))
    say(collector, "x" * 1000)
    assert collector.since(0) == ((Stream("stdout", "x" * 1000),), 1000, 0)


def test_held_bytes_are_about_what_is_held() -> None:
    def feed(collector: Collector) -> None:
        for _ in range(200):
            collector.feed("stream", LINE)
            show(collector, {"text/plain": "p" * 100})

    empty, fed = Collector(OutputLimits()), Collector(OutputLimits())
    feed(fed)
    size = 200 * (31 + 100)
    assert empty.memory_bytes == 0
    assert size <= fed.memory_bytes <= 20 * size


def test_text_that_is_no_string_is_written_as_it_is() -> None:
    answer: dict[str, Any] = {"5": 5, "None": None, "['a']": ["a"]}
    for text, value in answer.items():
        collector = Collector(OutputLimits())
        collector.feed("stream", {"name": ["?"], "text": value})
        assert collector.outputs() == (Stream("stdout", text),)


def update(collector: Collector, text: str) -> None:
    content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": "d"}}
    collector.feed("update_display_data", content)


def test_an_update_of_many_displays_is_read_once_and_of_a_hundred_at_most() -> None:
    collector = Collector(OutputLimits())
    for _ in range(150):
        show(collector, {"text/plain": "first"}, display_id="d")
    update(collector, "x" * 300_000)
    recorded = [output for output in collector.recorded_outputs() if isinstance(output, DisplayData)]
    updated = [output.data for output in recorded if output.data["text/plain"] != "first"]
    assert len(recorded) == 150
    assert len(updated) == 100
    assert len({id(data["text/plain"]) for data in updated}) == 1


@pytest.mark.parametrize("size", [500_000, 5_000_000, 50_000_000])
def test_an_update_after_the_end_of_a_cell_adds_little_to_its_result(size: int) -> None:
    displays, finished = Displays(), []
    for _ in range(20):
        finished.append(Collector(OutputLimits(), displays=displays))
        show(finished[-1], {"text/plain": "first"}, display_id="d")
        finished[-1].close()
    later = Collector(OutputLimits(), displays=displays)
    update(later, "x" * size)
    shown = [output for collector in finished for output in collector.outputs() if isinstance(output, DisplayData)]
    assert len(shown) == 20
    assert all(len(output.data["text/plain"]) <= 640 * KIB for output in shown)
    assert all(collector.outputs() == collector.recorded_outputs() for collector in finished)
    assert sum(collector.memory_bytes for collector in finished) <= 2 * 20 * 641 * KIB


def test_the_text_of_a_widget_follows_its_state() -> None:
    states = WidgetStates()
    states.update("w", {"_model_name": "HTMLModel", "value": "first"})
    states.update("box", {"_model_name": "VBoxModel", "children": ["IPY_MODEL_w"]})
    assert states.describe("box") == "first"
    states.update("w", {"value": "second"})
    assert states.describe("box") == "second"


def test_the_newest_widgets_are_known_however_many_came_before() -> None:
    states = WidgetStates()
    for number in range(6000):
        states.update(f"w{number}", {"_model_name": "HTMLModel", "value": f"text {number}"})
        states.update("w0", {"value": "still updated"})
    assert (states.describe("w5999"), states.describe("w0"), states.describe("w1")) == ("text 5999", "still updated", "")
    (content,) = states.to_metadata().values()
    assert len(content["state"]) == 5000


def test_long_integers_cost_what_their_digits_do() -> None:
    states = WidgetStates()
    states.update("w", {"_model_name": "IntTextModel", **{f"n{number}": 10**4299 for number in range(10_000)}})
    (content,) = states.to_metadata().values()
    assert len(content["state"]["w"]["state"]) < 5000  # 16 MiB of digits


def test_large_widgets_take_the_room_of_those_before() -> None:
    states = WidgetStates()
    for number in range(100):
        states.update(f"w{number}", {"_model_name": "HTMLModel", "value": str(number), "data": "x" * 1_000_000})
    assert states.describe("w99") == "99"
    (content,) = states.to_metadata().values()
    assert len(content["state"]) < 20
