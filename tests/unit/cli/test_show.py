"""What a person or a program sees of a session: output on stdout, everything about it on stderr."""

from __future__ import annotations

import io
import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import pytest

from kernelexec.cli.console import ConsoleOutput, remarks
from kernelexec.cli.logs import _print_entry as print_entry
from kernelexec.cli.terminal import NOTE_SIGN, protect_terminal
from kernelexec.results import Diagnosis, DisplayData, Error, ExecuteResult, ExecutionResult, Output, Stream
from kernelexec.text import clean_text
from tests.support.terminal_sequences import SEQUENCES, harm

VALUE = ExecuteResult({"text/plain": "42"})
ERROR = Error("E", "v", ("\x1b[31mline 1\x1b[0m", "line 2"))
PNG = "iVBORw0KGgo="


def result_of(*outputs: Output, status: Any = "ok", **fields: Any) -> ExecutionResult:
    return ExecutionResult("e", "s", status, outputs=outputs, **fields)


def show(*outputs: Output, as_json: bool = False, **fields: Any) -> ExecutionResult:
    """Show a cell's outputs one by one, and then its result."""
    console, result = ConsoleOutput(as_json=as_json), result_of(*outputs, **fields)
    for output in outputs:
        console.show_output(output)
    console.show_result(result)
    return result


@pytest.mark.parametrize(
    ("outputs", "stdout", "stderr"),
    [
        ((), "", ""),
        ((Stream("stdout", "a\n"),), "a\n", ""),
        ((Stream("stderr", "e\n"),), "", "e\n"),
        ((Stream("stdout", "a\n"), Stream("stderr", "e\n"), Stream("stdout", "b\n")), "a\nb\n", "e\n"),
        ((Stream("stdout", "a"), Stream("stdout", "b\n")), "ab\n", ""),
        ((VALUE,), "42\n", ""),
        ((Stream("stdout", "a"), VALUE), "a\n42\n", ""),
        ((Stream("stdout", "a\n"), VALUE), "a\n42\n", ""),
        ((DisplayData({"text/plain": "p"}), VALUE), "p\n42\n", ""),
        ((DisplayData({"image/png": PNG, "text/html": "<b>"}),), "<image/png, text/html>\n", ""),
        ((DisplayData({}),), "", ""),
        ((ERROR,), "", "line 1\nline 2\n"),
        ((Stream("stdout", "a\n"), ERROR), "a\n", "line 1\nline 2\n"),
        ((Error("E", "v"),), "", "E: v\n"),
        ((Stream("stdout", "\x1b[31mred\x1b[0m \u65e5\n"),), "red \u65e5\n", ""),
        ((Stream("stdout", "[bold]x[/bold] :smile:\t" + "y" * 500 + "\n"),), "[bold]x[/bold] :smile:\t" + "y" * 500 + "\n", ""),
    ],
)
def test_output_goes_to_stdout_and_failures_to_stderr(
    outputs: tuple[Output, ...], stdout: str, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(*outputs)
    assert capsys.readouterr() == (stdout, stderr)


def test_an_unfinished_line_of_stderr_leaves_stdout_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(Stream("stderr", "50%"), VALUE)
    assert capsys.readouterr().out == "42\n"


def test_output_is_shown_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    console = ConsoleOutput(as_json=False)
    for text in ("a", "b\n", "c"):
        console.show_output(Stream("stdout", text))
        assert capsys.readouterr() == (text, "")


def test_json_is_one_line_for_each_result_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleOutput(as_json=True).progress(2) as advance:
        first = show(Stream("stdout", "a\nb"), Stream("stderr", "e\n"), VALUE, as_json=True)
        advance()
        second = show(ERROR, as_json=True, status="error", exit_code=124, interrupted="timeout", truncated=True, notes=("n",))
        advance()
    captured = capsys.readouterr()
    *lines, end = captured.out.split("\n")
    assert [ExecutionResult.from_json(line) for line in lines] == [first, second]
    assert end == captured.err == ""


REMARKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({"exit_code": 0, "state": "kept"}, []),
    "a plain error": ({"status": "error", "exit_code": 1, "state": "kept"}, []),
    "a timeout": (
        {"status": "error", "interrupted": "timeout", "ended_by": "interrupt", "state": "kept"},
        ["ended by timeout (interrupt); state kept"],
    ),
    "a request": (
        {"status": "error", "interrupted": "request", "ended_by": "signal", "state": "kept"},
        ["ended by request (signal); state kept"],
    ),
    "a timeout that cost the state": (
        {"interrupted": "timeout", "ended_by": "kill", "state": "lost", "cause": "timeout", "lost_names": ("x", "y")},
        ["ended by timeout (kill); state lost", "lost: x, y"],
    ),
    "a death": ({"status": "error", "state": "lost", "cause": "oom"}, ["the kernel is gone (oom); state lost"]),
    "a death with names": (
        {"status": "error", "state": "lost", "cause": "crashed", "lost_names": ("x",)},
        ["the kernel is gone (crashed); state lost", "lost: x"],
    ),
    "cut output": ({"truncated": True, "total_bytes": 10**10}, ["output truncated: 10000000000 bytes in total"]),
    "notes": ({"notes": ("First.", "Second.")}, ["First.", "Second."]),
    "hints": (
        {"status": "error", "diagnosis": Diagnosis("E", "m", hints=("Do this.", "Or that."))},
        ["hint: Do this.", "hint: Or that."],
    ),
    "a diagnosis without hints": ({"status": "error", "diagnosis": Diagnosis("E", "m")}, []),
    "everything": (
        {
            "status": "error",
            "interrupted": "timeout",
            "ended_by": "kill",
            "state": "lost",
            "lost_names": ("x",),
            "truncated": True,
            "total_bytes": 9,
            "notes": ("n",),
            "diagnosis": Diagnosis("timeout", "m", hints=("h",)),
        },
        ["n", "ended by timeout (kill); state lost", "lost: x", "output truncated: 9 bytes in total", "hint: h"],
    ),
}


