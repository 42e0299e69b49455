"""Ways around the rules that are seen, and everyday commands that must not be taken for one.

The lists are files of one command a line, where ``⏎`` is a line end. What evades is ``rm -rf /`` and its like in disguise.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelexec.rules.policy import CommandRules

#: Places of a command in which the grammar of bash reads it in another way.
AROUND = [
    "if x; then {}\nfi",
    "(cd x; {}\n)",
    "while read x; do {}\ndone < f",
    "cat <<'E' > f\nit's `a`\nE\n{}",
    "cat <<A > f\nx\nA\n{}",
    "sh <<'END'\n{}\nEND",
    "echo 'it'\\''s'; {}",
    "time {}",
    "! {}",
]
RULES = CommandRules(blocked=(re.compile("sudo"),))


def commands(name: str) -> list[str]:
    lines = (Path(__file__).parent / "cases" / name).read_text("utf-8").splitlines()
    return [line.replace("⏎", "\n") for line in lines]


@pytest.mark.parametrize("text", commands("evasions.txt"))
def test_a_disguise_is_seen_through_or_refused_as_unknown(text: str) -> None:
    assert RULES.check(text) is not None


@pytest.mark.parametrize("around", AROUND)
def test_a_disguise_is_seen_through_wherever_it_stands(around: str) -> None:
    assert [text for text in commands("evasions.txt") if RULES.check(around.format(text)) is None] == []


@pytest.mark.parametrize("text", commands("everyday.txt"))
def test_everyday_commands_may_run(text: str) -> None:
    assert RULES.check(text) is None


@pytest.mark.parametrize("name", ["evasions.txt", "everyday.txt"])
def test_there_are_two_hundred_of_each(name: str) -> None:
    assert len(set(commands(name))) >= 200
