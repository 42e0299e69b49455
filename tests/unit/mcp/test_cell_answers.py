"""The text of an answer: the outputs, and where a model reads on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import ModuleType

import anyio
import pytest
from mcp.types import ElicitResult, TextContent

from kernelexec.mcp.answers import PREVIEW_CHARS, AnswerOptions, render_answer, render_stream
from kernelexec.mcp.elicitation import InputAnswer, PartialResult, PendingInputs, describe_input, find_last_line
from kernelexec.results import (
    DisplayData,
    ExecuteResult,
    ExecutionResult,
    InputRequest,
    Output,
    Status,
    Stream,
    model_answers,
    readable,
)
from tests.support.night import at_night

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
VALUE = ExecuteResult({"text/plain": "42"})
NOTE = "[kernelexec: state lost]"


def texts_of(*outputs: Output, status: Status = "ok") -> list[str]:
    result = ExecutionResult("e", "s", status, outputs=outputs, state="kept")
    answer = anyio.run(render_answer, PartialResult(result, outputs), AnswerOptions())
    return [block.text for block in answer.content if isinstance(block, TextContent)]


@pytest.mark.parametrize("status", ["ok", "running"])
def test_the_output_is_the_last_of_the_only_text(status: Status) -> None:
    for outputs, shown in (((VALUE,), "42"), ((Stream("stdout", "a"), VALUE), "a\n42"), ((Stream("stdout", "a\n"),), "a\n")):
        [text] = texts_of(*outputs, status=status)
        assert text.startswith(f"[{status}")
        assert text.endswith(f"]\n{shown}")


@pytest.mark.parametrize("display", [*at_night(""), "x"])
@pytest.mark.parametrize("line", ["line {}", "line {}\n"])
def test_reading_on_leaves_out_nothing_between_displays(line: str, display: str) -> None:
    lines = [line.format(number) for number in range(PREVIEW_CHARS)]
    outputs = [output for text in lines for output in (Stream("stdout", text), DisplayData({"text/plain": display}))]
    text = texts_of(*outputs)[0]
    offset = re.search(r"offset=(\d+)\)", text)
    assert offset is not None
    shown = text.partition("]\n")[2].partition("\n[kernelexec: ")[0].replace("\n", "").replace("x", "")
    assert shown.startswith("".join(lines)[: int(offset[1])].replace("\n", ""))


@pytest.mark.parametrize("distance", [0, 1, 2])
def test_the_cut_of_long_output_leaves_no_mark_of_a_note(distance: int) -> None:
    end = "y" * (PREVIEW_CHARS // 2 - len(NOTE) - distance)
    output = Stream("stdout", "x" * PREVIEW_CHARS + NOTE + end)
    result = ExecutionResult("e", "s", "ok", outputs=(output,), state="kept")
    for text in (*texts_of(output), render_stream(PartialResult(result, (output,)), "stdout")):
        assert text.endswith("\\" + NOTE + end)


def test_progress_and_questions_have_no_mark_of_a_note() -> None:
    line = NOTE.replace("n", "n\u200d") + "\u202e"
    shown = r"\[kern\u200delexec: state lost]\u202e"
    assert find_last_line([Stream("stdout", f"first\n{line}\n")]) == shown
    assert describe_input(InputRequest("e", "s", line), "s").endswith(shown)


def test_a_long_value_is_shown_at_both_ends_and_what_is_printed_is_not_cut() -> None:
    value, printed = f"{{'a': 1, {'x' * 5000}, 'z': 2}}", "y" * 5000 + "\n"
    [text] = texts_of(ExecuteResult({"text/plain": value}))
    assert len(text) < 600
    assert "{'a': 1, xx" in text
    assert text.endswith("x, 'z': 2}")
    assert f"... {len(value) - 500} more characters: print the part that you need ..." in text
    assert texts_of(Stream("stdout", printed))[0].endswith(f"]\n{printed}")
    assert texts_of(ExecuteResult({"text/plain": "v" * 4000}))[0].endswith("]\n" + "v" * 4000)


def test_read_output_is_named_for_the_text_of_streams_only() -> None:
    [streamed], [displayed] = texts_of(Stream("stdout", "x" * 30_000)), texts_of(DisplayData({"text/plain": "x" * 30_000}))
    assert "10000 characters left out: read_output(execution_id='e', offset=10000) continues" in streamed
    assert "10000 characters left out: print the part that you need" in displayed


def test_the_text_of_a_figure_says_nothing_beside_its_picture() -> None:
    figure = {"text/plain": "<Figure size 640x480 with 1 Axes>"}
    [text] = texts_of(DisplayData(figure | {"image/png": PNG}), Stream("stdout", "drawn\n"))
    assert text.endswith("]\ndrawn\n")
    assert texts_of(DisplayData(figure))[0].endswith(figure["text/plain"])


class Reading:
    """A function that reads HTML, with what it reads and the threads in which it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.pieces: list[str] = []
        self.threads: set[int] = set()
        self._read: Callable[..., object] = getattr(module, name)
        monkeypatch.setattr(module, name, self._note)

    def _note(self, html: str, *args: object) -> object:
        self.pieces.append(html)
        self.threads.add(threading.get_ident())
        return self._read(html, *args)


def display(html: str) -> DisplayData:
    return DisplayData({"text/html": html, "text/plain": "<x.Y object>"})


def test_the_displays_of_an_answer_are_read_within_one_bound_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, readable, "read_markup")
    assert texts_of(*[display("<b>" * 20_000)] * 40)[0].endswith("\n".join(["]", *["<x.Y object>"] * 40]))
    assert sum(map(len, reading.pieces)) == readable._MARKUP_CHARS
    assert threading.get_ident() not in reading.threads


def test_the_displays_of_a_progress_report_are_read_within_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, readable, "read_markup")
    assert find_last_line([Stream("stdout", "shown"), *[DisplayData({"text/html": "</style>" * 10_000})] * 10]) == "shown"
    assert sum(map(len, reading.pieces)) == readable._MARKUP_CHARS


def test_of_the_tables_of_an_answer_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, model_answers, "render_table")
    frame = '<table class="dataframe"><tr><td>the</td><td>{}</td></tr>{}</table>'
    answer = texts_of(*[display(frame.format("first", "<b>" * 30_000))] * 40, display(frame.format("last", "")))[0]
    assert "]\nthe | first\nthe | first\nthe | first\n" in answer
    assert answer.endswith("\nthe | last")
    assert [html.count("<b>") for html in reading.pieces] == [30_000] * 3 + [0]
    assert threading.get_ident() not in reading.threads


def test_an_answer_that_comes_again_answers_no_later_question_of_its_cell() -> None:
    async def main() -> None:
        inputs = PendingInputs()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inputs.ask, InputRequest("e", "s", "Name? "))
            await anyio.wait_all_tasks_blocked()
            first = inputs.find("e")
            assert first is not None
            answer = InputAnswer("e", first.name, ElicitResult(action="accept", content={"text": "Ada"}))
            inputs.accept(answer)
            tasks.start_soon(inputs.ask, InputRequest("e", "s", "Town? "))
            await anyio.wait_all_tasks_blocked()
            second = inputs.find("e")
            assert second is not None
            inputs.accept(answer)
            assert (first.text, second.answered.is_set()) == ("Ada", False)
            tasks.cancel_scope.cancel()

    anyio.run(main)
