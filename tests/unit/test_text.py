"""Text within bounds: cuts at characters, carriage returns, budgets."""

from __future__ import annotations

import random
import weakref

import pytest

from kernelexec.text import (
    TextBudget,
    TextRun,
    apply_cursor_moves,
    apply_returns,
    clean,
    cut_middle,
    head_within,
    parse_untrusted_json,
    tail_within,
    utf8_size,
)

MIB = 1024 * 1024
ALPHABET = ["a", "\u00e9", "\u65e5", "\U0001f389", "e\u0301", " "]
OPEN_LINE_BYTES = 64 * 1024


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("\u00e9", 2), ("\u65e5", 3), ("\U0001f389", 4)])
def test_size_is_that_of_utf8(text: str, size: int) -> None:
    assert utf8_size(text) == size


@pytest.mark.parametrize(
    ("text", "limit", "head", "tail"),
    [
        ("abc", 0, "", ""),
        ("abc", 2, "ab", "bc"),
        ("abc", 3, "abc", "abc"),
        ("abc", 9, "abc", "abc"),
        ("\u65e5\u672c", 2, "", ""),
        ("\u65e5\u672c", 3, "\u65e5", "\u672c"),
        ("\u65e5\u672c", 5, "\u65e5", "\u672c"),
        ("\u65e5\u672c", 6, "\u65e5\u672c", "\u65e5\u672c"),
        ("a\U0001f389b", 4, "a", "b"),
        ("a\U0001f389b", 5, "a\U0001f389", "\U0001f389b"),
    ],
)
def test_head_and_tail_end_at_characters(text: str, limit: int, head: str, tail: str) -> None:
    assert head_within(text, limit) == head
    assert tail_within(text, limit) == tail


def test_head_and_tail_of_any_text_are_the_longest_that_fit() -> None:
    rng = random.Random(1)  # noqa: S311 - a reproducible test, no secret
    for _ in range(2000):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(12)))
        limit = rng.randrange(40)
        heads = [text[:n] for n in range(len(text) + 1) if utf8_size(text[:n]) <= limit]
        tails = [text[len(text) - n :] for n in range(len(text) + 1) if utf8_size(text[len(text) - n :]) <= limit]
        assert head_within(text, limit) == heads[-1]
        assert tail_within(text, limit) == tails[-1]


def test_a_text_that_fits_is_not_cut() -> None:
    assert cut_middle("\u65e5" * 10, 30) == "\u65e5" * 10


@pytest.mark.parametrize("text", ["x" * (MIB + 1), "\u65e5" * 400_000, "a" + "\U0001f389" * 300_000])
def test_a_cut_text_says_exactly_what_is_missing(text: str) -> None:
    head, marker, tail = cut_middle(text, MIB).split("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert utf8_size(head) + utf8_size(tail) <= MIB
    assert marker == f"[... {utf8_size(text) - utf8_size(head) - utf8_size(tail)} bytes cut ...]"


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ("plain", "plain"),
        ("\u65e5", "\u65e5"),
        ("a\ud800b", "a\\ud800b"),
        ({"\udfff": ["\ud800", {"k": "\ud800"}]}, {"\\udfff": ["\\ud800", {"k": "\\ud800"}]}),
        ([1, 2.5, None, True, {}], [1, 2.5, None, True, {}]),
    ],
)
def test_lone_surrogates_are_escaped_wherever_they_are(value: object, cleaned: object) -> None:
    assert clean(value) == cleaned


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("abc", "abc"),
        ("10%\r20%\r100%", "100%"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("a\nb\rc\nd", "a\nc\nd"),
        ("line\r\n", "line\r\n"),
        ("one\r\ntwo\r\n", "one\r\ntwo\r\n"),
        ("old\rnew\r\n", "new\r\n"),
        ("waits\r", "waits\r"),
        ("gone\r\r\n", "\r\n"),
        ("ab\x08c", "ac"),
        ("ab\x08\x08\x08c", "c"),
        ("a\n\x08b", "a\nb"),
        ("\x08", ""),
        ("1/3\x08\x08\x083/3", "3/3"),
    ],
)
def test_returns_and_backspaces_leave_the_last_state(text: str, state: str) -> None:
    assert apply_returns(text) == state


#: Runs do not hold their budgets.
BUDGETS: list[TextBudget] = []


def run_of(limit: int, pieces: list[str]) -> TextRun:
    BUDGETS.append(budget := TextBudget(limit))
    run = TextRun("stdout", budget)
    for piece in pieces:
        run.append(piece)
    return run