@pytest.mark.parametrize(("fields", "lines"), REMARKS.values(), ids=REMARKS)
def test_remarks_say_what_the_outputs_do_not(
    fields: dict[str, Any], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = show(Stream("stdout", "a\n"), **fields)
    assert remarks(result) == lines
    assert capsys.readouterr() == ("a\n", "".join(f"kernelexec: {line}\n" for line in lines))


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_remark_begins_a_line_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(Stream(name, "unfinished"), notes=("n",))
    captured = capsys.readouterr()
    expected = ("unfinished", "kernelexec: n\n") if name == "stdout" else ("", "unfinished\nkernelexec: n\n")
    assert captured == expected


def test_a_value_begins_a_line_after_an_unfinished_one_of_the_cell_before(capsys: pytest.CaptureFixture[str]) -> None:
    console = ConsoleOutput(as_json=False)
    for output in (Stream("stdout", "a"), VALUE):
        console.show_output(output)
        console.show_result(result_of(output))
    assert capsys.readouterr().out == "a\n42\n"


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[Callable[[], str]]:
    """Put the named streams of this process on a terminal; yields what reads all that it shows."""
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    streams: list[TextIO] = []

    def shown() -> str:
        for stream in streams:
            stream.flush()
        pieces = []
        while select.select([ours], [], [], 0)[0]:
            pieces.append(os.read(ours, 65536))
        return b"".join(pieces).decode().replace("\r\n", "\n")

    try:
        with monkeypatch.context() as patch:
            for name in names:
                streams.append(os.fdopen(os.dup(theirs), "w", encoding="utf-8"))
                patch.setattr(sys, name, streams[-1])
            yield shown
    finally:
        for stream in streams:
            stream.close()
        os.close(ours)
        os.close(theirs)


def test_on_a_terminal_output_and_remarks_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "[bold]x[/bold] :smile: " + "y" * 300
    with terminal(monkeypatch, "stdout", "stderr") as shown:
        show(Stream("stdout", f"{line}\n"), Stream("stderr", "e"), VALUE, ERROR, notes=("n",))
        text = shown()
    assert text == f"{line}\ne\n42\nline 1\nline 2\nkernelexec: n\n"


def test_output_goes_to_a_terminal_on_stdout_where_stderr_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with terminal(monkeypatch, "stdout") as shown:
        with ConsoleOutput(as_json=False).progress(1) as advance:
            show(Stream("stdout", "a\n"), Stream("stderr", "e\n"), VALUE, notes=("n",))
            advance()
        text = shown()
    assert text == "a\n42\n"
    assert capsys.readouterr().err == "e\nkernelexec: n\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_piped_output_is_whole_beside_a_bar_on_the_terminal(
    as_json: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with terminal(monkeypatch, "stderr") as shown:
        with ConsoleOutput(as_json=as_json).progress(1) as advance:
            result = show(Stream("stdout", "a\t" + "b" * 300 + "\n"), VALUE, as_json=as_json, notes=("n",))
            advance()
        bar = shown()
    assert capsys.readouterr().out == (result.to_json() if as_json else result.text) + "\n"
    assert "cells" in bar
    assert "1/1" in bar
    assert ("kernelexec: n" in bar) is not as_json


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_held_back_for_the_bar_is_shown_at_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, "stdout", "stderr") as shown:
        console = ConsoleOutput(as_json=False)
        with suppress(KeyError), console.progress(1):
            console.show_output(Stream(name, "whole\nunfinished"))
            raise KeyError
        assert "unfinished\n" in shown()
        console.end_line()
        assert shown() == ""


def test_json_on_a_terminal_is_valid_and_drives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "".join(SEQUENCES) + "\x7f" + NOTE_SIGN
    record = {"event": "finished", "text": printed}
    with terminal(monkeypatch, "stdout", "stderr") as shown:
        protect_terminal()
        result = show(Stream("stdout", clean_text(printed)), as_json=True)
        print_entry(record)
        text = shown()
    assert harm(text) == []
    first, second = text.splitlines()
    assert ExecutionResult.from_json(first) == result
    assert json.loads(second) == record


def test_json_is_valid_where_the_encoding_lacks_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    record = {"event": "finished", "text": "\u00e9\u65e5"}
    print_entry(record)
    assert json.loads(written.getvalue()) == record


def test_there_is_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleOutput(as_json=False).progress(3) as advance:
        advance()
    assert capsys.readouterr() == ("", "")
