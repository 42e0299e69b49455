"""The text of an answer: the outputs, and where a model reads on."""

from __future__ import annotations

import re

import anyio
import pytest
from mcp.types import TextContent

from kernelexec.mcp.answers.cell_answers import PREVIEW_CHARS, render_answer
from kernelexec.mcp.answers.options import AnswerOptions
from kernelexec.mcp.calls.progress import PartialResult
from kernelexec.results import DisplayData, ExecuteResult, ExecutionResult, Output, Status, Stream

VALUE = ExecuteResult({"text/plain": "42"})


def texts_of(*outputs: Output, status: Status = "ok") -> list[str]:
    result = ExecutionResult("e", "s", status, outputs=outputs, state="kept")
    answer = anyio.run(render_answer, PartialResult(result, outputs), AnswerOptions())
    return [block.text for block in answer.content if isinstance(block, TextContent)]


@pytest.mark.parametrize("status", ["ok", "running"])
def test_notes_begin_a_line_after_a_value_though_a_client_joins_the_blocks(status: Status) -> None:
    assert texts_of(VALUE, status=status)[0] == "42\n"
    assert texts_of(Stream("stdout", "a"), VALUE, status=status)[0] == "a\n42\n"
    assert texts_of(Stream("stdout", "a\n"), status=status)[0] == "a\n"


@pytest.mark.parametrize("display", ["", "x"])
@pytest.mark.parametrize("line", ["line {}", "line {}\n"])
def test_reading_on_leaves_out_nothing_between_displays(line: str, display: str) -> None:
    lines = [line.format(number) for number in range(PREVIEW_CHARS)]
    outputs = [output for text in lines for output in (Stream("stdout", text), DisplayData({"text/plain": display}))]
    text = texts_of(*outputs)[0]
    offset = re.search(r"offset=(\d+)\)", text)
    assert offset is not None
    shown = text.partition("\n[kernelexec: ")[0].replace("\n", "").replace("x", "")
    assert shown.startswith("".join(lines)[: int(offset[1])].replace("\n", ""))