def test_a_progress_bar_is_the_same_wherever_its_chunks_are_cut() -> None:
    rng = random.Random(2)  # noqa: S311 - a reproducible test, no secret
    text = "start\n" + "".join(f"\r{n}% \u65e5{'.' * (n % 7)}" for n in range(60)) + "\r\ndone\r\nlast\x08\x08T\n\rend"
    for _ in range(300):
        cuts = sorted(rng.sample(range(len(text)), rng.randrange(1, 40)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert run_of(MIB, pieces).text() == apply_returns(text)


def test_text_at_the_limit_is_kept_whole() -> None:
    run = run_of(MIB, ["x" * 1023 + "\n"] * 1024)
    assert run.text() == ("x" * 1023 + "\n") * 1024
    assert run.budget.cut_bytes == 0


def test_one_byte_over_the_limit_cuts_one_byte() -> None:
    run = run_of(MIB, [*["x" * 1023 + "\n"] * 1024, "\n"])
    assert run.budget.cut_bytes == 1
    assert "[... 1 bytes of stdout cut: read_output has them ...]" in run.text()


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u65e5", "\U0001f389"])
def test_head_and_tail_are_kept_of_a_long_stream_of_lines(letter: str) -> None:
    line = letter * 10 + "\n"
    run = run_of(1000, [line] * 500)
    head, _, tail = run.text().partition("\n[... ")
    marker, _, tail = tail.partition(" ...]\n")
    whole = line * 500
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert int(marker.split()[0]) == utf8_size(whole) - utf8_size(head) - utf8_size(tail)
    assert 1000 - 8 <= utf8_size(head) + utf8_size(tail) <= 1000


def test_any_pieces_add_up_to_head_cut_and_tail() -> None:
    rng = random.Random(3)  # noqa: S311 - a reproducible test, no secret
    for _ in range(300):
        pieces = ["".join(rng.choices([*ALPHABET, "\n"], k=rng.randrange(1, 30))) for _ in range(rng.randrange(1, 40))]
        run = run_of(rng.randrange(2, 200), [*pieces, "\n"])
        whole, kept = "".join(pieces) + "\n", "".join((*run.head, *run.tail))
        assert utf8_size(kept) + run.budget.cut_bytes == utf8_size(whole)
        assert whole.startswith("".join(run.head))
        assert whole.endswith("".join(run.tail))
        assert utf8_size(kept) <= run.budget.limit


def test_a_line_without_an_end_keeps_to_the_budget() -> None:
    run = run_of(100, ["x" * 10] * 1000)
    assert utf8_size(run.text()) <= 100 + 80


def test_a_gigantic_line_costs_no_more_than_the_budget_and_one_open_line() -> None:
    run = run_of(MIB, ["x" * 50_000] * 200)
    assert utf8_size(run.text()) <= MIB + OPEN_LINE_BYTES + 80


@pytest.mark.parametrize("piece", ["ab\r\n", "a\x08", "a\rb"])
def test_of_a_long_text_with_returns_the_ends_are_read(piece: str) -> None:
    run = run_of(1000, ["first\n", piece * 1_000_000, "\nlast\n"])
    text, budget = run.text(), BUDGETS[-1]
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert f"[... {budget.cut_bytes} bytes of stdout cut" in text
    assert budget.cut_bytes > 0.9 * len(piece) * 1_000_000
    assert len(text) < 1200


def test_a_run_with_nothing_in_it_is_empty() -> None:
    budget = TextBudget(10)
    assert TextRun("stdout", budget).is_empty
    assert not run_of(10, ["a"]).is_empty


def test_unreferenced_text_is_gone_at_once() -> None:
    budget = TextBudget(10)
    run = TextRun("stdout", budget)
    run.append("0123456789\n")  # cut: the budget knows the run
    gone = weakref.ref(budget)
    del budget, run
    assert gone() is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("plain\n\x1b[31mred\x1b[0m\n", "plain\n\x1b[31mred\x1b[0m\n"),
        ("a 1\nb 1\n\x1b[2Aa 2\nb 2\n", "a 2\nb 2\n"),
        ("a 1\nb 1\n\x1b[2A\x1b[2Ka 2\n\x1b[2Kb 2\n\x1b[2A\x1b[2Ka 3\n\n", "\x1b[2Ka 3\n\x1b[2Kb 2\n"),
        ("first\na\n\x1b[Ab\n", "first\nb\n"),
        ("a\n\x1b[Fb", "b\n"),
        ("a\x1b[9999Ab\n\x1b[5A", "b\n"),
        ("a\nb\nc\n\x1b[3Ax\n", "x\nb\nc\n"),
    ],
    ids=["none", "two bars", "erased first", "one line", "to the beginning", "further than there is", "one of three"],
)
def test_moves_to_earlier_lines_leave_the_last_state(text: str, state: str) -> None:
    assert apply_cursor_moves(text) == state


def test_json_of_a_kernel_is_read_up_to_a_number_of_elements() -> None:
    assert parse_untrusted_json("[" + ",".join(["[]"] * 100_000) + "]") == [[]] * 100_000
    assert parse_untrusted_json('["' + "," * 300_000 + '"]') == ["," * 300_000]
    assert parse_untrusted_json(b'{"a": "\\"[,\\\\"}') == {"a": '"[,\\'}


@pytest.mark.parametrize(
    "json_text",
    [
        "[" * 100_000,
        '{"a":' * 20_000,
        "[" + ",".join(["0"] * 300_000) + "]",
        "[" + '"",' * 300_000,
        "",
        "\ud800",
        b"\xff",
        "[1",
    ],
    ids=["nested", "nested dictionaries", "numbers", "strings", "nothing", "a lone surrogate", "no text", "cut short"],
)
def test_other_json_of_a_kernel_is_refused(json_text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        parse_untrusted_json(json_text)
