"""Output on disk: a quota cut at characters, pages that cover everything once, lines found by a pattern, full disks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelexec.errors import InvalidRequest
from kernelexec.results import OutputPage
from kernelexec.text import head_within, utf8_size
from kernelexec.workspace.spill import Grep, SpillFile, page_of
from tests.support.night import at_night

MIB = 1024 * 1024
ALPHABET = ["a", "b", "\n", "\u00e9", "\u65e5", "\U0001f389", "e\u0301"]
LETTERS = ["x", "\u00e9", "\u65e5", "\U0001f389"]


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Callable[..., SpillFile]]:
    """Makes a spill file with something in it."""
    created: list[SpillFile] = []

    def make(*pieces: str, quota: int = MIB) -> SpillFile:
        file = SpillFile(tmp_path / "private" / str(len(created)), quota)
        created.append(file)
        for piece in pieces:
            file.write(piece)
        return file

    yield make
    for file in created:
        file.remove()


def pages(read: Callable[[int, int], OutputPage], limit: int, size: int) -> Iterator[OutputPage]:
    """Page after page, each of which has to go on."""
    offset: int | None = 0
    while offset is not None:
        page = read(offset, limit)
        assert page.next_offset is None or offset < page.next_offset <= size
        yield page
        offset = page.next_offset


def some_lines(seed: int) -> list[str]:
    """200 lines of 7 to 16 bytes, some of which say yes."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible test, no secret
    return ["\u65e5" * rng.randrange(4) + rng.choice(["yes", "not"]) + f"{number:03d}\n" for number in range(200)]


def any_text(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(ALPHABET, k=length))


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("quota", range(1, 30))
def test_the_quota_cuts_at_a_character(spill: Callable[..., SpillFile], letter: str, quota: int) -> None:
    file = spill("a", letter * 3, letter * 3, quota=quota)
    kept = "a" + letter * min(6, (quota - 1) // utf8_size(letter))
    assert not file.failed
    assert file.stored_bytes == utf8_size(kept)
    assert file.page(0, 100, 99) == OutputPage(kept, 0, None, 99, utf8_size(kept))


def test_nothing_follows_what_the_quota_cut(spill: Callable[..., SpillFile]) -> None:
    file = spill("aa", "\u65e5", "b", "", "c", quota=4)
    assert file.page(0, 100, 7) == OutputPage("aa", 0, None, 7, 2)


@pytest.mark.parametrize("pieces", [(), ("",), ("abc",)], ids=["no piece", "an empty piece", "no quota"])
def test_a_spill_that_stored_nothing_gives_empty_pages(spill: Callable[..., SpillFile], pieces: tuple[str, ...]) -> None:
    file = spill(*pieces, quota=0)
    assert file.page(0, 10, 3) == OutputPage("", 0, None, 3, 0)
    assert file.grep("a", 0, 10, 3) == OutputPage("", 0, None, 3, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 64, 10_000])
def test_pages_cover_everything_once_whatever_the_limit(spill: Callable[..., SpillFile], limit: int) -> None:
    rng = random.Random(limit)  # noqa: S311 - a reproducible test, no secret
    for length in (0, 1, 2, 3, 50, 400):
        text = "a" + any_text(rng, length)
        size = utf8_size(text)
        file = spill(text)
        actual = list(pages(partial(file.page, total_bytes=size), limit, size))
        assert "".join(page.text for page in actual) == text
        assert all(utf8_size(page.text) <= limit + 3 for page in actual)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 64])
def test_pages_of_what_is_in_memory_cover_everything_once(limit: int) -> None:
    text = any_text(random.Random(limit), 300)  # noqa: S311 - a reproducible test, no secret
    raw = text.encode()

    def read(offset: int, limit: int) -> OutputPage:
        return page_of(raw[offset : offset + limit + 4], offset, limit, len(raw), len(raw))

    assert "".join(page.text for page in pages(read, limit, len(raw))) == text


