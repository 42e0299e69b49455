"""Output of a command for a variable has a bound, and a cut is reported once."""

from __future__ import annotations

import pytest

from kernelexec.launcher.ipython import shell
from kernelexec.launcher.ipython.shell import _CapturedOutput


@pytest.mark.parametrize(
    ("pieces", "cuts"), [(["abc", "de"], 0), (["abc", "def", "g"], 1), (["abcde", "f", "g"], 1), (["abcdef"], 1)]
)
def test_only_text_beyond_the_bound_is_cut_and_the_cut_reported_once(
    pieces: list[str], cuts: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shell, "_CAPTURED_CHARS", 5)
    captured = _CapturedOutput()
    for piece in pieces:
        captured.add(piece)
    assert captured.take() == "abcde"
    captured.add("late")
    assert captured.take() == ""
    assert capsys.readouterr().err == "captured output is cut after 5 characters\n" * cuts
