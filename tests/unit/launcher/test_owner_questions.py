"""A question is answered by its owner, or by the next one; None stands for an owner that was there and said nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernelexec.launcher.owner import OwnerQuestions, has_owner


@pytest.fixture(autouse=True)
def owned() -> Iterator[None]:
    yield
    has_owner.set()


def test_an_owner_that_says_nothing_is_no_answer() -> None:
    assert OwnerQuestions(lambda _: None, 0.01).ask({}) is None


def test_an_owner_that_came_just_before_the_end_of_the_time_has_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    questions, is_set, looks = OwnerQuestions(sent.append, 0.05), has_owner.is_set, iter(range(9))

    def look() -> bool:
        if next(looks) == 1:  # at the end of the first time
            has_owner.set()
            questions.answer({"name": sent[0]["name"], "allowed": True})
        return is_set()

    has_owner.clear()
    monkeypatch.setattr(has_owner, "is_set", look)
    answer = questions.ask({})
    assert answer == {"name": sent[0]["name"], "allowed": True}
