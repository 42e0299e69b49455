"""The result: conveniences over its outputs, and JSON both ways."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import pickle
import re
from typing import Any, get_args

import pytest

from kernelexec import ExecutionFailed, SecurityError
from kernelexec.results import (
    BackgroundCommand,
    Diagnosis,
    DisplayData,
    Error,
    ExecuteResult,
    ExecutionResult,
    Image,
    Output,
    Progress,
    Status,
    Stream,
    Timing,
    strip_ansi,
)
from kernelexec.results.json_values import read_text

PIXEL = b"\x89PNG\r\n\x1a\n and so on"
PNG = base64.b64encode(PIXEL).decode()
OUTPUTS: dict[str, Output] = {
    "stream": Stream("stdout", "a\nb \u65e5\U0001f389"),
    "display": DisplayData({"text/plain": "<Figure>", "image/png": PNG}, {"image/png": {"width": 3}}, "d1"),
    "json": DisplayData({"application/json": {"a": [1, 2.5, None, True, {"b": []}]}}),
    "nothing": DisplayData({}),
    "result": ExecuteResult({"text/plain": "42"}, {}, 7, "d2"),
    "error": Error("ValueError", "no", ("line 1", "line 2")),
    "bare error": Error("ValueError", "no"),
}


def result_of(*outputs: Output, **fields: Any) -> ExecutionResult:
    return ExecutionResult("e1", "s", fields.pop("status", "ok"), outputs=outputs, **fields)


FULL = result_of(
    *OUTPUTS.values(),
    status="error",
    execution_count=3,
    late=(Stream("stderr", "later"),),
    exit_code=124,
    interrupted="timeout",
    ended_by="kill",
    state="lost",
    kernel_epoch=2,
    cause="timeout",
    lost_names=("x", "y"),
    timing=Timing(0.1, 0.2, 0.3, 0.4, 1.0, 0.5, 2**40),
    truncated=True,
    total_bytes=10**10,
    output_ref="e1",
    files=("outputs/cell-0001-1.png",),
    diagnosis=Diagnosis("timeout", "too long", 3, "x = 1", "cause", ("hint",), retryable=True),
    work_dir="/w",
    notes=("a note",),
)


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_every_kind_of_output_comes_back_equal_from_json(output: Output) -> None:
    result = result_of(output, late=(output,))
    back = ExecutionResult.from_json(result.to_json())
    assert back == result
    assert type(back.outputs[0]) is type(output)


def test_every_field_comes_back_equal_from_json() -> None:
    assert ExecutionResult.from_json(FULL.to_json()) == FULL
    assert ExecutionResult.from_json(FULL.to_json().encode()) == FULL


@pytest.mark.parametrize("text", ["", "no", "[]", "{}", '{"execution_id": 1}', FULL.to_json().replace('"lost"', '"found"')])
def test_invalid_json_of_a_result_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ExecutionResult.from_json(text)


def test_a_result_as_a_dict_is_what_its_json_says() -> None:
    assert FULL.to_dict() == json.loads(FULL.to_json())


@pytest.mark.parametrize("result", [result_of(), FULL], ids=["bare", "full"])
def test_json_fits_the_published_schema(result: ExecutionResult) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = ExecutionResult.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(result.to_json()))


VERDICTS: dict[str, tuple[dict[str, Any], str | None]] = {
    "an ordinary end": ({"status": "ok", "state": "kept"}, None),
    "an error": ({"status": "error", "state": "kept"}, None),
    "a cell that runs": ({"status": "running", "state": "unknown"}, "running · execution_id e1"),
    "a cancelled cell": (
        {"status": "aborted", "exit_code": -1, "notes": ("Cancelled in the queue.",)},
        "aborted · Cancelled in the queue. · state unknown",
    ),
    "a command that failed": ({"status": "error", "state": "kept", "exit_code": 3}, "error · exit code 3 · state kept"),
    "an exit": ({"status": "ok", "state": "kept", "exit_status": 0}, "ok · exited with 0 · state kept"),
    "a new kernel": (
        {"status": "ok", "state": "new", "cause": "closed", "lost_names": ("df",)},
        "ok · state new (closed) · lost before: df",
    ),
    "a timeout": ({"status": "error", "interrupted": "timeout", "state": "kept"}, "error · timeout · state kept"),
    "lost state": (
        {"status": "error", "state": "lost", "cause": "exited", "lost_names": ("df", "model")},
        "error · state lost (exited) · lost: df, model",
    ),
    "a refusal": (
        {"status": "aborted", "state": "kept", "diagnosis": Diagnosis("refused", "It is dangerous")},
        "aborted · It is dangerous · state kept",
    ),
    "cut output": ({"status": "ok", "state": "kept", "truncated": True}, "ok · state kept · output truncated"),
}


@pytest.mark.parametrize(("fields", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_is_in_every_form_of_a_result(fields: dict[str, Any], verdict: str | None) -> None:
    result = result_of(Stream("stdout", "shown\n"), **fields)
    line = None if verdict is None else f"[kernelexec: {verdict}]"
    assert result.verdict == result.to_dict()["verdict"] == json.loads(result.to_json())["verdict"] == line
    assert dataclasses.asdict(result)["verdict"] == line  # as web frameworks convert it
    text = "shown\n" if line is None else f"shown\n{line}"
    assert str(result) == text
    assert str(result._repr_mimebundle_()["text/plain"]).strip() == text.strip()
    assert ExecutionResult.from_json(result.to_json()) == result


def test_the_schema_names_every_field() -> None:
    names = {field.name for field in dataclasses.fields(ExecutionResult)}
    assert set(ExecutionResult.json_schema()["properties"]) == names | {"verdict"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_json_is_json_whatever_a_display_holds(value: float) -> None:
    def refuse(name: str) -> None:
        message = f"{name} is not JSON"
        raise ValueError(message)

    text = result_of(DisplayData({"application/json": {"a": value}})).to_json()
    json.loads(text, parse_constant=refuse)


def test_stdout_and_stderr_are_exactly_concatenated() -> None:
    result = result_of(
        Stream("stdout", "a"),
        Stream("stderr", "E1\n"),
        DisplayData({"text/plain": "shown"}),
        Stream("stdout", "b\n"),
        Stream("stdout", "  c"),
        Stream("stderr", "E2"),
    )
    assert result.stdout == "ab\n  c"
    assert result.stderr == "E1\nE2"


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((), ""),
        ((Stream("stdout", "a"), Stream("stderr", "b")), "ab"),
        ((Stream("stdout", "a\n"),), "a\n"),
        ((ExecuteResult({"text/plain": "42"}),), "42"),
        ((ExecuteResult({"text/plain": "42\n"}),), "42\n"),
        ((DisplayData({"text/plain": "1"}), DisplayData({}), ExecuteResult({"text/plain": "2"})), "1\n2"),
        ((Stream("stdout", "a"), DisplayData({}), Stream("stdout", "b")), "a\nb"),
        ((Stream("stdout", "a"), DisplayData({})), "a"),
        ((Stream("stdout", "a"), ExecuteResult({"text/plain": "42"})), "a\n42"),
        ((Stream("stdout", "a\n"), ExecuteResult({"text/plain": "42"}), Stream("stdout", "b")), "a\n42\nb"),
        ((DisplayData({"text/markdown": "# T", "text/html": "<h1>"}),), "# T"),
        ((DisplayData({"text/latex": "$x$"}),), "$x$"),
        ((DisplayData({"image/png": PNG, "text/html": "<b>"}),), "<image/png, text/html>"),
        ((DisplayData({"text/plain": ["not", "text"]}),), "<text/plain>"),
        ((DisplayData({}),), ""),
        ((Error("E", "v", ("l1", "l2")),), "l1\nl2"),
        ((Error("E", "v"),), "E: v"),
        ((Stream("stderr", "x\nE: v\n"), Error("E", "v")), "x\nE: v\n"),
        ((Stream("stderr", "E: v"), Stream("stdout", "y\n"), Error("E", "v")), "E: vy\nE: v"),
        ((Stream("stderr", "E: v\n"), Error("E", "v", ("E: v",))), "E: v\nE: v"),
    ],
)
def test_text_is_what_a_reader_sees(outputs: tuple[Output, ...], text: str) -> None:
    assert result_of(*outputs).text == text
    assert Progress("e", "ok", outputs, 1).text == text


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((), ""),
        ((Stream("stdout", "a"),), "a"),
        ((ExecuteResult({"text/plain": "42"}),), "42\n"),
        ((Stream("stdout", "a"), DisplayData({"text/plain": "42"})), "a\n42\n"),
        ((Stream("stdout", "a"), DisplayData({})), "a\n"),
        ((DisplayData({}),), ""),
        ((Error("E", "v"),), "E: v\n"),
    ],
)
def test_text_of_a_running_cell_can_be_continued(outputs: tuple[Output, ...], text: str) -> None:
    assert Progress("e", "running", outputs, 1).text == text


ANSI = {
    "colour": "\x1b[31mred\x1b[0m",
    "256 colours": "\x1b[38;5;196mred\x1b[m",
    "colon form": "\x1b[4:3mred\x1b[24m",
    "cursor": "\x1b[2K\x1b[1Gred",
    "private mode": "\x1b[?25lred\x1b[?25h",
    "title, BEL": "\x1b]0;title\x07red",
    "link, ST": "\x1b]8;;http://x\x1b\\red\x1b]8;;\x1b\\",
    "reverse index": "\x1bMred",
    "tput sgr0": "red\x1b(B\x1b[m",
    "save and restore": "\x1b7red\x1b8",
    "keypad": "\x1b=red\x1b>",
    "reset": "\x1bcred",
    "device control": "\x1bPq#0;2;0;0;0\x1b\\red",
    "application": "\x1b_payload\x1b\\red",
}


@pytest.mark.parametrize("text", ANSI.values(), ids=ANSI)
def test_ansi_codes_are_never_in_text(text: str) -> None:
    result = result_of(Stream("stdout", text), Stream("stderr", text), Error("E", "v", (text,)))
    assert (result.stdout, result.stderr, result.text) == ("red", "red", "redred\nred")


def test_an_ansi_code_over_two_streams_pieces_is_still_no_text() -> None:
    assert result_of(Stream("stdout", "\x1b[3"), Stream("stdout", "1mred")).stdout == "red"


def test_text_without_codes_is_untouched() -> None:
    text = "a [31m b\t\u65e5\x07"
    assert strip_ansi(text) is text


def test_base64_is_never_in_text() -> None:
    result = result_of(OUTPUTS["display"], DisplayData({"image/png": PNG}), ExecuteResult({"application/pdf": PNG}))
    assert PNG not in result.text


def test_images_are_decoded_one_an_output_the_richest_first() -> None:
    svg = "<svg>\u65e5</svg>"
    result = result_of(
        DisplayData({"image/jpeg": PNG, "image/png": PNG}),
        Stream("stdout", "x"),
        ExecuteResult({"image/svg+xml": svg}),
        DisplayData({"image/png": base64.encodebytes(PIXEL).decode()}),
        DisplayData({"text/plain": "no picture"}),
    )
    assert result.images == (Image("image/png", PIXEL), Image("image/svg+xml", svg.encode()), Image("image/png", PIXEL))


@pytest.mark.parametrize("content", ["abc", "\u65e5", "", "@@@@", 5, None, ["a"], {}])
def test_a_picture_that_cannot_be_decoded_gives_way_to_the_next(content: object) -> None:
    assert result_of(DisplayData({"image/png": content})).images == ()
    assert result_of(DisplayData({"image/png": content, "image/jpeg": PNG})).images == (Image("image/jpeg", PIXEL),)


def test_the_error_is_the_last_exception() -> None:
    first, last = Error("A", "1"), Error("B", "2")
    assert result_of(first, Stream("stdout", "x"), last, Stream("stdout", "y")).error is last
    assert result_of(Stream("stderr", "Error: no")).error is None


@pytest.mark.parametrize("status", get_args(Status))
def test_failed_results_are_raised(status: Status) -> None:
    result = result_of(status=status, exit_code=7)
    assert result.ok is (status == "ok")
    if status in ("ok", "running"):
        assert result.raise_for_error() is result
    else:
        with pytest.raises(ExecutionFailed, match=rf"cell e1 {status}: (exit code 7|its outcome cannot be known)") as caught:
            result.raise_for_error()
        assert caught.value.result is result


def test_a_raised_failure_names_the_exception_and_the_state() -> None:
    with pytest.raises(ExecutionFailed, match=r"ValueError: no \(state kept\)"):
        result_of(Error("ValueError", "no"), status="error", state="kept").raise_for_error()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"status": "aborted", "exit_code": -1, "notes": ("Cancelled.",)}, "cell e1 aborted: Cancelled. (state unknown)"),
        ({"status": "error", "state": "kept", "interrupted": "request"}, "cell e1 error: interrupted: E (state kept)"),
        ({"status": "error", "state": "kept", "interrupted": "timeout"}, "cell e1 error: timeout: E (state kept)"),
    ],
)
def test_a_raised_failure_says_what_ended_the_cell(fields: dict[str, Any], message: str) -> None:
    outputs = () if fields["status"] == "aborted" else (Error("E", ""),)
    with pytest.raises(ExecutionFailed, match=re.escape(message)):
        result_of(*outputs, **fields).raise_for_error()


@pytest.mark.parametrize("kind", [ExecutionFailed, SecurityError])
def test_a_failed_cell_raised_in_another_process_has_its_result(kind: type[ExecutionFailed]) -> None:
    error = kind("the cell failed", result_of(Error("ValueError", "no"), status="error"))
    for duplicate in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert (type(duplicate), str(duplicate), duplicate.result) == (kind, "the cell failed", error.result)


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan"), -1, 2**40, "1"])
def test_a_duration_that_no_command_can_have_is_ignored(seconds: object) -> None:
    command = BackgroundCommand("c1", "sleep 9", "running", duration=2.5)
    assert command.update({"status": "running", "seconds": seconds}).duration == 2.5


def test_a_text_has_at_most_its_limit_also_after_characters_are_escaped() -> None:
    assert read_text("\udc00" * 5, 5) == "\\udc0"
