"""The collector: lists of messages in, outputs out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kernelexec.config import OutputLimits
from kernelexec.outputs import Collector, Displays
from kernelexec.results import DisplayData, Error, ExecuteResult, Output, Stream

Feed = tuple[str, dict[str, Any]]


def out(text: Any, name: Any = "stdout") -> Feed:
    return "stream", {"name": name, "text": text}


def show(data: Any, display_id: Any = None, **more: Any) -> Feed:
    return "display_data", {"data": data, "metadata": {}, "transient": {"display_id": display_id} if display_id else {}, **more}


def update(data: Any, display_id: Any) -> Feed:
    return "update_display_data", {"data": data, "metadata": {"new": True}, "transient": {"display_id": display_id}}


def clear(*, wait: bool) -> Feed:
    return "clear_output", {"wait": wait}


def collected(*feeds: Feed, limits: OutputLimits | None = None, **options: Any) -> Collector:
    collector = Collector(limits or OutputLimits(), **options)
    for msg_type, content in feeds:
        collector.feed(msg_type, content)
    return collector


PLAIN = {"text/plain": "p"}
ERROR = ("error", {"ename": "E", "evalue": "v", "traceback": ["a", "b"]})
RESULT = ("execute_result", {"data": PLAIN, "metadata": {"m": 1}, "execution_count": 3})
CASES: dict[str, tuple[list[Feed], list[Output]]] = {
    "nothing": ([], []),
    "one stream is joined": ([out("a"), out("b\n"), out("c")], [Stream("stdout", "ab\nc")]),
    "streams alternate": (
        [out("a"), out("b", "stderr"), out("c")],
        [Stream("stdout", "a"), Stream("stderr", "b"), Stream("stdout", "c")],
    ),
    "a display parts a stream": (
        [out("a"), show(PLAIN), out("b")],
        [Stream("stdout", "a"), DisplayData(PLAIN), Stream("stdout", "b")],
    ),
    "all kinds": (
        [show(PLAIN, "d"), RESULT, ERROR],
        [
            DisplayData(PLAIN, {}, "d"),
            ExecuteResult(PLAIN, {"m": 1}, 3),
            Error("E", "v", ("a", "b")),
        ],
    ),
    "progress over messages": ([out("1%"), out("\r2%"), out("\r"), out("3%\n")], [Stream("stdout", "3%\n")]),
    "a line's end over messages": ([out("a\r"), out("\nb")], [Stream("stdout", "a\r\nb")]),
    "a return never reaches over another output": (
        [out("a"), show(PLAIN), out("\rb")],
        [Stream("stdout", "a"), DisplayData(PLAIN), Stream("stdout", "b")],
    ),
    "empty text is no output": ([out("")], []),
    "clear now": ([out("a"), show(PLAIN), clear(wait=False)], []),
    "clear waits for output": ([out("a"), clear(wait=True)], [Stream("stdout", "a")]),
    "clear waited for a stream": ([out("a"), clear(wait=True), out("b")], [Stream("stdout", "b")]),
    "clear waited for a display": ([out("a"), clear(wait=True), show(PLAIN)], [DisplayData(PLAIN)]),
    "clear waited for an error": ([out("a"), clear(wait=True), ERROR], [Error("E", "v", ("a", "b"))]),
    "clear waits once": ([clear(wait=True), out("a"), out("b", "stderr")], [Stream("stdout", "a"), Stream("stderr", "b")]),
    "clear now ends the waiting": ([clear(wait=True), clear(wait=False), out("a"), out("b")], [Stream("stdout", "ab")]),
    "an update is no new output": ([out("a"), clear(wait=True), update(PLAIN, "d")], [Stream("stdout", "a")]),
    "unknown types are passed over": ([("comm_open", {"x": 1}), ("", {}), ("execute_input", {"code": "1"})], []),
    "surrogates are escaped": (
        [out("\ud800"), show({"text/plain": "\udfff"})],
        [
            Stream("stdout", "\\ud800"),
            DisplayData({"text/plain": "\\udfff"}),
        ],
    ),
}


@pytest.mark.parametrize(("feeds", "outputs"), CASES.values(), ids=CASES)
def test_messages_fold_into_outputs(feeds: list[Feed], outputs: list[Output]) -> None:
    collector = collected(*feeds)
    assert list(collector.outputs()) == outputs
    assert not collector.has_cuts


def test_an_update_changes_every_display_of_its_id() -> None:
    new = {"text/plain": "new"}
    collector = collected(show(PLAIN, "d"), show(PLAIN, "other"), show(PLAIN, "d"), update(new, "d"))
    first, other, last = collector.outputs()
    assert first == last == DisplayData(new, {"new": True}, "d")
    assert other == DisplayData(PLAIN, {}, "other")


def test_a_second_display_of_an_id_changes_the_first() -> None:
    new = {"text/plain": "new"}
    first, second = collected(show(PLAIN, "d"), show(new, "d")).outputs()
    assert first == second == DisplayData(new, {}, "d")


def test_an_update_reaches_the_display_of_an_earlier_cell() -> None:
    displays = Displays()
    seen: list[tuple[Any, ...]] = []
    earlier = collected(show(PLAIN, "d"), displays=displays)
    later = collected(update({"text/plain": "new"}, "d"), displays=displays, on_update=lambda *actual: seen.append(actual))
    assert earlier.outputs() == (DisplayData({"text/plain": "new"}, {"new": True}, "d"),)
    assert later.outputs() == ()
    assert seen == [("d", {"text/plain": "new"}, {"new": True})]


def test_an_update_of_a_result_keeps_its_count() -> None:
    collector = collected(("execute_result", {**RESULT[1], "transient": {"display_id": "d"}}), update(PLAIN, "d"))
    assert collector.outputs() == (ExecuteResult(PLAIN, {"new": True}, 3, "d"),)


def test_an_update_of_an_unknown_id_changes_nothing() -> None:
    seen: list[Any] = []
    limits = OutputLimits(stream_bytes=10)
    collector = collected(
        show(PLAIN, "d"),
        update({"text/plain": "x" * 100}, "unknown"),
        limits=limits,
        on_update=lambda *actual: seen.append(actual),
    )
    assert collector.outputs() == (DisplayData(PLAIN, {}, "d"),)
    assert seen == []
    assert not collector.has_cuts


def test_a_cleared_display_stays_cleared() -> None:
    assert collected(show(PLAIN, "d"), clear(wait=False), update(PLAIN, "d")).outputs() == ()


def test_every_output_is_reported_as_it_comes() -> None:
    reported: list[Output] = []
    collected(out("a"), out("b"), show(PLAIN), update(PLAIN, "d"), ERROR, clear(wait=False), on_output=reported.append)
    assert reported == [Stream("stdout", "a"), Stream("stdout", "b"), DisplayData(PLAIN), Error("E", "v", ("a", "b"))]


def test_since_gives_each_piece_once_and_joins_streams() -> None:
    collector = collected(out("a"), out("b"), out("c", "stderr"), show(PLAIN))
    actual, cursor, missed = collector.since(0)
    assert actual == (Stream("stdout", "ab"), Stream("stderr", "c"), DisplayData(PLAIN))
    assert (cursor, missed) == (4, 0)
    assert collector.since(cursor) == ((), 4, 0)
    collector.feed(*out("d"))
    assert collector.since(cursor) == ((Stream("stdout", "d"),), 5, 0)
    assert collector.since(3)[0] == (DisplayData(PLAIN), Stream("stdout", "d"))
    assert collector.since(99) == ((), 5, 0)


def test_since_counts_what_is_no_longer_held() -> None:
    collector = collected(*[out("x" * 100)] * 100, limits=OutputLimits(stream_bytes=500))
    actual, cursor, missed = collector.since(0)
    assert cursor == 100 * 100
    assert sum(len(output.text) for output in actual if isinstance(output, Stream)) + missed == 100 * 100
    assert missed > 0


def test_since_does_not_count_what_was_read_before_it_was_let_go() -> None:
    limits = OutputLimits(stream_bytes=500)
    collector = collected(*[out("x" * 100)] * 3, limits=limits)
    _, cursor, _ = collector.since(0)
    for _ in range(100):
        collector.feed(*out("y" * 100))
    actual, _, missed = collector.since(cursor)
    assert sum(len(output.text) for output in actual if isinstance(output, Stream)) + missed == 100 * 100


def test_of_a_display_a_hundred_representations_are_kept() -> None:
    collector = collected(show({f"x/{number}": "a" * 10 for number in range(500)}))
    [display] = collector.outputs()
    assert isinstance(display, DisplayData)
    assert list(display.data) == [f"x/{number}" for number in range(100)]
    assert collector.dropped_bytes == 400 * 10


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ([1.5, math.inf, {"a": math.nan}], [1.5, None, {"a": None}]),
        (["\ud800", "\u00e9"], ["\\ud800", "\u00e9"]),
        ({"\ud800": []}, {"\\ud800": []}),
        ([[]] * 3, [[]] * 3),
    ],
)
def test_json_is_portable(value: Any, kept: Any) -> None:
    [display] = collected(show({"application/json": value})).outputs()
    assert isinstance(display, DisplayData)
    assert display.data == {"application/json": kept}


def test_deep_json_is_cut_at_its_hundredth_level() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    [display] = collected(show({"application/json": value})).outputs()
    assert isinstance(display, DisplayData)
    assert json.dumps(display.data["application/json"]) == "[" * 100 + '"[... nested deeper ...]"' + "]" * 100


def test_total_counts_streams_displays_errors_and_dropped() -> None:
    collector = collected(out("\u65e5"), show({"text/plain": "ab", "application/json": {"k": "cd"}}), ERROR)
    collector.count_missing(1000)
    assert collector.total_bytes == 3 + 2 + len('{"k":"cd"}') + 3 + 1000
    assert collector.stream_bytes == 3
    assert (collector.dropped_bytes, collector.has_cuts) == (1000, True)


def test_the_outputs_keep_the_head_and_tail_of_each_stream() -> None:
    collector = collected(
        *[out(f"{n:03d}\n") for n in range(100)], out("whole\n", "stderr"), limits=OutputLimits(stream_bytes=40)
    )
    stdout, stderr = collector.outputs()
    assert isinstance(stdout, Stream)
    assert stdout.text.startswith("000\n001\n002\n003\n004\n\n[... 360 bytes of stdout cut")
    assert stdout.text.endswith("...]\n095\n096\n097\n098\n099\n")
    assert stderr == Stream("stderr", "whole\n")
    assert collector.has_cuts
