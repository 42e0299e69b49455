"""The text of an exception and its traceback, which a kernel cuts before it sends them."""

from __future__ import annotations

from kernelexec.launcher.output.kept_output import truncate, truncate_traceback


def test_a_text_keeps_its_head_and_its_tail() -> None:
    text = truncate(ValueError(f"begin {'x' * 10**6} end"))
    assert text.startswith("begin x")
    assert text.endswith("x end")
    assert 64 * 1024 < len(text) < 65 * 1024
    assert "\n[... 934474 characters cut ...]\n" in text


def test_a_text_that_fits_is_whole() -> None:
    assert truncate("x" * 65536) == "x" * 65536


def test_a_class_whose_text_cannot_be_made_is_named() -> None:
    class Hidden(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert truncate(Hidden()) == "<Hidden whose __str__ raised SystemExit>"


def test_a_traceback_keeps_its_first_and_its_last_lines() -> None:
    lines = truncate_traceback([f"line {number}: {'x' * 1000}" for number in range(1000)])
    assert (lines[0][:7], lines[-1][:9]) == ("line 0:", "line 999:")
    assert 256 * 1024 < len("\n".join(lines)) < 257 * 1024
    assert sum(line.endswith(" characters cut ...]") for line in lines) == 1


def test_a_traceback_that_fits_is_whole() -> None:
    lines = ["x" * 1024] * 256
    assert truncate_traceback(lines) == lines
