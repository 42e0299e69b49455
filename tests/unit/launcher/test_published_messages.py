"""What the launcher keeps of its newest cell for a new owner: all of it, in order, within bounds that are reported."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from kernelexec.launcher.output.kept_output import Frames, Gap, PublishedMessages

LIMIT = 100_000


def message(msg_type: str, content: dict[str, Any], parent: str = "m", **header: str) -> Frames:
    parts: list[dict[str, Any]] = [
        {"msg_id": "x", "msg_type": msg_type},
        {"session": "s", "msg_id": parent, **header},
        {},
        content,
    ]
    return [b"topic", b"<IDS|MSG>", b"signature", *(json.dumps(part).encode() for part in parts)]


def stream(text: str, parent: str = "m") -> Frames:
    return message("stream", {"name": "stdout", "text": text}, parent)


def text_bytes(message: Frames) -> int:
    """How much text a message of a stream holds, as the launcher knows it."""
    *_, header, _, _, content = [json.loads(part) for part in message[3:]] if len(message) == 7 else [{}] * 4
    return len(content["text"].encode()) if header.get("msg_type") == "stream" else 0


def shown(text: str) -> Frames:
    return message("display_data", {"data": {"text/plain": text}})


def recorded(*messages: Frames, limit: int = LIMIT) -> PublishedMessages:
    tape = PublishedMessages("m", limit)
    for each in messages:
        tape.add(each, text_bytes(each))
    return tape


def texts(tape: PublishedMessages) -> list[Any]:
    """What is on a tape: the text of each message, and the gaps."""

    def text(content: dict[str, Any]) -> Any:
        return content.get("text") or content.get("data", {}).get("text/plain") or content.get("execution_state")

    return [item if isinstance(item, Gap) else text(json.loads(item[6])) for item in tape]


def test_all_kinds_are_kept_in_the_order_of_their_sending() -> None:
    idle = message("status", {"execution_state": "idle"})
    tape = recorded(stream("a"), shown("b"), stream("c"), message("error", {"text": "d"}), stream("e"), idle)
    assert texts(tape) == ["a", "b", "c", "d", "e", "idle"]
    assert next(iter(tape)) == stream("a")


def test_only_messages_of_the_cell_are_kept() -> None:
    others = (stream("other", "n"), stream("longer", "mm"), stream("no parent", ""), [b"no message"], [b"<IDS|MSG>", b"short"])
    assert texts(recorded(*others, stream("own"))) == ["own"]


def test_fields_around_the_id_of_a_parent_are_ignored() -> None:
    assert texts(recorded(message("stream", {"text": "a"}, username="u"), message("stream", {"text": "b"}))) == ["a", "b"]


@pytest.mark.parametrize("size", [10, 1000, 30_000])
def test_of_too_much_text_the_head_and_the_tail_are_kept_and_the_rest_is_counted(size: int) -> None:
    count = min(10 * LIMIT // size, 10_000)
    tape = recorded(*(stream(f"{n:05}".ljust(size, "é")) for n in range(count)))
    actual = texts(tape)
    [gap] = [item for item in actual if isinstance(item, Gap)]
    numbers = [int(text[:5]) for text in actual if not isinstance(text, Gap)]
    at = actual.index(gap)
    assert numbers == [*range(at), *range(at + gap.messages, count)]
    assert gap == Gap(gap.messages, gap.messages * len(f"{0:05}".ljust(size, "é").encode()), 0)
    assert numbers[-1] == count - 1
    assert len(numbers) == 1 or sum(len(json.dumps(text)) for text in actual if not isinstance(text, Gap)) <= LIMIT


def test_displays_have_a_bound_of_their_own() -> None:
    many = [shown(str(n).ljust(1000)) for n in range(1000)]
    actual = texts(recorded(stream("before"), *many, stream("after")))
    [gap] = [item for item in actual if isinstance(item, Gap)]
    assert actual[0] == "before"
    assert actual[-1] == "after"
    assert actual[-2].strip() == "999"
    assert gap.text_bytes == 0
    assert gap.other_bytes > 500_000


def test_one_display_may_take_all_the_room() -> None:
    large = "x" * 350_000
    assert texts(recorded(shown("first"), shown(large))) == ["first", large]


def test_messages_larger_than_all_the_room_are_left_out() -> None:
    actual = texts(recorded(shown("x" * 500_000), stream("x" * 200_000), stream("end")))
    assert [type(item) for item in actual] == [Gap, Gap, str]
    assert actual[1].text_bytes == 200_000


def test_the_newest_text_is_kept_though_it_is_larger_than_all_the_room() -> None:
    actual = texts(recorded(stream("head"), stream("a" * 200_000), shown("b"), stream("c" * 200_000)))
    assert actual == ["head", Gap(1, 200_000, 0), "b", "c" * 200_000]


def test_the_newest_state_is_kept_whatever_comes_after_it() -> None:
    states = [message("status", {"execution_state": state}) for state in ("busy", "idle")]
    actual = texts(recorded(*states, *(shown("late".ljust(1000)) for _ in range(1000))))
    assert actual[0] == "idle"
    assert "busy" not in actual


def test_a_tape_of_a_cell_that_floods_holds_no_more_than_its_bounds() -> None:
    tracemalloc.start()
    try:
        tape = PublishedMessages("m", LIMIT)
        for n in range(1000):
            tape.add(stream(str(n).ljust(1000)), 1000)
            tape.add(shown(str(n).ljust(1000)))
        assert tracemalloc.get_traced_memory()[0] < 2 * 5 * LIMIT
    finally:
        tracemalloc.stop()


SIZES: dict[str, Any] = {
    "no reply": (None, None),
    "a reply": (100, ({"status": "ok"}, {"kernelexec": {}})),
    "too large": (5 * 2**20, ({}, {})),
}


@pytest.mark.parametrize(("size", "kept"), SIZES.values(), ids=SIZES)
def test_a_reply_is_kept_unless_it_is_too_large(size: int | None, kept: object) -> None:
    tape = recorded()
    if size is not None:
        tape.set_reply({"status": "ok"}, {"kernelexec": {}}, size)
    assert tape.reply == kept