@pytest.mark.parametrize("letter", LETTERS)
def test_an_offset_inside_a_character_begins_at_the_next(spill: Callable[..., SpillFile], letter: str) -> None:
    text = letter * 5
    size, width = utf8_size(text), utf8_size(letter)
    file = spill(text)
    for offset in range(size + 1):
        skipped = -(-offset // width)
        assert file.page(offset, 100, size) == OutputPage(letter * (5 - skipped), skipped * width, None, size, size)
        if skipped < 4:
            assert file.page(offset, width, size) == OutputPage(letter, skipped * width, (skipped + 1) * width, size, size)


@pytest.mark.parametrize("offset", [3, 4, 1000, 2**40])
def test_an_offset_at_or_after_the_end_gives_an_empty_page(spill: Callable[..., SpillFile], offset: int) -> None:
    file = spill("abc")
    for page in (file.page(offset, 10, 3), file.grep(".", offset, 10, 3)):
        assert (page.text, page.next_offset) == ("", None)


def test_an_unfinished_spill_file_can_be_read(spill: Callable[..., SpillFile]) -> None:
    file = spill("one\n")
    assert file.page(0, 100, 4) == OutputPage("one\n", 0, None, 4, 4)
    file.write("two\n")
    assert file.page(4, 100, 8) == OutputPage("two\n", 4, None, 8, 8)
    file.close()
    file.close()
    assert file.page(0, 100, 8).text == "one\ntwo\n"


@pytest.mark.parametrize(
    ("pattern", "actual"),
    [
        ("o", "one\ntwo\nfour\n"),
        ("^t", "two\nthree\n"),
        ("e$", "one\nthree\nfive"),
        ("[^\\w\\s]", ""),
        ("(?i)T", "two\nthree\n"),
        ("ive", "five"),
        ("", "one\ntwo\nthree\nfour\nfive"),
    ],
)
def test_grep_gives_whole_lines_that_match(spill: Callable[..., SpillFile], pattern: str, actual: str) -> None:
    file = spill("one\ntw", "o\nthree\nfour\nfive")
    assert file.grep(pattern, 0, 1000, 23) == OutputPage(actual, 0, None, 23, 23)


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_line_ends_at_its_newline_and_nowhere_else(spill: Callable[..., SpillFile], mark: str) -> None:
    line = f"before{mark}after\n"
    assert spill(f"first\n{line}last").grep("bef.*", 0, 1000, 99).text == line


@pytest.mark.parametrize("limit", [16, 17, 40, 1000, 100_000])
def test_grep_goes_on_where_it_stopped_and_finds_every_line_once(spill: Callable[..., SpillFile], limit: int) -> None:
    lines = some_lines(limit)
    size = sum(map(utf8_size, lines))
    actual = list(pages(partial(spill(*lines).grep, "yes", total_bytes=size), limit, size))
    assert "".join(page.text for page in actual) == "".join(line for line in lines if "yes" in line)
    assert all(utf8_size(page.text) <= limit for page in actual)


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_grep_with_a_limit_below_any_line_gives_the_head_of_each(spill: Callable[..., SpillFile], limit: int) -> None:
    lines = some_lines(limit)
    size = sum(map(utf8_size, lines))
    actual = pages(partial(spill(*lines).grep, "yes", total_bytes=size), limit, size)
    assert [page.text for page in actual] == [head_within(line, limit) for line in lines if "yes" in line]


def test_a_line_longer_than_the_limit_is_cut_at_a_character_and_passed(spill: Callable[..., SpillFile]) -> None:
    text = "\u65e5" * 10 + "\n\u65e5 next\n"
    file = spill(text)
    first = file.grep("\u65e5", 0, 10, utf8_size(text))
    assert (first.text, first.next_offset) == ("\u65e5" * 3, 31)
    assert file.grep("\u65e5", 31, 10, utf8_size(text)).text == "\u65e5 next\n"


@pytest.mark.parametrize("letter", LETTERS)
def test_grep_from_inside_a_character_says_rightly_where_to_go_on(spill: Callable[..., SpillFile], letter: str) -> None:
    lines = [f"{letter}one\n", "two and more\n"]
    sizes = [utf8_size(line) for line in lines]
    file = spill(*lines)
    for offset in range(utf8_size(letter)):
        page = file.grep("o", offset, sizes[0], sum(sizes))
        assert page.next_offset == sizes[0]
        assert page.text.endswith("one\n")


@pytest.mark.parametrize("letter", [*at_night(*LETTERS[:-1]), LETTERS[-1]])
def test_grep_reads_over_the_ends_of_its_chunks(spill: Callable[..., SpillFile], letter: str) -> None:
    lines = [f"{number} {letter * 50}\n" for number in range(30_000)]
    text = "".join(lines)
    file = spill(text, quota=64 * MIB)
    page = file.grep("99 ", 0, MIB, utf8_size(text))
    assert page.text == "".join(line for line in lines if "99 " in line)
    assert page.next_offset is None


@pytest.mark.parametrize("letter", LETTERS)
def test_a_huge_line_is_searched_piece_by_piece(spill: Callable[..., SpillFile], letter: str) -> None:
    text = letter * (3 * MIB // utf8_size(letter)) + "found"
    page = spill(text, quota=64 * MIB).grep("found", 0, 16 * MIB, utf8_size(text))
    assert page.text.endswith("found")
    assert utf8_size(page.text) <= 2 * MIB
    assert page.next_offset is None


def test_no_piece_of_a_line_is_longer_than_its_bound() -> None:
    finder = Grep("x", 0, 10 * MIB)
    finder.feed("x" * 300_000 + "\nshort x\n")
    finder.finish()
    assert max(map(len, finder._found)) <= 64 * 1024 + 1
    assert "".join(finder._found) == "x" * 300_000 + "\nshort x\n"


@pytest.mark.parametrize(
    "pattern", ["(", "[", "*a", "a{2,1}", "(?P<n>", "\\", "a{99999999999}", pytest.param("(" * 3000, id="deep")]
)
def test_a_pattern_that_is_none_is_refused(spill: Callable[..., SpillFile], pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="is no regular expression"):
        spill("abc").grep(pattern, 0, 10, 3)


def test_lone_surrogates_are_stored_as_question_marks(spill: Callable[..., SpillFile]) -> None:
    assert spill("a\ud800b").page(0, 10, 3).text == "a?b"


def test_a_file_that_is_there_is_not_written_over_and_ends_the_writing(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    file = SpillFile(tmp_path / "s", MIB)
    file.write("theirs")
    assert (file.failed, file.stored_bytes) == (True, 0)
    assert (tmp_path / "s").read_text() == "mine"
    (tmp_path / "s").unlink()
    file.write("more")
    assert (file.stored_bytes, (tmp_path / "s").exists()) == (0, False)


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("target")
    file = SpillFile(tmp_path / "s", MIB)
    file.write("text")
    assert (file.failed, (tmp_path / "target").exists()) == (True, False)


def test_only_the_owner_can_read_and_removing_leaves_nothing(spill: Callable[..., SpillFile], tmp_path: Path) -> None:
    file = spill("text")
    (actual,) = (tmp_path / "private").iterdir()
    assert (actual.stat().st_mode & 0o777, actual.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.remove()
    file.remove()
    assert list((tmp_path / "private").iterdir()) == []


def test_nothing_is_on_disk_before_something_is_written(spill: Callable[..., SpillFile], tmp_path: Path) -> None:
    spill("")
    assert list(tmp_path.iterdir()) == []


def test_a_search_of_many_lines_ends_its_page_in_time_and_goes_on(
    spill: Callable[..., SpillFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second at each look, and all that is found in several pages."""
    clock = itertools.count()
    monkeypatch.setattr("kernelexec.workspace.spill.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    text = "".join(f"{number} yes\n" for number in range(100))
    actual = list(pages(partial(spill(text).grep, "[02468] yes", total_bytes=len(text)), MIB, len(text)))
    assert len(actual) > 10
    assert "".join(page.text for page in actual) == "".join(f"{number} yes\n" for number in range(0, 100, 2))


def test_lines_of_a_search_take_no_more_than_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.spill.GREP_SECONDS", 1000)
    finder = Grep("", 0, 10 * MIB)
    finder.feed("a\n" * 50_000)
    finder.finish()
    assert len(finder._found) < 100
    assert "".join(finder._found) == "a\n" * 50_000


def test_a_line_that_had_too_little_time_begins_the_next_page(
    spill: Callable[..., SpillFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.workspace.spill.GREP_SECONDS", 0.2)
    text = "aa\n" + "a" * 60 + "!\n"
    page = spill(text).grep("^(a|aa)+$", 0, MIB, len(text))
    assert (page.text, page.next_offset) == ("aa\n", 3)
    with pytest.raises(InvalidRequest, match="choose a simpler one"):
        spill(text).grep("^(a|aa)+$", 3, MIB, len(text))
