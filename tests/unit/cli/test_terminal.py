"""The door to the terminal: whatever text comes, in whatever pieces, only colours and progress lines take effect."""

from __future__ import annotations

import io
import random
from typing import Any, TextIO, cast

import pytest

from kernelexec.cli.terminal import NOTE_SIGN, TerminalFilter, TerminalStream, format_remark, neutralise
from tests.support.terminal_sequences import SEQUENCES, harm


def feed(*pieces: str, moves: bool = False) -> str:
    text_filter = TerminalFilter(moves=moves)
    return "".join(map(text_filter.feed, pieces))


def test_there_are_sixty_sequences_and_more() -> None:
    assert len(set(SEQUENCES)) >= 60
    assert all(harm(sequence) for sequence in SEQUENCES)


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("sequence", SEQUENCES, ids=ascii)
def test_no_sequence_passes_wherever_it_is_cut(sequence: str, *, moves: bool) -> None:
    text = f"before {sequence}after\n"
    whole = feed(text, moves=moves)
    assert harm(whole) == []
    assert whole.startswith("before ")
    assert whole.endswith("after\n")
    for first in range(len(text) + 1):
        assert feed(text[:first], text[first:], moves=moves) == whole
    assert feed(*text, moves=moves) == whole


@pytest.mark.parametrize("sequence", SEQUENCES, ids=ascii)
def test_pieces_on_two_streams_make_no_sequence(sequence: str) -> None:
    for cut in range(len(sequence) + 1):
        filters = TerminalFilter(), TerminalFilter()
        assert harm(filters[0].feed(f"a{sequence[:cut]}") + filters[1].feed(f"{sequence[cut:]}b")) == []
        assert harm(neutralise(sequence[:cut]) + neutralise(sequence[cut:])) == []


def test_random_pieces_of_sequences_never_drive_the_terminal() -> None:
    rng = random.Random(24)  # noqa: S311 - a reproducible test, no secret
    parts = [*SEQUENCES, *"\x1b[]P_^X\\;mKAF0815 \n\r\x07\x18\x9b\x9c?>", "[31m", "text"]
    for _ in range(3000):
        pieces = rng.choices(parts, k=rng.randrange(1, 12))
        text = "".join(pieces)
        shown = feed(*pieces, moves=True)
        assert harm(shown) == []
        assert shown == feed(text, moves=True)


@pytest.mark.parametrize(
    "text",
    [
        "plain \u65e5\u672c\u8a9e \U0001f468\u200d\U0001f469 e\u0301\ttab\nline\r\n",
        "\x1b[1;31mred\x1b[0m \x1b[38;5;8mgrey\x1b[m \x1b[38;2;1;8;3mrgb\x1b[48:2::8:8:8mcolons\x1b[39;49m",
        "\r 10%\x1b[K\r 20%\x1b[0K\x1b[2K\b\b",
    ],
)
def test_colours_and_progress_lines_pass(text: str) -> None:
    assert feed(text) == text
    assert feed(*text) == text


def test_moves_go_no_further_up_than_the_text_itself() -> None:
    assert feed("one\ntwo\n\x1b[2Athree", moves=True) == "one\ntwo\n\x1b[2Athree"
    assert feed("one\n\x1b[5Atwo", moves=True) == "one\n\x1b[1Atwo"
    assert feed("\x1b[Aone\n\x1b[A\x1b[Atwo", moves=True) == "one\n\x1b[1Atwo"
    assert feed("one\n\x1b[Atwo") == "one\ntwo"
    text_filter = TerminalFilter(moves=True)
    assert text_filter.feed("one\n") == "one\n"
    text_filter.forget_rows()
    assert text_filter.feed("\x1b[Atwo") == "two"


def test_control_characters_are_escaped_or_omitted_up_to_a_line() -> None:
    assert feed("a\x00b\x0cc") == "a\\x00b\\x0cc"
    assert feed("\x1b]0;title without an end\nnext") == "\nnext"
    assert feed("\x1b]8;;http://x.example\x1b\\link\x1b]8;;\x1b\\ text") == "link text"
    assert feed(f"{NOTE_SIGN} kernelexec: state lost") == "\\u25c8 kernelexec: state lost"
    assert feed("\x1b[" + "1;" * 1000 + "mx") == "x"


def test_styles_that_were_left_on_are_known() -> None:
    text_filter = TerminalFilter()
    text_filter.feed("\x1b[31m")
    assert text_filter.is_styled
    text_filter.feed("\x1b[0m")
    assert not text_filter.is_styled


def test_a_stream_filters_every_write_and_only_remarks_have_the_sign() -> None:
    inner = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream = cast("TextIO", TerminalStream(inner))
    print("\x1b]0;x\x07name\x1b", "[6n\u202e", file=stream)
    stream.writelines(["\x9b6n", f"{NOTE_SIGN} kernelexec: fake\n"])
    cast("TerminalStream", stream).write_filtered(format_remark(stream, "it\nfailed\x1b[2J"))
    stream.flush()
    raw: Any = inner.buffer
    lines = raw.getvalue().decode().splitlines()
    assert lines == ["name [6n\\u202e", "\\u25c8 kernelexec: fake", f"{NOTE_SIGN} kernelexec: it", "    failed"]
    assert format_remark(inner, "a\nkernelexec: b") == "kernelexec: a\n    kernelexec: b\n"
