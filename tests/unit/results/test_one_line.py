"""Values in one line: results, outputs, pictures and lists, as ``repr`` shows them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kernelexec.results import (
    DisplayData,
    Error,
    ExecuteResult,
    ExecutionResult,
    FileBytes,
    FileEntry,
    FileList,
    FileText,
    Image,
    Output,
    OutputPage,
    Progress,
    SavedVariable,
    SkippedVariable,
    Snapshot,
    Statistics,
    Stream,
    Timing,
    Variable,
    Variables,
)
from kernelexec.results.one_line import format_bytes, format_seconds, join_some, quote_head

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (640).to_bytes(4, "big") + (480).to_bytes(4, "big") + bytes(8976)
).decode()
VALUE = ExecuteResult({"text/plain": "42"}, execution_count=3)
PICTURE = DisplayData({"image/png": PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"})


def result(*outputs: Output, **fields: Any) -> ExecutionResult:
    return ExecutionResult(
        "id",
        "a",
        **{"status": "ok", "execution_count": 3, "state": "kept", "timing": Timing(wall=0.02), **fields},
        outputs=outputs,
    )


RESULTS: dict[str, tuple[ExecutionResult, str]] = {
    "a value": (result(VALUE), "<ok [3] 0.02 s · '42' · state kept>"),
    "a value and a picture": (
        result(VALUE, PICTURE),
        "<ok [3] 0.02 s · '42' · 1 image image/png 640\N{MULTIPLICATION SIGN}480 9 kB · state kept>",
    ),
    "several pictures": (result(PICTURE, PICTURE), "<ok [3] 0.02 s · 2 images 18 kB · state kept>"),
    "nothing": (result(), "<ok [3] 0.02 s · state kept>"),
    "long text": (result(Stream("stdout", "x" * 10**6)), f"<ok [3] 0.02 s · '{'x' * 40}…' · state kept>"),
    "lines": (result(Stream("stdout", "one\ntwo\n")), "<ok [3] 0.02 s · 'one…' · state kept>"),
    "an error": (
        result(Error("ZeroDivisionError", "division by zero"), status="error", exit_code=1),
        "<error [3] 0.02 s · ZeroDivisionError: division by zero · state kept>",
    ),
    "an exception without text": (result(Error("KeyError", ""), status="error"), "<error [3] 0.02 s · KeyError · state kept>"),
    "a failed command": (result(status="error", exit_code=2), "<error [3] 0.02 s · exit code 2 · state kept>"),
    "a timeout": (
        result(Error("KeyboardInterrupt", ""), status="error", interrupted="timeout", timing=Timing(wall=61.2)),
        "<error [3] 1 min 1 s · timeout · KeyboardInterrupt · state kept>",
    ),
    "a lost state": (
        result(status="error", state="lost", cause="oom", execution_count=None),
        "<error 0.02 s · state lost (oom)>",
    ),
    "files, cut, cached": (
        result(files=("a", "b"), truncated=True, cached=True),
        "<ok [3] 0.02 s · 2 files · truncated · cached · state kept>",
    ),
    "what would drive a terminal": (
        result(Error("E\x1b[31m", "a\nb\u202e"), status="error"),
        "<error [3] 0.02 s · E\\x1b[31m: a\\nb\\u202e · state kept>",
    ),
}


@pytest.mark.parametrize(("value", "text"), RESULTS.values(), ids=RESULTS)
def test_a_result_is_one_line(value: ExecutionResult, text: str) -> None:
    assert repr(value) == text
    assert f"<{value.summary}>" == text


OTHERS: dict[str, tuple[object, str]] = {
    "a stream": (Stream("stderr", "one\ntwo"), "<Stream stderr · 'one…' · 7 bytes>"),
    "a display": (PICTURE, "<DisplayData '<Figure size 640x480 with 1 Axes>' · image/png 12 kB>"),
    "a value": (VALUE, "<ExecuteResult '42'>"),
    "JSON": (DisplayData({"application/json": {"a": 1}}), "<DisplayData application/json>"),
    "an error": (Error("E", "text"), "<Error E: text>"),
    "an image": (Image("image/svg+xml", b"<svg/>"), "<Image image/svg+xml 6 bytes>"),
    "variables": (
        Variables((Variable("x", "int", None, 28, "1"), Variable("df", "pandas.DataFrame", (2, 1), 10, "")), 5),
        "<Variables 5: x int, df pandas.DataFrame, …>",
    ),
    "no variables": (Variables(), "<Variables 0>"),
    "a snapshot": (
        Snapshot("id", "/d", (SavedVariable("x", "int", 1_200_000, 0.1, "0.pickle", ""),), (SkippedVariable("f", "no"),)),
        "<Snapshot id · 1 variable: x · 1.2 MB · left out: f>",
    ),
    "statistics": (Statistics(), "<Statistics 0 cells, 0 succeeded · 0.00 s · 0 bytes>"),
    "a list of files": (
        FileList(".", (FileEntry("a", "file", 1, 0.0),), complete=False),
        "<FileList '.' · 1 entry or more: a>",
    ),
    "a text": (FileText("a", "x\ny", 0, None, 3), "<FileText 'a' · 3 bytes · 'x…'>"),
    "a piece": (FileBytes("a", b"12", 5, 7, 2_000), "<FileBytes 'a' · bytes 5 to 7 of 2000>"),
    "a page": (OutputPage("ä", 0, 2, 10, 10), "<OutputPage bytes 0 to 2 of 10>"),
    "progress": (
        Progress("id", "running", (Stream("stdout", "1"),), 1, queue_position=2),
        "<Progress id · running · behind 2 cells · '1'>",
    ),
    "the end": (Progress("id", "ok", (), 1, result=result(VALUE)), "<Progress id · ok [3] 0.02 s · '42' · state kept>"),
}


@pytest.mark.parametrize(("value", "text"), OTHERS.values(), ids=OTHERS)
def test_other_values_are_one_line(value: object, text: str) -> None:
    assert repr(value) == text


SIZES = {0: "0 bytes", 999: "999 bytes", 1000: "1 kB", 9_400: "9 kB", 999_499: "999 kB", 999_500: "1.0 MB", 1_250_000: "1.2 MB"}
LARGE = {9_960_000: "10 MB", 123_000_000: "123 MB", 5 * 10**9: "5.0 GB", 10**16: "10000 TB"}


@pytest.mark.parametrize(("size", "text"), (SIZES | LARGE).items())
def test_sizes_are_decimal(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.016, "0.02 s"),
        (9.94, "9.94 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3725, "1 h 2 min"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_names_beyond_eight_are_dots() -> None:
    assert join_some("abcdefgh") == "a, b, c, d, e, f, g, h"
    assert join_some("abcdefghi") == "a, b, c, d, e, f, g, h, …"
    assert join_some(iter(["a\nb"]), 2) == "a\\nb, …"


def test_a_blank_text_has_no_quotation() -> None:
    assert quote_head(" \n ") is None
    assert quote_head("it's") == '"it\'s"'
